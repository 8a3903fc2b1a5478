"""What each operation does: takes a call's arguments, asks the engine, returns a view.

The functions are the ``call`` of the rows of ``api.operations``, and all that REST and the embedded client run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from flux.api import present, views
from flux.core.audit import AuditFilter
from flux.core.errors import Code, FluxError
from flux.core.paths import printable

if TYPE_CHECKING:
    from flux.core.access import Actor
    from flux.engine.engine import Engine


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one call carries, already checked against the operation's row.

    ``path`` holds the route's parameters, ``query`` and ``body`` are of the row's types (``None`` where it has none),
    ``upload`` is the body of an operation that takes bytes.
    """

    path: Mapping[str, str] = {}
    query: Any = None
    body: Any = None
    idempotency_key: str | None = None
    upload: Iterable[bytes] = ()


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """A reply of bytes: a descriptor to read ``size`` bytes from and close, and what they are."""

    descriptor: int
    size: int
    media_type: str
    name: str
    mode: int | None = None


def create_sandbox(engine: Engine, actor: Actor, call: Arguments) -> views.SandboxView:
    """Create a sandbox."""
    return present.sandbox(engine.create_sandbox(actor, call.body, call.idempotency_key))


def list_sandboxes(engine: Engine, actor: Actor, call: Arguments) -> views.SandboxPage:
    """List sandboxes."""
    return present.sandbox_page(engine.list_sandboxes(actor, call.query.limit, call.query.cursor))


def get_sandbox(engine: Engine, actor: Actor, call: Arguments) -> views.SandboxView:
    """Get a sandbox."""
    return present.sandbox(engine.get_sandbox(actor, call.path["sandbox"]))


def delete_sandbox(engine: Engine, actor: Actor, call: Arguments) -> views.Deleted:
    """Delete a sandbox."""
    return views.Deleted(id=engine.delete_sandbox(actor, call.path["sandbox"]).id)


def execute(engine: Engine, actor: Actor, call: Arguments) -> views.ExecView:
    """Run a command to its end."""
    return present.execution(engine.execute(actor, call.path["sandbox"], call.body))


def read_file(engine: Engine, actor: Actor, call: Arguments) -> Content:
    """Open a file of a sandbox."""
    return _content(engine.read_file(actor, call.path["sandbox"], call.query.path), call.query.path)


def write_file(engine: Engine, actor: Actor, call: Arguments) -> views.Written:
    """Write a file of a sandbox."""
    mode = None if call.query.mode is None else int(call.query.mode, 8)
    return present.written(engine.write_file(actor, call.path["sandbox"], call.query.path, call.upload, mode))


def list_directory(engine: Engine, actor: Actor, call: Arguments) -> views.Listing:
    """List a directory of a sandbox."""
    entries = engine.list_directory(actor, call.path["sandbox"], call.query.path)
    return present.listing(call.query.path, entries)


def baseline(engine: Engine, actor: Actor, call: Arguments) -> views.BaselineView:
    """Remember the tree."""
    return present.baseline(engine.baseline(actor, call.path["sandbox"]))


def changes(engine: Engine, actor: Actor, call: Arguments) -> views.ChangesView:
    """Compare the tree with the baseline."""
    sandbox = engine.get_sandbox(actor, call.path["sandbox"])
    return present.changes(sandbox.id, engine.changes(actor, sandbox.id, call.query.path))


def dry_run(engine: Engine, actor: Actor, call: Arguments) -> views.DryRunView:
    """Run a command and keep nothing."""
    return present.dry_run(engine.dry_run(actor, call.path["sandbox"], call.body))


def speculate(engine: Engine, actor: Actor, call: Arguments) -> views.ChangesetView:
    """Run a command and stage what it changed."""
    return present.changeset(engine.speculate(actor, call.path["sandbox"], call.body))


def list_changesets(engine: Engine, actor: Actor, call: Arguments) -> views.ChangesetPage:
    """List the changesets of a sandbox."""
    page = engine.list_changesets(actor, call.path["sandbox"], call.query.limit, call.query.cursor)
    return present.changeset_page(page)


def get_changeset(engine: Engine, actor: Actor, call: Arguments) -> views.ChangesetView:
    """Get a changeset."""
    return present.changeset(engine.get_changeset(actor, *_names(call)))


