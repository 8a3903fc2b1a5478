"""What each operation does: takes a call's arguments, asks the platform, returns a view.

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
    from flux.control.platform import Platform
    from flux.core.access import Actor


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


def create_sandbox(platform: Platform, actor: Actor, call: Arguments) -> views.SandboxView:
    """Create a sandbox."""
    return present.sandbox(platform.create_sandbox(actor, call.body, call.idempotency_key))


def list_sandboxes(platform: Platform, actor: Actor, call: Arguments) -> views.SandboxPage:
    """List sandboxes."""
    return present.sandbox_page(platform.list_sandboxes(actor, call.query.limit, call.query.cursor))


def get_sandbox(platform: Platform, actor: Actor, call: Arguments) -> views.SandboxView:
    """Get a sandbox."""
    return present.sandbox(platform.get_sandbox(actor, call.path["sandbox"]))


def delete_sandbox(platform: Platform, actor: Actor, call: Arguments) -> views.Deleted:
    """Delete a sandbox."""
    return views.Deleted(id=platform.delete_sandbox(actor, call.path["sandbox"]).sandbox.id)


def pause(platform: Platform, actor: Actor, call: Arguments) -> views.SandboxView:
    """Pause a sandbox."""
    return present.sandbox(platform.pause(actor, call.path["sandbox"], call.body))


def resume(platform: Platform, actor: Actor, call: Arguments) -> views.SandboxView:
    """Resume a sandbox."""
    return present.sandbox(platform.resume(actor, call.path["sandbox"], call.body))


def snapshot(platform: Platform, actor: Actor, call: Arguments) -> views.ArtifactView:
    """Take a snapshot."""
    return present.artifact(platform.snapshot(actor, call.path["sandbox"], call.body).artifact)


def fork(platform: Platform, actor: Actor, call: Arguments) -> views.SandboxList:
    """Fork a sandbox."""
    return present.sandboxes(platform.fork(actor, call.path["sandbox"], call.body))


def metrics(platform: Platform, actor: Actor, call: Arguments) -> views.MetricList:
    """Tell what a sandbox used."""
    start, end = _seconds(call.query.start, "start"), _seconds(call.query.end, "end")
    return present.metrics(*platform.metrics(actor, call.path["sandbox"], start, end))


def list_artifacts(platform: Platform, actor: Actor, call: Arguments) -> views.ArtifactList:
    """List artifacts."""
    return present.artifacts(platform.list_artifacts(actor, call.query.sandbox))


def get_artifact(platform: Platform, actor: Actor, call: Arguments) -> views.ArtifactView:
    """Get an artifact."""
    return present.artifact(platform.get_artifact(actor, call.path["artifact"]))


def delete_artifact(platform: Platform, actor: Actor, call: Arguments) -> views.ArtifactView:
    """Forget a snapshot."""
    return present.artifact(platform.delete_artifact(actor, call.path["artifact"]))


def verify_artifact(platform: Platform, actor: Actor, call: Arguments) -> views.ArtifactView:
    """Hash an artifact."""
    return present.artifact(platform.verify_artifact(actor, call.path["artifact"]))


def collect_artifacts(platform: Platform, actor: Actor, call: Arguments) -> views.CollectedView:
    """Clear up the object store."""
    return present.collected(platform.collect_artifacts(actor))


def list_nodes(platform: Platform, actor: Actor, call: Arguments) -> views.NodeList:
    """List nodes."""
    return present.nodes(platform.list_nodes(actor))


def get_node(platform: Platform, actor: Actor, call: Arguments) -> views.NodeView:
    """Get a node."""
    return present.node(platform.get_node(actor, call.path["node"]))


def add_node(platform: Platform, actor: Actor, call: Arguments) -> views.NodeView:
    """Register a node."""
    return present.node(platform.add_node(actor, call.body))


def forget_node(platform: Platform, actor: Actor, call: Arguments) -> views.NodeView:
    """Declare a node lost."""
    return present.node(platform.forget_node(actor, call.path["node"]))


def execute(platform: Platform, actor: Actor, call: Arguments) -> views.ExecView:
    """Run a command to its end."""
    return present.execution(platform.execute(actor, call.path["sandbox"], call.body))


def read_file(platform: Platform, actor: Actor, call: Arguments) -> Content:
    """Open a file of a sandbox."""
    return _content(platform.read_file(actor, call.path["sandbox"], call.query.path), call.query.path)


def write_file(platform: Platform, actor: Actor, call: Arguments) -> views.Written:
    """Write a file of a sandbox."""
    mode = None if call.query.mode is None else int(call.query.mode, 8)
    return present.written(platform.write_file(actor, call.path["sandbox"], call.query.path, call.upload, mode))


def list_directory(platform: Platform, actor: Actor, call: Arguments) -> views.Listing:
    """List a directory of a sandbox."""
    entries = platform.list_directory(actor, call.path["sandbox"], call.query.path)
    return present.listing(call.query.path, entries)


def baseline(platform: Platform, actor: Actor, call: Arguments) -> views.BaselineView:
    """Remember the tree."""
    return present.baseline(platform.baseline(actor, call.path["sandbox"]))


def changes(platform: Platform, actor: Actor, call: Arguments) -> views.ChangesView:
    """Compare the tree with the baseline."""
    sandbox_id, found = platform.changes(actor, call.path["sandbox"], call.query.path)
    return present.changes(sandbox_id, found)


def dry_run(platform: Platform, actor: Actor, call: Arguments) -> views.DryRunView:
    """Run a command and keep nothing."""
    return present.dry_run(platform.dry_run(actor, call.path["sandbox"], call.body))


def speculate(platform: Platform, actor: Actor, call: Arguments) -> views.ChangesetView:
    """Run a command and stage what it changed."""
    return present.changeset(platform.speculate(actor, call.path["sandbox"], call.body))


def list_changesets(platform: Platform, actor: Actor, call: Arguments) -> views.ChangesetPage:
    """List the changesets of a sandbox."""
    page = platform.list_changesets(actor, call.path["sandbox"], call.query.limit, call.query.cursor)
    return present.changeset_page(page)


def get_changeset(platform: Platform, actor: Actor, call: Arguments) -> views.ChangesetView:
    """Get a changeset."""
    return present.changeset(platform.get_changeset(actor, *_names(call)))


def diff(platform: Platform, actor: Actor, call: Arguments) -> views.DiffView:
    """Get a changeset's text diffs."""
    return present.diff(call.path["changeset"], platform.diff(actor, *_names(call), call.query.path))


