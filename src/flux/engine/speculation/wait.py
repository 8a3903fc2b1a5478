"""Waiting for a decision, and for audit lines (spec: speculation)."""

from __future__ import annotations

import time

from flux.core.access import Actor
from flux.core.audit import AuditEvent, AuditFilter
from flux.core.changeset import State
from flux.engine.context import Context
from flux.engine.results import ChangesetDetail, Page
from flux.engine.speculation import views

_READ_LINES = 1000


def wait(context: Context, actor: Actor, reference: str, changeset_id: str, timeout_seconds: float) -> ChangesetDetail:
    """Return a changeset as soon as it is not pending, or when the time is over."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        # The condition is held from before the look until the wait, so that no change falls in between.
        with context.changed:
            found = views.get_changeset(context, actor, reference, changeset_id)
            left = deadline - time.monotonic()
            if found.changeset.state is not State.PENDING or left <= 0:
                return found
            until_expiry = max(found.changeset.expires_at - context.clock.wall(), 0.01)
            context.changed.wait(min(left, until_expiry))


def wait_for_audit(
    context: Context, filters: AuditFilter, cursor: str | None, timeout_seconds: float
) -> Page[AuditEvent]:
    """Return matching audit lines after ``cursor`` as soon as there is one, or none when the time is over."""
    audit, filters = context.stores.audit, views.by_id(context, filters)
    position = audit.end() if cursor is None else views.position(context, cursor)
    deadline = time.monotonic() + timeout_seconds
    while True:
        lines, position = audit.read(filters, _READ_LINES, position)
        left = deadline - time.monotonic()
        if lines or left <= 0 or not audit.wait(position, left):
            return Page(items=lines, next_cursor=str(position))
