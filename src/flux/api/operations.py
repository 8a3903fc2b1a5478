"""The one table of operations, from which routes, OpenAPI and both clients derive. ``api.calls`` has what rows do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from flux.api import calls, queries, views
from flux.core import requests
from flux.core.access import ROLES, Role
from flux.core.errors import Code, FluxError

if TYPE_CHECKING:
    from flux.control.platform import Platform

Method: TypeAlias = Literal["GET", "POST", "PUT", "DELETE"]
Call: TypeAlias = Callable[["Platform", Any, calls.Arguments], Any]


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One thing a caller can ask for.

    ``path`` is the route; its ``{parameters}`` are ids, ``{path...}`` the rest of the route. ``reply`` is the type of
    the JSON reply, ``None`` for bytes. ``upload`` tells that the request's body is bytes. ``open`` operations need no
    credentials. ``errors`` are the refusals beyond those that every operation shares.
    """

    name: str
    method: Method
    path: str
    summary: str
    call: Call
    request: type[requests.Request] | None = None
    query: type[queries.Query] | None = None
    reply: Any = None
    status: int = 200
    upload: bool = False
    idempotent_by_key: bool = False
    open: bool = False
    errors: tuple[Code, ...] = ()

    @property
    def roles(self) -> frozenset[Role]:
        """Who may call it: the engine's own table (spec: access)."""
        return ROLES[self.name]

    @property
    def data(self) -> bool:
        """Whether it is done on the node where the sandbox runs: the data plane (spec: generations, §6)."""
        return self.name in _DATA or self.name.startswith(("files.", "changeset."))


_DATA = frozenset(f"sandbox.{name}" for name in ("metrics", "exec", "baseline", "changes", "dry-run", "speculate"))

SANDBOX = "/v1/sandboxes/{sandbox}"
NODE = "/v1/nodes/{node}"
ARTIFACT = "/v1/artifacts/{artifact}"
CHANGESET = SANDBOX + "/changesets/{changeset}"
_MOVES = (Code.CONFLICT, Code.ILLEGAL_STATE, Code.FENCED, Code.EXHAUSTED)
_RUNS = (Code.TOO_LARGE, Code.EXHAUSTED, Code.CONFLICT)
_DECIDES = (Code.ILLEGAL_STATE, Code.CONFLICT, Code.EXPIRED)

