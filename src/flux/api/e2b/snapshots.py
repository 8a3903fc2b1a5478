"""E2B's routes of snapshots and forks (spec: e2b, §3). A snapshot is told by its artifact's id, and has no tags."""

from __future__ import annotations

from typing import Any

from flux.api.e2b import errors, shapes
from flux.api.e2b.endpoint import Answer, Call, Row
from flux.api.e2b.listing import NEXT_TOKEN, limit_of
from flux.core.control import ArtifactStatus
from flux.core.errors import Code, FluxError
from flux.core.requests import Fork, TakeSnapshot

_FORKS_MAX = 20
_FORK_TIMEOUT_SECONDS = 15


def snapshot(call: Call) -> Answer:
    """Save a sandbox to a snapshot, and let it run on."""
    made = call.platform.snapshot(call.actor, call.sandbox, TakeSnapshot(name=call.body.name or None))
    return Answer(status=201, body=_shown(made.artifact))


def page(call: Call) -> Answer:
    """List snapshots, newest first, a page at a time: of one sandbox, there or gone, and of one name, if asked for."""
    of, name, after = call.one("sandboxID"), call.one("name"), call.one("nextToken")
    found = [
        artifact
        for artifact in call.platform.list_artifacts(call.actor)
        if artifact.kind == "snapshot" and of in (None, artifact.sandbox_id) and name in (None, artifact.name)
    ]
    found.sort(key=_place, reverse=True)
    limit = limit_of(call)
    left = found if after is None else [artifact for artifact in found if _place(artifact) < _read_place(after)]
    headers = {NEXT_TOKEN: _token(left[limit - 1])} if len(left) > limit else {}
    return Answer(body=[_shown(artifact) for artifact in left[:limit]], headers=headers)


def delete(call: Call) -> Answer:
    """Forget a snapshot. The route is that of templates, which are the administrator's own."""
    call.platform.forget_snapshot(call.actor, call.path["template"])
    return Answer(status=204)


def fork(call: Call) -> Answer:
    """Make running sandboxes of one as it is. All of them start, or each is told by the error of the one that did not.

    What fails before any was to start is the error of the request.
    """
    count = 1 if call.body.count is None else call.body.count
    if not 1 <= count <= _FORKS_MAX:
        raise FluxError(Code.INVALID, f"cannot fork {count} times: 1 to {_FORKS_MAX} can be made at once")
    ttl = _FORK_TIMEOUT_SECONDS if call.body.timeout is None else call.body.timeout
    try:
        made = call.platform.fork(call.actor, call.sandbox, Fork(count=count, ttl_seconds=ttl))
    except FluxError as error:
        if error.details.get("wake") != "failed":
            raise
        return Answer(status=201, body=[{"error": errors.body(error, "create")}] * count)
    return Answer(status=201, body=[{"sandbox": shapes.made(one, call.actor, call.domain)} for one in made])


def _shown(artifact: ArtifactStatus) -> dict[str, Any]:
    return {"snapshotID": artifact.id, "names": [] if artifact.name is None else [artifact.name]}


def _place(artifact: ArtifactStatus) -> tuple[float, str]:
    return artifact.created_at, artifact.id


def _token(artifact: ArtifactStatus) -> str:
    return f"{artifact.created_at.hex()}_{artifact.id}"


def _read_place(token: str) -> tuple[float, str]:
    time, _, identity = token.partition("_")
    try:
        return float.fromhex(time), identity
    except (ValueError, OverflowError):
        raise FluxError(
            Code.INVALID,
            "cannot read the list on: nextToken is not one of its own; leave it out",
            {"field": "nextToken"},
        ) from None


ROWS = (
    Row(
        method="POST",
        path="/sandboxes/{sandbox}/snapshots",
        operation="sandbox.snapshot",
        handler=snapshot,
        shape=shapes.Snapshot,
        slow=True,
    ),
    Row(
        method="POST",
        path="/sandboxes/{sandbox}/fork",
        operation="sandbox.fork",
        handler=fork,
        shape=shapes.Fork,
        slow=True,
    ),
    Row(method="GET", path="/snapshots", operation="artifact.list", handler=page),
)
#: It stands last, as it takes whatever no other route of templates does: an encoded slash is part of the id.
LAST = (Row(method="DELETE", path="/templates/{template...}", operation="artifact.delete", handler=delete),)
