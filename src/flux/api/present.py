"""Turns the engine's results into views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

import flux
from flux.api import views
from flux.core import paths
from flux.core.access import Key
from flux.core.audit import AuditEvent
from flux.core.changeset import Changes, Changeset, Output
from flux.core.control import ArtifactStatus, Collected, NodeStatus, SandboxStatus
from flux.core.sandbox import BASE_TEMPLATE
from flux.ports.substrate import Check

if TYPE_CHECKING:
    from flux.engine import results
    from flux.engine.lifecycle.meter import Sample

_TIMES = (
    "created_at",
    "expires_at",
    "decided_at",
    "applied_at",
    "finished_at",
    "baseline_at",
    "revoked_at",
    "added_at",
    "seen_at",
    "forgotten_at",
)


def rfc3339(seconds: float) -> str:
    """Return a wall-clock time as text: ``2024-05-01T12:00:00.000Z``."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _shared(view: type[views.View], record: Any, *, but: Iterable[str] = ()) -> dict[str, Any]:
    """Return the fields that a view has under the record's own names, with times as text."""
    names = (set(view.__struct_fields__) & set(record.__struct_fields__)) - set(but)
    fields = {name: getattr(record, name) for name in names}
    return {name: _time(value) if name in _TIMES else value for name, value in fields.items()}


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else rfc3339(seconds)


def _output(stdout: Output, stderr: Output) -> dict[str, Any]:
    return {
        "stdout": stdout.text,
        "stderr": stderr.text,
        "stdout_base64": UNSET if stdout.base64 is None else stdout.base64,
        "stderr_base64": UNSET if stderr.base64 is None else stderr.base64,
        "stdout_bytes": stdout.size,
        "stderr_bytes": stderr.size,
    }


def _exact(path: str) -> tuple[str, str | UnsetType]:
    text, encoded = paths.to_json(path)
    return text, UNSET if encoded is None else encoded


def _counts(changes: Changes) -> dict[str, int]:
    return {
        "added": len(changes.added),
        "modified": len(changes.modified),
        "deleted": len(changes.deleted),
        "type_changed": len(changes.type_changed),
        "unchanged": changes.unchanged,
    }


def sandbox(status: SandboxStatus) -> views.SandboxView:
    """Return a sandbox's view."""
    record = status.sandbox
    own = ("net_ports", "mounts", "state", "template", "generation")
    fields = _shared(views.SandboxView, record, but=own)
    mounts = [views.MountView(source=mount.source, target=mount.target) for mount in record.mounts]
    return views.SandboxView(
        **fields,
        state=status.state.value,
        template=BASE_TEMPLATE if record.built_in else record.template,
        net_ports=list(record.net_ports),
        mounts=mounts,
        place=record.place,
        generation=status.generation,
        node=status.node,
        artifact_id=None if status.artifact is None else status.artifact.id,
        artifact_durable=status.artifact is not None and status.artifact.durable,
        woke_from=status.woke_from,
        stopped=status.stopped,
    )


def sandbox_page(page: results.Page[SandboxStatus]) -> views.SandboxPage:
    """Return a page of sandboxes."""
    return views.SandboxPage(items=[sandbox(status) for status in page.items], next_cursor=page.next_cursor)


def metrics(sandbox_id: str, samples: Iterable[Sample]) -> views.MetricList:
    """Return what a sandbox used."""
    items = [views.MetricView(**{**msgspec.structs.asdict(sample), "at": rfc3339(sample.at)}) for sample in samples]
    return views.MetricList(sandbox_id=sandbox_id, items=items)


def sandboxes(statuses: Iterable[SandboxStatus]) -> views.SandboxList:
    """Return sandboxes."""
    return views.SandboxList(items=[sandbox(status) for status in statuses])


def artifact(status: ArtifactStatus) -> views.ArtifactView:
    """Return an artifact's view."""
    return views.ArtifactView(**_shared(views.ArtifactView, status))


def artifacts(statuses: Iterable[ArtifactStatus]) -> views.ArtifactList:
    """Return artifacts."""
    return views.ArtifactList(items=[artifact(status) for status in statuses])


def collected(result: Collected) -> views.CollectedView:
    """Return what a collection did."""
    return views.CollectedView(**_shared(views.CollectedView, result))


def node(status: NodeStatus) -> views.NodeView:
    """Return a node's view."""
    return views.NodeView(**_shared(views.NodeView, status, but=("kinds",)), kinds=list(status.kinds))


def nodes(statuses: Iterable[NodeStatus]) -> views.NodeList:
    """Return nodes."""
    return views.NodeList(items=[node(status) for status in statuses])


