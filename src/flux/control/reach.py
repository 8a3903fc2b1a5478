"""Reach: where the data plane of a sandbox is, for whoever holds its token; use of it may wake it (spec: e2b, §4, §5).

The token is a sandbox's for as long as it lives, whatever generation runs: a client that reconnects keeps the one that
it was given. Fencing is between control plane and node, by the credential that goes with the route.
"""

from __future__ import annotations

import hmac

import msgspec

from flux.control import views, wake
from flux.control.calls import Calls
from flux.control.context import GONE, Control, Deadline, no_sandbox
from flux.core import signature
from flux.core.access import bearer_of
from flux.core.audit import AuditKind
from flux.core.control import Located, SandboxStatus
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import ControlState
from flux.store.registry import sandboxes
from flux.store.registry.sandboxes import SandboxRow

_UNDER_WAY = (ControlState.WAKING, ControlState.SETTLING)


def reach(context: Control, sandbox_id: str, token: str | None, *, wake_it: bool) -> Calls[Located]:
    """Return where a sandbox's data plane is; see ``ControlPlane.reach``."""
    row = _living(context, sandbox_id)
    if token is not None:
        row = tokened(context, row)
        if not _are_equal(token, row.token or ""):
            raise FluxError(
                Code.UNAUTHENTICATED,
                f"cannot use sandbox {row.id}: the access token is not its own; connect to it to be told the right one",
            )
    return (yield from _awake(context, row, wake_it=wake_it))


def reach_ports(context: Control, sandbox_id: str, traffic_token: str | None) -> Calls[Located]:
    """Return where a sandbox's ports are, and wake it if use does that; see ``ControlPlane.reach_ports``."""
    row = _living(context, sandbox_id)
    if not row.record.has_public_ports:
        if not traffic_token:
            raise FluxError(
                Code.DENIED,
                f"cannot use the ports of sandbox {row.id}: they are not public; send its traffic access token in the "
                "header E2B-Traffic-Access-Token",
            )
        row = tokened(context, row)
        if not signature.opens_ports(traffic_token, row.token or ""):
            raise FluxError(
                Code.UNAUTHENTICATED,
                f"cannot use the ports of sandbox {row.id}: the traffic access token is not its own; connect to it to "
                "be told the right one",
            )
    return (yield from _awake(context, row, wake_it=True))


def _living(context: Control, sandbox_id: str) -> SandboxRow:
    row = context.row(sandbox_id)
    if row is None or row.state in GONE or context.is_over(row):
        raise no_sandbox(sandbox_id)
    return row


def _awake(context: Control, row: SandboxRow, *, wake_it: bool) -> Calls[Located]:
    if row.state is ControlState.RUNNING:
        return views.located(row, context.local)
    if not wake_it or not (row.record.auto_resume or row.state in _UNDER_WAY):
        raise no_sandbox(row.id)
    begins = row.state not in _UNDER_WAY
    woken = yield from wake.woken(
        context, row.id, Deadline(context.clock, context.settings.wake_timeout_seconds), seen=row
    )
    if begins:
        details = {"generation": woken.generation, "node": woken.node, "reason": "use"}
        context.audit(AuditKind.SANDBOX_RESUME, bearer_of(row.id), row.id, details)
    return views.located(woken, context.local)


def tokens(context: Control) -> list[tuple[str, str]]:
    """Return the id and token of every sandbox that is not being deleted; rows without one get theirs."""
    with context.registry.reading() as tx:
        found = sandboxes.tokens(tx)
    if all(token is not None for _, token in found):
        return [(sandbox_id, token) for sandbox_id, token in found if token is not None]
    return [(sandbox_id, token) for sandbox_id, held in found if (token := held or _given(context, sandbox_id))]


def tokened(context: Control, row: SandboxRow) -> SandboxRow:
    """Return a row with its token, which one that is older than tokens gets now."""
    return row if row.token is not None else msgspec.structs.replace(row, token=_given(context, row.id))


def with_token(context: Control, status: SandboxStatus) -> SandboxStatus:
    """Return what a sandbox's owner is told, with its token."""
    if status.token is not None:
        return status
    return msgspec.structs.replace(status, token=_given(context, status.sandbox.id))


def _given(context: Control, sandbox_id: str) -> str | None:
    """Give a row a token unless somebody else just did; ``None`` if the sandbox is gone."""
    with context.registry.transaction() as tx:
        row = sandboxes.lock(tx, sandbox_id)
        if row is None:
            return None
        return row.token or sandboxes.write(tx, row, token=context.token()).token


def _are_equal(given: str, token: str) -> bool:
    return token != "" and hmac.compare_digest(given.encode("utf-8", "surrogatepass"), token.encode())
