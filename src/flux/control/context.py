"""What the control plane's modules share: registry, time, identities, placement, settings (spec: generations, §9)."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from flux.core import access
from flux.core.access import Actor
from flux.core.audit import AuditEvent, AuditKind
from flux.core.control import Collected, SandboxStatus, WokeFrom
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import ControlState
from flux.core.node import ArtifactReference
from flux.core.paths import printable
from flux.core.requests import CreateSandbox
from flux.core.sandbox import Sandbox
from flux.ports.clock import Clock
from flux.ports.observer import Observer, Unobserved
from flux.ports.placement import Placement
from flux.store.database import Moment
from flux.store.registry import sandboxes
from flux.store.registry.database import RegistryDatabase
from flux.store.registry.sandboxes import SandboxRow

SECOND_NS = 1_000_000_000
TOKEN_BYTES = 24
GONE = (ControlState.KILLING, ControlState.KILLED)


class ControlSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the control plane works. Times in seconds.

    ``wake_generations``: how many generations one wake may spend on refusals. ``takeover_seconds``: after so long
    without a change, what another process was driving is driven on here too, which is always safe. ``nap_seconds``:
    between two looks at a row, or two questions to a busy node. ``durable_patience_seconds``: how long a durable pause
    waits while uploads fail. ``uploads``: there is an object store.
    """

    wake_timeout_seconds: float = 45.0
    wake_generations: int = 3
    pause_timeout_seconds: float = 120.0
    durable_timeout_seconds: float = 600.0
    durable_patience_seconds: float = 30.0
    uploads: bool = True
    kill_timeout_seconds: float = 20.0
    inventory_timeout_seconds: float = 20.0
    takeover_seconds: float = 5.0
    nap_seconds: float = 0.1
    idempotency_seconds: int = 86400


class Flights:
    """Which sandboxes somebody in this process is driving: one at a time each. In memory only, as its owners are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[str] = set()

    def take(self, sandbox_id: str) -> bool:
        """Become the one who drives a sandbox; ``False`` if somebody does."""
        with self._lock:
            if sandbox_id in self._held:
                return False
            self._held.add(sandbox_id)
            return True

    def release(self, sandbox_id: str) -> None:
        """Let others drive it."""
        with self._lock:
            self._held.discard(sandbox_id)


class Abandoned:
    """Which rows nobody drives on: those of this process outright, another one's if they have not changed for a while.

    As this process saw them, sweep after sweep, on its own clock; to take a row over is always safe.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}

    def is_one(self, context: Control, row: SandboxRow) -> bool:
        """Tell whether a moving row is to be driven on here."""
        if row.driver in (None, context.process):
            return True
        now = context.clock.boot_ns()
        version, since = self._seen.get(row.id, (-1, now))
        if version != row.version:
            self._seen[row.id] = (row.version, now)
            return False
        return now - since >= context.settings.takeover_seconds * SECOND_NS


def _random_token() -> str:
    return secrets.token_hex(TOKEN_BYTES)


class RemoteArtifacts(Protocol):
    """The object store's artifacts, as far as the control plane sees to them."""

    def verify(self, reference: ArtifactReference) -> None:
        """Hash every part of an artifact. Raises ``internal`` with ``DataLoss``, ``not_found``, ``unavailable``."""
        ...

    def collect(self, needed: Callable[[], set[str]]) -> Collected:
        """Remove what none of the artifacts needs whose ids ``needed`` returns, when it counts; in two phases."""
        ...


