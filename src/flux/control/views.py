"""Looking at sandboxes: lists, one, and where it runs (spec: generations, §9)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from flux.control.context import Control, status
from flux.core import access
from flux.core.access import Actor
from flux.core.control import Located, SandboxFilter, SandboxStatus
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import ControlState
from flux.engine.results import Page
from flux.store.registry import sandboxes
from flux.store.registry.sandboxes import SandboxRow

_LIMIT_MAX = 1000
_PIECE = 200


def list_sandboxes(
    context: Control, actor: Actor, limit: int, cursor: str | None, wanted: SandboxFilter
) -> Page[SandboxStatus]:
    """List sandboxes, newest first or oldest first; those being deleted exist for nobody."""
    beyond = _number(cursor)
    if not access.sees_all(actor) and actor.key_id is None:
        return Page(items=[])
    found = list(itertools.islice(_found(context, actor, wanted, beyond), _limit(limit) + 1))
    more = str(found[limit - 1].number) if len(found) > limit else None
    return Page(items=[status(row) for row in found[:limit]], next_cursor=more)


def _found(context: Control, actor: Actor, wanted: SandboxFilter, beyond: int | None) -> Iterator[SandboxRow]:
    """Yield the rows that are wanted, beyond one's number. Read in pieces, as records are looked at one by one here."""
    owner = None if access.sees_all(actor) else actor.key_id
    asked = ControlState if wanted.states is None else wanted.states
    states = [state.value for state in asked if state.value in sandboxes.LIVING]
    while True:
        with context.registry.reading() as tx:
            piece = sandboxes.page(
                tx, states, owner=owner, limit=_PIECE, beyond=beyond, oldest_first=wanted.oldest_first
            )
        for row in piece:
            if wanted.takes(row.record) and (row.lived or not wanted.lived) and not context.is_over(row):
                yield row
        if len(piece) < _PIECE:
            return
        beyond = piece[-1].number


def get_sandbox(context: Control, actor: Actor, reference: str) -> SandboxStatus:
    """Return a sandbox."""
    return status(context.find(actor, reference))


def locate(context: Control, actor: Actor, reference: str) -> Located:
    """Return where a running sandbox's data plane is."""
    row = context.find(actor, reference)
    if row.state is not ControlState.RUNNING or row.node is None or row.pod_uid is None:
        raise FluxError(
            Code.ILLEGAL_STATE,
            f"cannot use sandbox {row.id}: it is {row.state.value}; resume it first",
            {"state": row.state.value, "sandbox_id": row.id},
        )
    return located(row, context.local)


def located(row: SandboxRow, local: str | None) -> Located:
    """Return where a row that runs has its data plane; ``local``: the name of the node in this process."""
    assert row.node is not None and row.pod_uid is not None
    return Located(
        sandbox_id=row.id,
        node=row.node,
        generation=row.generation,
        pod_uid=row.pod_uid,
        credential=row.credential,
        address=row.address,
        local=row.node == local,
    )


def _limit(limit: int) -> int:
    if not 1 <= limit <= _LIMIT_MAX:
        raise FluxError(Code.INVALID, f"cannot list {limit} items: limit is 1 to {_LIMIT_MAX}", {"field": "limit"})
    return limit


def _number(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not cursor.isascii() or not cursor.isdecimal() or len(cursor) > 18:
        raise FluxError(
            Code.INVALID, "cannot read the list on: the cursor is not one of its own; leave it out", {"field": "cursor"}
        )
    return int(cursor)
