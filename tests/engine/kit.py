"""An engine on real disk with a clock that stands still, and short ways to ask it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flux.core.access import Actor, Role
from flux.core.audit import AuditFilter
from flux.core.changeset import State
from flux.core.errors import Code, FluxError
from flux.core.node import Activate, Destroy
from flux.core.requests import Approve, CreateSandbox, Decide, Speculate
from flux.core.route import Route
from flux.core.sandbox import Sandbox
from flux.engine.engine import Engine
from flux.engine.results import ChangesetDetail
from flux.engine.settings import Settings
from flux.ports.substrate import Substrate
from flux.store.stores import Stores
from flux.testing.clock import FakeClock
from flux.trees.files import SystemFiles
from tests.engine.plain import Plain

ADMIN = Actor(name="ann", role=Role.ADMIN)


class Kit:
    """One state directory, one workspace, and the engine that is open on them."""

    def __init__(self, folder: Path, substrate: Substrate | None = None, **settings: Any) -> None:
        self.state = folder / "state"
        self.work = folder / "work"
        self.state.mkdir(mode=0o700)
        self.work.mkdir()
        self.clock = FakeClock()
        self.plain = Plain()
        self.substrate: Substrate = substrate or self.plain
        copy_engine = "copy" if substrate is None else "auto"
        self.settings = Settings(**{"default_kind": self.substrate.kind, "copy_engine": copy_engine, **settings})
        self.engine = self.open()

    def open(self) -> Engine:
        """Open the state directory, as a start of Flux does."""
        files = SystemFiles()
        stores = Stores(str(self.state), self.clock, files)
        engine = Engine(stores, {self.substrate.kind: self.substrate}, self.clock, files, self.settings)
        assert engine.node.store_id  # opens the node, which brings every row to rest, before changesets are mended
        engine.recover()
        return engine

    def reopen(self) -> Engine:
        """Open it anew, as after the end of Flux."""
        self.engine.close()
        self.engine = self.open()
        return self.engine

    def sandbox(self, actor: Actor = ADMIN, **differently: Any) -> Sandbox:
        """Create a sandbox on the workspace."""
        return started(self.engine, CreateSandbox(**{"workspace": str(self.work), **differently}), actor)

    def get(self, sandbox: str, actor: Actor = ADMIN) -> Sandbox:
        """Return a sandbox as the engine has it."""
        return self.engine.context.known(actor, sandbox)

    def left(self) -> list[str]:
        """Return the ids of the sandboxes that there are."""
        return [row.sandbox_id for row in self.engine.node.list().rows]

    def delete(self, sandbox: Sandbox) -> None:
        """Delete a sandbox, as a control plane does."""
        self.engine.node.destroy(Destroy(sandbox_id=sandbox.id, node_store_id=self.engine.node.store_id))

    def finish_removals(self) -> None:
        """Return when the files of what was deleted are gone, too."""
        self.engine.context.stores.places.close()

    def speculate(self, sandbox: Sandbox, command: str, **differently: Any) -> ChangesetDetail:
        """Run a command in a copy."""
        return self.engine.speculate(ADMIN, sandbox.id, Speculate(command=command, **differently))

    def approve(self, made: ChangesetDetail, **differently: Any) -> ChangesetDetail:
        """Approve a changeset."""
        record = made.changeset
        return self.engine.approve(ADMIN, record.sandbox_id, record.id, Approve(**differently))

    def reject(self, made: ChangesetDetail) -> ChangesetDetail:
        """Reject a changeset."""
        return self.engine.reject(ADMIN, made.changeset.sandbox_id, made.changeset.id, Decide())

    def apply(self, made: ChangesetDetail) -> ChangesetDetail:
        """Apply a changeset."""
        return self.engine.apply(ADMIN, made.changeset.sandbox_id, made.changeset.id, Decide())

    def revert(self, made: ChangesetDetail) -> ChangesetDetail:
        """Make a changeset's inverse."""
        return self.engine.revert(ADMIN, made.changeset.sandbox_id, made.changeset.id, Decide())

    def land(self, sandbox: Sandbox, command: str, **differently: Any) -> ChangesetDetail:
        """Speculate, approve, apply."""
        made = self.speculate(sandbox, command, **differently)
        self.approve(made)
        return self.apply(made)

    def state_of(self, made: ChangesetDetail) -> State:
        """Return a changeset's state as it is now."""
        record = made.changeset
        return self.engine.get_changeset(ADMIN, record.sandbox_id, record.id).changeset.state

    def events(self, changeset: str | None = None) -> list[str]:
        """Return the names of the audit lines, oldest first."""
        page = self.engine.audit(ADMIN, AuditFilter(changeset=changeset), 1000)
        return [line.event for line in page.items]


def started(engine: Engine, request: CreateSandbox, actor: Actor = ADMIN) -> Sandbox:
    """Create a sandbox as a control plane does: the record, then its first generation."""
    sandbox = engine.build_sandbox(actor, request)
    route, store_id = Route(generation=1, attempt_id="a1", pod_uid="p1"), engine.node.store_id
    request = Activate(sandbox_id=sandbox.id, node_store_id=store_id, route=route, sandbox=sandbox, create=True)
    try:
        engine.node.activate(request)
    except FluxError as error:
        engine.node.destroy(Destroy(sandbox_id=sandbox.id, node_store_id=store_id))
        raise FluxError(Code(error.details["cause"]), error.message, error.details) from error
    return engine.context.known(ADMIN, sandbox.id)


class Refused:
    """Expects a refusal with one code: ``with refused(Code.CONFLICT) as error``."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self._raises = pytest.raises(FluxError)

    def __enter__(self) -> pytest.ExceptionInfo[FluxError]:
        self._caught = self._raises.__enter__()
        return self._caught

    def __exit__(self, *details: Any) -> bool:
        handled = bool(self._raises.__exit__(*details))
        if not handled:
            return False
        assert self._caught.value.code is self.code, self._caught.value.message
        return handled


def refused(code: Code) -> Refused:
    """Return a block's expectation that it is refused with ``code``."""
    return Refused(code)
