"""Named points at which a test can make exactly one step fail, stop or die. A no-op unless a test arms one.

The list is closed: every durable or external step that a crash test must cover has its name here, and a test checks
that each is really reached. Tests arm points in their own process with ``armed``; nothing outside the process can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum


class Point(StrEnum):
    """The steps that can be made to fail. Named ``<operation>.<what is about to happen>``."""

    APPLY_JOURNAL = "apply.journal"
    APPLY_PREPARE = "apply.prepare"
    APPLY_INSTALL = "apply.install"
    APPLY_ATTRIBUTES = "apply.attributes"
    APPLY_SYNC = "apply.sync"
    APPLY_COMMIT = "apply.commit"
    APPLY_CLEAN = "apply.clean"
    ROLLBACK = "rollback.step"
    STAGE = "stage.blob"
    CHANGESET_WRITE = "changeset.write"
    CHANGESET_PUBLISH = "changeset.publish"
    CHANGESET_STATE = "changeset.state"
    CHANGESET_DROP = "changeset.drop"
    CHANGESET_DELETE = "changeset.delete"
    AUDIT_APPEND = "audit.append"
    STATE_OPEN = "state.open"
    DATABASE_COMMIT = "database.commit"
    SANDBOX_WRITE = "sandbox.write"
    SANDBOX_DELETE = "sandbox.delete"
    SCRATCH = "scratch.step"
    FILE_WRITE = "file.write"


Action = Callable[[Point], None]
_action: Action | None = None


def reach(point: Point) -> None:
    """Tell an armed test that ``point`` is about to happen; the test's action may raise, wait or end the process."""
    if _action is not None:
        _action(point)


@contextmanager
def armed(action: Action) -> Iterator[None]:
    """Call ``action`` with every point reached inside the ``with`` block."""
    global _action
    previous, _action = _action, action
    try:
        yield
    finally:
        _action = previous