def changeset_file(platform: Platform, actor: Actor, call: Arguments) -> Content:
    """Open the staged content of a file."""
    path = "/" + call.path["path"].removeprefix("/")
    return _content(platform.changeset_file(actor, *_names(call), path), path)


def approve(platform: Platform, actor: Actor, call: Arguments) -> views.ChangesetView:
    """Approve a changeset."""
    return present.changeset(platform.approve(actor, *_names(call), call.body))


def reject(platform: Platform, actor: Actor, call: Arguments) -> views.ChangesetView:
    """Reject a changeset."""
    return present.changeset(platform.reject(actor, *_names(call), call.body))


def apply(platform: Platform, actor: Actor, call: Arguments) -> views.ChangesetView:
    """Apply a changeset."""
    return present.changeset(platform.apply(actor, *_names(call), call.body))


def revert(platform: Platform, actor: Actor, call: Arguments) -> views.ChangesetView:
    """Make the inverse of a changeset."""
    return present.changeset(platform.revert(actor, *_names(call), call.body))


def rerun(platform: Platform, actor: Actor, call: Arguments) -> views.ChangesetView:
    """Repeat a changeset's command."""
    return present.changeset(platform.rerun(actor, *_names(call), call.body))


def compare(platform: Platform, actor: Actor, call: Arguments) -> views.Comparison:
    """Compare changesets."""
    return present.comparison(platform.compare(actor, call.path["sandbox"], call.query.changeset))


def export(platform: Platform, actor: Actor, call: Arguments) -> Content:
    """Write a changeset out."""
    form = call.query.format
    name = f"{call.path['changeset']}.{form}"
    media_type = "text/x-diff" if form == "patch" else "application/x-tar"
    return _content(platform.export(actor, *_names(call), form), name, media_type)


def wait(platform: Platform, actor: Actor, call: Arguments) -> views.ChangesetView:
    """Wait for a decision."""
    return present.changeset(platform.wait(actor, *_names(call), call.query.timeout_seconds))


def audit(platform: Platform, actor: Actor, call: Arguments) -> views.AuditPage:
    """List or await audit lines."""
    query = call.query
    filters = AuditFilter(
        sandbox_id=query.sandbox_id,
        changeset=query.changeset,
        event=query.event,
        actor=query.actor,
        since=_seconds(query.since, "since"),
    )
    if query.wait_seconds:
        return present.audit_page(platform.wait_for_audit(actor, filters, query.cursor, query.wait_seconds))
    return present.audit_page(platform.audit(actor, filters, query.limit, query.cursor))


def create_key(platform: Platform, actor: Actor, call: Arguments) -> views.NewKey:
    """Issue a key."""
    return present.new_key(platform.create_key(actor, call.body))


def list_keys(platform: Platform, actor: Actor, call: Arguments) -> views.KeyList:
    """List the keys."""
    return views.KeyList(items=[present.key(key) for key in platform.list_keys(actor)])


def revoke_key(platform: Platform, actor: Actor, call: Arguments) -> views.KeyView:
    """Revoke a key."""
    return present.key(platform.revoke_key(actor, call.path["key"]))


def doctor(platform: Platform, actor: Actor, call: Arguments) -> views.Findings:
    """Say what works here."""
    return present.findings(platform.doctor(actor))


def health(platform: Platform, actor: Actor, call: Arguments) -> views.Health:
    """Say that the engine answers."""
    return present.health(platform.health())


def _names(call: Arguments) -> tuple[str, str]:
    return call.path["sandbox"], call.path["changeset"]


def _content(file: Any, path: str, media_type: str = "application/octet-stream") -> Content:
    name = path.rpartition("/")[2]
    return Content(descriptor=file.descriptor, size=file.size, media_type=media_type, name=name, mode=file.mode)


def _seconds(text: str | None, field: str) -> float | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise FluxError(
            Code.INVALID,
            f"cannot read the time {printable(text)[:80]!r}: write it as 2024-05-01T12:00:00Z",
            {"field": field},
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