def diff(engine: Engine, actor: Actor, call: Arguments) -> views.DiffView:
    """Get a changeset's text diffs."""
    return present.diff(call.path["changeset"], engine.diff(actor, *_names(call), call.query.path))


def changeset_file(engine: Engine, actor: Actor, call: Arguments) -> Content:
    """Open the staged content of a file."""
    path = "/" + call.path["path"].removeprefix("/")
    return _content(engine.changeset_file(actor, *_names(call), path), path)


def approve(engine: Engine, actor: Actor, call: Arguments) -> views.ChangesetView:
    """Approve a changeset."""
    return present.changeset(engine.approve(actor, *_names(call), call.body))


def reject(engine: Engine, actor: Actor, call: Arguments) -> views.ChangesetView:
    """Reject a changeset."""
    return present.changeset(engine.reject(actor, *_names(call), call.body))


def apply(engine: Engine, actor: Actor, call: Arguments) -> views.ChangesetView:
    """Apply a changeset."""
    return present.changeset(engine.apply(actor, *_names(call), call.body))


def revert(engine: Engine, actor: Actor, call: Arguments) -> views.ChangesetView:
    """Make the inverse of a changeset."""
    return present.changeset(engine.revert(actor, *_names(call), call.body))


def rerun(engine: Engine, actor: Actor, call: Arguments) -> views.ChangesetView:
    """Repeat a changeset's command."""
    return present.changeset(engine.rerun(actor, *_names(call), call.body))


def compare(engine: Engine, actor: Actor, call: Arguments) -> views.Comparison:
    """Compare changesets."""
    return present.comparison(engine.compare(actor, call.path["sandbox"], call.query.changeset))


def export(engine: Engine, actor: Actor, call: Arguments) -> Content:
    """Write a changeset out."""
    form = call.query.format
    name = f"{call.path['changeset']}.{form}"
    media_type = "text/x-diff" if form == "patch" else "application/x-tar"
    return _content(engine.export(actor, *_names(call), form), name, media_type)


def wait(engine: Engine, actor: Actor, call: Arguments) -> views.ChangesetView:
    """Wait for a decision."""
    return present.changeset(engine.wait(actor, *_names(call), call.query.timeout_seconds))


def audit(engine: Engine, actor: Actor, call: Arguments) -> views.AuditPage:
    """List or await audit lines."""
    query = call.query
    filters = AuditFilter(
        sandbox_id=query.sandbox_id,
        changeset=query.changeset,
        event=query.event,
        actor=query.actor,
        since=None if query.since is None else _seconds(query.since),
    )
    if query.wait_seconds:
        return present.audit_page(engine.wait_for_audit(actor, filters, query.cursor, query.wait_seconds))
    return present.audit_page(engine.audit(actor, filters, query.limit, query.cursor))


def create_key(engine: Engine, actor: Actor, call: Arguments) -> views.NewKey:
    """Issue a key."""
    return present.new_key(engine.create_key(actor, call.body))


def list_keys(engine: Engine, actor: Actor, call: Arguments) -> views.KeyList:
    """List the keys."""
    return views.KeyList(items=[present.key(key) for key in engine.list_keys(actor)])


def revoke_key(engine: Engine, actor: Actor, call: Arguments) -> views.KeyView:
    """Revoke a key."""
    return present.key(engine.revoke_key(actor, call.path["key"]))


def doctor(engine: Engine, actor: Actor, call: Arguments) -> views.Findings:
    """Say what works here."""
    return present.findings(engine.doctor(actor))


def health(engine: Engine, actor: Actor, call: Arguments) -> views.Health:
    """Say that the engine answers."""
    return present.health(engine.health())


def _names(call: Arguments) -> tuple[str, str]:
    return call.path["sandbox"], call.path["changeset"]


def _content(file: Any, path: str, media_type: str = "application/octet-stream") -> Content:
    name = path.rpartition("/")[2]
    return Content(descriptor=file.descriptor, size=file.size, media_type=media_type, name=name, mode=file.mode)


def _seconds(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise FluxError(
            Code.INVALID,
            f"cannot read the time {printable(text)[:80]!r}: write it as 2024-05-01T12:00:00Z",
            {"field": "since"},
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