def execution(result: results.ExecResult) -> views.ExecView:
    """Return a command's end and output."""
    return views.ExecView(
        **_shared(views.ExecView, result, but=("stdout", "stderr")), **_output(result.stdout, result.stderr)
    )


def written(result: results.Written) -> views.Written:
    """Return what was written."""
    text, encoded = _exact(result.path)
    return views.Written(path=text, path_base64=encoded, size=result.size)


def listing(path: str, entries: Iterable[results.DirectoryEntry]) -> views.Listing:
    """Return a directory's entries."""
    text, encoded = _exact(path)
    return views.Listing(path=text, path_base64=encoded, entries=[_listed(entry) for entry in entries])


def _listed(entry: results.DirectoryEntry) -> views.ListedEntry:
    text, encoded = _exact(entry.name)
    return views.ListedEntry(name=text, name_base64=encoded, entry=entry.entry)


def baseline(result: results.Baseline) -> views.BaselineView:
    """Return a remembered tree's view."""
    return views.BaselineView(**_shared(views.BaselineView, result))


def changes(sandbox_id: str, found: Changes) -> views.ChangesView:
    """Return what changed since the baseline."""
    return views.ChangesView(sandbox_id=sandbox_id, counts=_counts(found), changes=found)


def dry_run(result: results.DryRunResult) -> views.DryRunView:
    """Return what a dry run did."""
    fields = _shared(views.DryRunView, result, but=("stdout", "stderr"))
    return views.DryRunView(**fields, **_output(result.stdout, result.stderr))


def changeset_summary(record: Changeset) -> views.ChangesetSummary:
    """Return the list form of a changeset."""
    fields = _shared(views.ChangesetSummary, record)
    return views.ChangesetSummary(**fields, unstaged_count=len(record.unstaged))


def changeset(detail: results.ChangesetDetail) -> views.ChangesetView:
    """Return the full form of a changeset."""
    record = detail.changeset
    fields = _shared(views.ChangesetView, record, but=("stdout", "stderr"))
    return views.ChangesetView(**fields, **_output(record.stdout, record.stderr), changes=detail.changes)


def changeset_page(page: results.Page[Changeset]) -> views.ChangesetPage:
    """Return a page of changesets."""
    items = [changeset_summary(record) for record in page.items]
    return views.ChangesetPage(items=items, next_cursor=page.next_cursor)


def diff(changeset_id: str, files: Iterable[results.FileDiff]) -> views.DiffView:
    """Return a changeset's differences."""
    return views.DiffView(changeset_id=changeset_id, files=[_file_diff(file) for file in files])


def _file_diff(file: results.FileDiff) -> views.FileDiffView:
    fields = _shared(views.FileDiffView, file, but=("path_base64",))
    return views.FileDiffView(**fields, path_base64=UNSET if file.path_base64 is None else file.path_base64)


def comparison(result: results.Comparison) -> views.Comparison:
    """Return changesets side by side."""
    return views.Comparison(
        changesets=[changeset_summary(record) for record in result.changesets],
        entries=[_compared(entry) for entry in result.entries],
    )


def _compared(entry: results.ComparedEntry) -> views.ComparedEntry:
    fields = _shared(views.ComparedEntry, entry, but=("path_base64",))
    return views.ComparedEntry(**fields, path_base64=UNSET if entry.path_base64 is None else entry.path_base64)


def key(record: Key) -> views.KeyView:
    """Return a key's view."""
    return views.KeyView(**_shared(views.KeyView, record))


def new_key(made: results.NewKey) -> views.NewKey:
    """Return a key just made, with its secret."""
    return views.NewKey(**_shared(views.NewKey, made.key, but=("key",)), key=made.secret)


def audit_page(page: results.Page[AuditEvent]) -> views.AuditPage:
    """Return a page of audit lines."""
    return views.AuditPage(items=[_audit_line(event) for event in page.items], next_cursor=page.next_cursor)


def _audit_line(event: AuditEvent) -> dict[str, Any]:
    own: Mapping[str, Any] = {
        "id": event.id,
        "time": rfc3339(event.time),
        "event": event.event,
        "actor": event.actor,
        "role": event.role,
        "sandbox_id": event.sandbox_id,
        "vm_id": event.vm_id,
        "changeset": event.changeset,
    }
    return {**own, **{name: value for name, value in event.details.items() if name not in own}}


def findings(checks: list[Check]) -> views.Findings:
    """Return what works on this machine."""
    return views.Findings(ok=all(check.ok or not check.required for check in checks), checks=checks)


def health(result: results.Health) -> views.Health:
    """Return that the engine answers."""
    return views.Health(
        status=result.status, version=flux.__version__, sandboxes=result.sandboxes, running=result.running
    )
