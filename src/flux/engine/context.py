"""What the engine's modules share: the stores, the substrates, the time, the locks."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from flux.core import access
from flux.core.access import Actor
from flux.core.audit import AuditEvent, AuditKind
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import NodeState
from flux.core.paths import printable
from flux.core.sandbox import Sandbox
from flux.engine import expected, ids
from flux.engine.lifecycle.instances import Instances
from flux.engine.lifecycle.meter import Meter
from flux.engine.locks import Locks
from flux.engine.settings import Settings
from flux.ports.clock import Clock
from flux.ports.files import Files
from flux.ports.observer import Observer
from flux.ports.substrate import Substrate
from flux.store import sandboxes
from flux.store.database import Moment
from flux.store.stores import Stores

if TYPE_CHECKING:
    from flux.engine.node.manager import NodeManager
    from flux.engine.node.node import NodeSettings
    from flux.ports.artifacts import ObjectStore
    from flux.trees.layers.store import LayerStore

_SPACE = (errno.ENOSPC, errno.EDQUOT)
_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
#: A sandbox that is being saved while it runs on is only slower for a moment.
_SERVING = frozenset({NodeState.RUNNING, NodeState.CAPTURING})


class Context:
    """One engine's surroundings. ``changed`` is notified whenever a changeset's state changes.

    ``node`` starts and ends the sandboxes; it is opened when it is first asked for.
    """

    def __init__(
        self,
        stores: Stores,
        substrates: Mapping[str, Substrate],
        clock: Clock,
        files: Files,
        settings: Settings,
        observer: Observer,
    ) -> None:
        self.stores = stores
        self.substrates = substrates
        self.clock = clock
        self.files = files
        self.settings = settings
        self.observer = observer
        self.locks = Locks(settings.lock_wait_seconds)
        self.instances = Instances(persistent=settings.persistent)
        self.meter = Meter()
        self.changed = threading.Condition()
        self.node_settings: NodeSettings | None = None
        self.objects: ObjectStore | None = None

    @cached_property
    def layers(self) -> LayerStore:
        """The layers and artifacts of this machine."""
        from flux.trees.layers.store import LayerStore  # only what saves or restores needs it

        return LayerStore(self.stores.state.path, self.files)

    @cached_property
    def node(self) -> NodeManager:
        """What starts, saves and ends sandboxes here, recovered; a composition that opens its own sets it instead."""
        from flux.engine.lifecycle.assemble import open_node

        opened = open_node(self, self.objects, self.node_settings)
        opened.recover()
        opened.reconcile()
        return opened

    @contextmanager
    def operation(self, actor: Actor, name: str) -> Iterator[None]:
        """Run one operation: the role must allow it, foreign errors become Flux's own, its outcome is observed."""
        started = time.monotonic()
        outcome = "ok"
        try:
            access.permit(actor, name)
            yield
        except FluxError as error:
            outcome = error.code.value
            raise
        except OSError as error:
            wrapped = from_os(error, name)
            outcome = wrapped.code.value
            raise wrapped from error
        except BaseException:
            outcome = Code.INTERNAL.value
            raise
        finally:
            self.observer.operation(name, outcome, time.monotonic() - started)

    def moment(self) -> Moment:
        """Return now on every clock."""
        return Moment(wall=self.clock.wall(), boot_id=self.clock.boot_id(), boot_ns=self.clock.boot_ns())

    def sandbox(self, actor: Actor, reference: str) -> Sandbox:
        """Return the sandbox with that id or name, which runs.

        Raises:
            FluxError: ``not_found``, also where the actor may not see it; ``illegal_state`` if it does not run.
        """
        found = self.known(actor, reference)
        if found.state not in _SERVING:
            raise FluxError(
                Code.ILLEGAL_STATE,
                f"cannot use the sandbox {found.id}: it is {found.state.value}; resume it first",
                {"state": found.state.value},
            )
        expected.check(found)
        return found

    def known(self, actor: Actor, reference: str) -> Sandbox:
        """Return the sandbox with that id or name, whether it runs or not.

        Raises:
            FluxError: ``not_found``, also where the actor may not see it, and where it is being deleted.
        """
        with self.stores.database.reading() as tx:
            found = sandboxes.find(tx, reference)
        if found is None or found.state is NodeState.DELETING or not access.sees(actor, found.owner, found.id):
            raise no_sandbox(reference)
        return found

    def line(
        self,
        kind: AuditKind,
        actor: Actor,
        *,
        sandbox_id: str | None = None,
        changeset: str | None = None,
        line_id: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> AuditEvent:
        """Return an audit line of now; without a ``line_id`` it gets one of its own."""
        return AuditEvent(
            id=line_id or ids.event(),
            time=self.clock.wall(),
            event=kind.value,
            actor=actor.name,
            role=actor.role.value,
            sandbox_id=sandbox_id,
            vm_id=sandbox_id,
            changeset=changeset,
            details=dict(details or {}),
        )

    def notify(self) -> None:
        """Wake those who wait for a changeset."""
        with self.changed:
            self.changed.notify_all()

    def close(self) -> None:
        """End every running execution and release the state directory. Idempotent."""
        self.instances.close_all()
        if "layers" in self.__dict__:
            self.layers.close()
        self.stores.close()


def no_sandbox(reference: str) -> FluxError:
    """Return the error for a sandbox that is not there, or not for this actor."""
    return FluxError(
        Code.NOT_FOUND,
        f"cannot find the sandbox {printable(reference)[:80]!r}: there is none with that id or name; list them to see",
    )


def from_os(error: OSError, action: str) -> FluxError:
    """Return what an operating system's refusal means while doing ``action``."""
    reason = (error.strerror or str(error)).lower()
    if error.errno in _SPACE:
        return FluxError(Code.EXHAUSTED, f"cannot do {action}: {reason}; free some space and try again")
    if error.errno in _RESOURCES:
        return FluxError(Code.EXHAUSTED, f"cannot do {action}: {reason}; raise the limit or try again later")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return FluxError(Code.DENIED, f"cannot do {action}: {reason}")
    return FluxError(Code.UNAVAILABLE, f"cannot do {action}: {reason}; nothing was changed, try again")