_TABLE = (
    Operation(
        name="sandbox.create",
        method="POST",
        path="/v1/sandboxes",
        summary="Create a sandbox",
        call=calls.create_sandbox,
        request=requests.CreateSandbox,
        reply=views.SandboxView,
        status=201,
        idempotent_by_key=True,
        errors=(Code.NOT_FOUND, Code.ALREADY_EXISTS, Code.CONFLICT, Code.NOT_APPLICABLE, Code.EXHAUSTED),
    ),
    Operation(
        name="sandbox.list",
        method="GET",
        path="/v1/sandboxes",
        summary="List the sandboxes, newest first",
        call=calls.list_sandboxes,
        query=queries.PageQuery,
        reply=views.SandboxPage,
    ),
    Operation(
        name="sandbox.get",
        method="GET",
        path=SANDBOX,
        summary="Get a sandbox by id or name",
        call=calls.get_sandbox,
        reply=views.SandboxView,
    ),
    Operation(
        name="sandbox.metrics",
        method="GET",
        path=SANDBOX + "/metrics",
        summary="What a sandbox used lately, sampled every few seconds while it runs; oldest first",
        call=calls.metrics,
        query=queries.MetricsQuery,
        reply=views.MetricList,
    ),
    Operation(
        name="sandbox.delete",
        method="DELETE",
        path=SANDBOX,
        summary="Delete a sandbox, whatever it is doing; its open changesets are rejected",
        call=calls.delete_sandbox,
        reply=views.Deleted,
        errors=(Code.CONFLICT,),
    ),
    Operation(
        name="sandbox.pause",
        method="POST",
        path=SANDBOX + "/pause",
        summary="Save a sandbox's files and end its processes",
        call=calls.pause,
        request=requests.Pause,
        reply=views.SandboxView,
        errors=(*_MOVES, Code.NOT_APPLICABLE),
    ),
    Operation(
        name="sandbox.resume",
        method="POST",
        path=SANDBOX + "/resume",
        summary="Make a sandbox run; `woke_from` says from what",
        call=calls.resume,
        request=requests.Resume,
        reply=views.SandboxView,
        errors=_MOVES,
    ),
    Operation(
        name="sandbox.snapshot",
        method="POST",
        path=SANDBOX + "/snapshots",
        summary="Save a sandbox to an artifact of its own and let it run on",
        call=calls.snapshot,
        request=requests.TakeSnapshot,
        reply=views.ArtifactView,
        status=201,
        errors=(*_MOVES, Code.ALREADY_EXISTS, Code.NOT_APPLICABLE),
    ),
    Operation(
        name="sandbox.fork",
        method="POST",
        path=SANDBOX + "/fork",
        summary="Make running sandboxes of one as it is now, or as it was paused; all of them or none",
        call=calls.fork,
        request=requests.Fork,
        reply=views.SandboxList,
        status=201,
        errors=(*_MOVES, Code.ALREADY_EXISTS, Code.NOT_APPLICABLE),
    ),
    Operation(
        name="sandbox.exec",
        method="POST",
        path=SANDBOX + "/exec",
        summary="Run a command in the real sandbox",
        call=calls.execute,
        request=requests.Exec,
        reply=views.ExecView,
        errors=(Code.EXHAUSTED, Code.CONFLICT),
    ),
    Operation(
        name="files.read",
        method="GET",
        path=SANDBOX + "/files",
        summary="Read a file",
        call=calls.read_file,
        query=queries.PathQuery,
    ),
    Operation(
        name="files.write",
        method="PUT",
        path=SANDBOX + "/files",
        summary="Write a file as a whole; its directories are created",
        call=calls.write_file,
        query=queries.WriteQuery,
        reply=views.Written,
        upload=True,
        errors=(Code.TOO_LARGE, Code.EXHAUSTED, Code.CONFLICT),
    ),
    Operation(
        name="files.list",
        method="GET",
        path=SANDBOX + "/files/list",
        summary="List a directory",
        call=calls.list_directory,
        query=queries.PathQuery,
        reply=views.Listing,
    ),
    Operation(
        name="sandbox.baseline",
        method="POST",
        path=SANDBOX + "/baseline",
        summary="Remember the tree as it is now, for later comparison",
        call=calls.baseline,
        reply=views.BaselineView,
        errors=(Code.CONFLICT, Code.TOO_LARGE),
    ),
    Operation(
        name="sandbox.changes",
        method="GET",
        path=SANDBOX + "/changes",
        summary="What changed since the baseline",
        call=calls.changes,
        query=queries.ScopeQuery,
        reply=views.ChangesView,
        errors=(Code.CONFLICT,),
    ),
    Operation(
        name="sandbox.dry-run",
        method="POST",
        path=SANDBOX + "/dry-run",
        summary="Run a command in a throwaway copy, report what it changed, keep nothing",
        call=calls.dry_run,
        request=requests.DryRun,
        reply=views.DryRunView,
        errors=_RUNS,
    ),
    Operation(
        name="sandbox.speculate",
        method="POST",
        path=SANDBOX + "/speculate",
        summary="Run a command in a throwaway copy and stage what it changed as a changeset",
        call=calls.speculate,
        request=requests.Speculate,
        reply=views.ChangesetView,
        status=201,
        errors=_RUNS,
    ),
    Operation(
        name="changeset.list",
        method="GET",
        path=SANDBOX + "/changesets",
        summary="List the changesets of a sandbox, newest first, without their entries",
        call=calls.list_changesets,
        query=queries.PageQuery,
        reply=views.ChangesetPage,
    ),
    Operation(
        name="changeset.get",
        method="GET",
        path=CHANGESET,
        summary="Get a changeset",
        call=calls.get_changeset,
        reply=views.ChangesetView,
    ),
    Operation(
        name="changeset.diff",
        method="GET",
        path=CHANGESET + "/diff",
        summary="Unified text diffs of a changeset's files",
        call=calls.diff,
        query=queries.ScopeQuery,
        reply=views.DiffView,
    ),
    Operation(
        name="changeset.file",
        method="GET",
        path=CHANGESET + "/files/{path...}",
        summary="Read the staged content of one file",
        call=calls.changeset_file,
        errors=(Code.ILLEGAL_STATE, Code.NOT_APPLICABLE),
    ),
    Operation(
        name="changeset.approve",
        method="POST",
        path=CHANGESET + "/approve",
        summary="Approve a changeset, or the part of it that `only` names",
        call=calls.approve,
        request=requests.Approve,
        reply=views.ChangesetView,
        errors=_DECIDES,
    ),
    Operation(
        name="changeset.reject",
        method="POST",
        path=CHANGESET + "/reject",
        summary="Reject a changeset; its staged contents are dropped",
        call=calls.reject,
        request=requests.Decide,
        reply=views.ChangesetView,
        errors=_DECIDES,
    ),
    Operation(
        name="changeset.apply",
        method="POST",
        path=CHANGESET + "/apply",
        summary="Apply an approved changeset to the real sandbox",
        call=calls.apply,
        request=requests.Decide,
        reply=views.ChangesetView,
        errors=(*_DECIDES, Code.NOT_APPLICABLE, Code.EXHAUSTED),
    ),
    Operation(
        name="changeset.revert",
        method="POST",
        path=CHANGESET + "/revert",
        summary="Make a pending changeset that holds the inverse of an applied one",
        call=calls.revert,
        request=requests.Decide,
        reply=views.ChangesetView,
        status=201,
        errors=(*_DECIDES, Code.NOT_APPLICABLE, Code.EXHAUSTED),
    ),
    Operation(
        name="changeset.rerun",
        method="POST",
        path=CHANGESET + "/rerun",
        summary="Repeat the command on the current base; the new changeset supersedes this one",
        call=calls.rerun,
        request=requests.Decide,
        reply=views.ChangesetView,
        status=201,
        errors=(*_RUNS, Code.ILLEGAL_STATE),
    ),
    Operation(
        name="changeset.compare",
        method="GET",
        path=SANDBOX + "/compare",
        summary="Compare changesets of one sandbox side by side",
        call=calls.compare,
        query=queries.CompareQuery,
        reply=views.Comparison,
    ),
    Operation(
        name="changeset.export",
        method="GET",
        path=CHANGESET + "/export",
        summary="Write a changeset out as a patch or a tar archive",
        call=calls.export,
        query=queries.ExportQuery,
        errors=(Code.ILLEGAL_STATE, Code.NOT_APPLICABLE),
    ),
    Operation(
        name="changeset.wait",
        method="GET",
        path=CHANGESET + "/wait",
        summary="Wait until a changeset is no longer pending, or the time is over",
        call=calls.wait,
        query=queries.WaitQuery,
        reply=views.ChangesetView,
    ),
    Operation(
        name="artifact.list",
        method="GET",
        path="/v1/artifacts",
        summary="List the artifacts of the sandboxes that the caller sees, newest first",
        call=calls.list_artifacts,
        query=queries.ArtifactsQuery,
        reply=views.ArtifactList,
        errors=(Code.NOT_FOUND,),
    ),
    Operation(
        name="artifact.get",
        method="GET",
        path=ARTIFACT,
        summary="Get an artifact by id, or a snapshot by name",
        call=calls.get_artifact,
        reply=views.ArtifactView,
    ),
    Operation(
        name="artifact.delete",
        method="DELETE",
        path=ARTIFACT,
        summary="Forget a snapshot; what nothing else needs of it is collected later",
        call=calls.delete_artifact,
        reply=views.ArtifactView,
        errors=(Code.CONFLICT, Code.NOT_APPLICABLE),
    ),
    Operation(
        name="artifact.verify",
        method="POST",
        path=ARTIFACT + "/verify",
        summary="Hash every part of an artifact where it lies",
        call=calls.verify_artifact,
        reply=views.ArtifactView,
    ),
    Operation(
        name="artifact.collect",
        method="POST",
        path="/v1/collect",
        summary="Remove from the object store what nothing needs; marked at one call, deleted at a later one",
        call=calls.collect_artifacts,
        reply=views.CollectedView,
        errors=(Code.NOT_APPLICABLE,),
    ),
    Operation(
        name="node.list",
        method="GET",
        path="/v1/nodes",
        summary="List the nodes",
        call=calls.list_nodes,
        reply=views.NodeList,
    ),
    Operation(
        name="node.get",
        method="GET",
        path=NODE,
        summary="Get a node",
        call=calls.get_node,
        reply=views.NodeView,
    ),
    Operation(
        name="node.add",
        method="POST",
        path="/v1/nodes",
        summary="Register a node by its manager's address, after asking it who it is",
        call=calls.add_node,
        request=requests.AddNode,
        reply=views.NodeView,
        status=201,
        errors=(Code.ALREADY_EXISTS, Code.CONFLICT),
    ),
    Operation(
        name="node.forget",
        method="DELETE",
        path=NODE,
        summary="Declare everything on a node lost, so that its sandboxes wake elsewhere from what is durable",
        call=calls.forget_node,
        reply=views.NodeView,
        errors=(Code.CONFLICT,),
    ),
    Operation(
        name="audit.list",
        method="GET",
        path="/v1/audit",
        summary="List audit lines, oldest first",
        call=calls.audit,
        query=queries.AuditQuery,
        reply=views.AuditPage,
    ),
    Operation(
        name="keys.create",
        method="POST",
        path="/v1/keys",
        summary="Issue a key; its secret is in this reply and nowhere else",
        call=calls.create_key,
        request=requests.CreateKey,
        reply=views.NewKey,
        status=201,
        errors=(Code.ALREADY_EXISTS,),
    ),
    Operation(
        name="keys.list",
        method="GET",
        path="/v1/keys",
        summary="List the keys, without their secrets",
        call=calls.list_keys,
        reply=views.KeyList,
    ),
    Operation(
        name="keys.revoke",
        method="DELETE",
        path="/v1/keys/{key}",
        summary="Revoke a key by id or name",
        call=calls.revoke_key,
        reply=views.KeyView,
    ),
    Operation(
        name="doctor",
        method="GET",
        path="/v1/doctor",
        summary="What works on this machine, why not, and what would fix it",
        call=calls.doctor,
        reply=views.Findings,
    ),
    Operation(
        name="health",
        method="GET",
        path="/healthz",
        summary="Tell that the engine answers",
        call=calls.health,
        reply=views.Health,
        open=True,
    ),
)

OPERATIONS = MappingProxyType({operation.name: operation for operation in _TABLE})


def operation_named(name: str) -> Operation:
    """Return the operation of that name.

    Raises:
        FluxError: ``internal``; callers name operations in their code, users do not.
    """
    try:
        return OPERATIONS[name]
    except KeyError:
        raise FluxError(Code.INTERNAL, f"cannot call {name!r}: there is no such operation") from None


def parameters(path: str) -> Iterable[str]:
    """Return the names of the parameters in a route."""
    return [part.strip("{}").removesuffix("...") for part in path.split("/") if part.startswith("{")]