class Control:
    """One control process's surroundings.

    Args:
        registry: the database.
        clock: the time.
        placement: chooses nodes.
        build: checks a request and makes the sandbox's record of it.
        identity: makes a new random identity: hexadecimal digits, at most 40.
        audit: writes a line, durably.
        settings: how to work.
        local: the name of the node in this process, if there is one.
        artifacts: the object store, if there is one.
        upload: moves the uploads of the node in this process on, where nobody else does.
        changed: hears of every change of a sandbox's row.
        observer: hears why a start was not the last one of its wake.
        token: makes a new secret by which a sandbox's data plane is used: 48 hexadecimal digits.
    """

    def __init__(
        self,
        *,
        registry: RegistryDatabase,
        clock: Clock,
        placement: Placement,
        build: Callable[[Actor, CreateSandbox], Sandbox],
        identity: Callable[[], str],
        audit: Callable[[AuditEvent], None],
        settings: ControlSettings | None = None,
        local: str | None = None,
        artifacts: RemoteArtifacts | None = None,
        upload: Callable[[], None] | None = None,
        changed: Callable[[str], None] = lambda _: None,
        flights: Flights | None = None,
        observer: Observer | None = None,
        token: Callable[[], str] = _random_token,
    ) -> None:
        self.registry = registry
        self.clock = clock
        self.placement = placement
        self.build = build
        self.identity = identity
        self.write_audit = audit
        self.settings = settings or ControlSettings()
        self.local = local
        self.artifacts = artifacts
        self.upload = upload
        self.changed = changed
        self.flights = flights or Flights()
        self.observer = observer or Unobserved()
        self.token = token
        self.process = identity()
        self.abandoned = Abandoned()
        #: Attempts that this process minted and that nobody has sent yet: what is not sent has a certain outcome.
        self.unsent: set[str] = set()

    def moment(self) -> Moment:
        """Return now on every clock."""
        return Moment(wall=self.clock.wall(), boot_id=self.clock.boot_id(), boot_ns=self.clock.boot_ns())

    def row(self, sandbox_id: str) -> SandboxRow | None:
        """Return a sandbox's row as it is now."""
        with self.registry.reading() as tx:
            return sandboxes.read(tx, sandbox_id)

    def living(self, sandbox_id: str) -> SandboxRow:
        """Return the row of a sandbox that is not being deleted. Raises ``not_found``."""
        row = self.row(sandbox_id)
        if row is None or row.state in GONE:
            raise FluxError(Code.NOT_FOUND, f"cannot find the sandbox {sandbox_id}: it was deleted meanwhile")
        return row

    def find(self, actor: Actor, reference: str) -> SandboxRow:
        """Return the row of the sandbox with that id or name.

        Raises:
            FluxError: ``not_found``, also where the actor may not see it, or its time-out has come.
        """
        with self.registry.reading() as tx:
            row = sandboxes.find(tx, reference)
        if row is None or row.state in GONE or not access.sees(actor, row.owner, row.id) or self.is_over(row):
            raise no_sandbox(reference)
        return row

    def is_over(self, row: SandboxRow) -> bool:
        """Tell whether a running sandbox is to be killed by its time-out."""
        if row.state is not ControlState.RUNNING or row.expires_at is None or row.on_timeout != "kill":
            return False
        return self.moment().after(row.boot_id, row.expires_boot_ns, row.expires_at)

    def audit(
        self, kind: AuditKind, actor: Actor, sandbox_id: str | None, details: Mapping[str, Any] | None = None
    ) -> None:
        """Write an audit line."""
        self.write_audit(
            AuditEvent(
                id=f"ev{self.identity()[:16]}",
                time=self.clock.wall(),
                event=kind.value,
                actor=actor.name,
                role=actor.role.value,
                sandbox_id=sandbox_id,
                vm_id=sandbox_id,
                details=dict(details or {}),
            )
        )


class Deadline:
    """A point in time on the boot clock, so that nobody's setting of the wall clock moves it."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._end = clock.boot_ns() + int(seconds * SECOND_NS)

    @property
    def left_seconds(self) -> float:
        """How long it is until then; 0 when it is over."""
        return max(0.0, (self._end - self._clock.boot_ns()) / SECOND_NS)

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return self._clock.boot_ns() >= self._end


def status(row: SandboxRow, *, already_running: bool = False) -> SandboxStatus:
    """Return a row as its owner sees it."""
    woke_from: WokeFrom | None = row.woke_from if row.state is ControlState.RUNNING else None
    return SandboxStatus(
        sandbox=row.sandbox,
        state=row.state,
        generation=row.generation,
        node=row.node,
        artifact=row.artifact,
        woke_from="running" if already_running else woke_from,
        stopped=row.stopped,
        token=row.token,
    )


def no_sandbox(reference: str) -> FluxError:
    """Return the error for a sandbox that is not there, or not for this actor."""
    return FluxError(
        Code.NOT_FOUND,
        f"cannot find the sandbox {printable(reference)[:80]!r}: there is none with that id or name; list them to see",
    )
