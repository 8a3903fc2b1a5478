"""Named points at which a test can make exactly one step fail, stop or die. A no-op unless a test arms one.

The list is closed: every durable or external step that a crash test must cover has its name here, and a test checks
that each is really reached. Tests arm points in their own process with ``armed``; nothing outside the process can.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import TypeAlias, TypeVar


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
    ACTIVATE_CHECKED = "activate.checked"
    ACTIVATE_CLAIMED = "activate.claimed"
    ACTIVATE_ADMITTED = "activate.admitted"
    ACTIVATE_PREPARE = "activate.prepare"
    ACTIVATE_PREPARED = "activate.prepared"
    ACTIVATE_STARTED = "activate.started"
    ACTIVATE_COMMITTED = "activate.committed"
    ACTIVATE_UNDONE = "activate.undone"
    ACTIVATE_ROLLED_BACK = "activate.rolled_back"
    ACTIVATE_JOINED = "activate.joined"
    SUSPEND_BEGUN = "suspend.begun"
    SUSPEND_QUIESCED = "suspend.quiesced"
    SUSPEND_CAPTURED = "suspend.captured"
    SUSPEND_NAMED = "suspend.named"
    SUSPEND_ENDED = "suspend.ended"
    SUSPEND_COMMITTED = "suspend.committed"
    SUSPEND_UNDONE = "suspend.undone"
    CAPTURE_BEGUN = "capture.begun"
    CAPTURE_MADE = "capture.made"
    CAPTURE_COMMITTED = "capture.committed"
    STOP_BEGUN = "stop.begun"
    STOP_ENDED = "stop.ended"
    STOP_COMMITTED = "stop.committed"
    TEARDOWN_RETIRED = "teardown.retired"
    TEARDOWN_WAITED = "teardown.waited"
    DELETE_INTENT = "delete.intent"
    DELETE_ENDED = "delete.ended"
    DELETE_REMOVED = "delete.removed"
    DELETE_COMMITTED = "delete.committed"
    UPLOAD_TAKEN = "upload.taken"
    UPLOAD_INTENT = "upload.intent"
    UPLOAD_PART = "upload.part"
    UPLOAD_MANIFEST = "upload.manifest"
    UPLOAD_CONFIRMED = "upload.confirmed"
    UPLOAD_COMMITTED = "upload.committed"
    COLLECT_MARKED = "collect.marked"
    COLLECT_DELETED = "collect.deleted"
    RECOVER_STEP = "recover.step"
    RECONCILE_REMOVED = "reconcile.removed"
    OBJECT_WRITE = "object.write"
    OBJECT_DELETE = "object.delete"
    LAYER_WRITE = "layer.write"
    LAYER_PUBLISH = "layer.publish"
    LAYER_REMOVE = "layer.remove"
    WAKE_RECORDED = "wake.recorded"
    WAKE_SETTLED = "wake.settled"
    WAKE_MINTED = "wake.minted"
    WAKE_ANSWERED = "wake.answered"
    WAKE_PUBLISHED = "wake.published"
    WAKE_FAILED = "wake.failed"
    PAUSE_RECORDED = "pause.recorded"
    PAUSE_ANSWERED = "pause.answered"
    PAUSE_ACCEPTED = "pause.accepted"
    KILL_RECORDED = "kill.recorded"
    KILL_ANSWERED = "kill.answered"
    KILL_COMMITTED = "kill.committed"
    SNAPSHOT_ANSWERED = "snapshot.answered"
    SNAPSHOT_RECORDED = "snapshot.recorded"
    INVENTORY_ANSWERED = "inventory.answered"
    INVENTORY_ACCEPTED = "inventory.accepted"


Action = Callable[[Point], None]
_action: Action | None = None
_subject: ContextVar[str] = ContextVar("subject", default="")


def reach(point: Point) -> None:
    """Tell an armed test that ``point`` is about to happen; the test's action may raise, wait or end the process."""
    if _action is not None:
        _action(point)


def subject() -> str:
    """Return the id of the sandbox that the operation which reached a point is about; empty if it named none."""
    return _subject.get()


@contextmanager
def armed(action: Action) -> Iterator[None]:
    """Call ``action`` with every point reached inside the ``with`` block."""
    global _action
    previous, _action = _action, action
    try:
        yield
    finally:
        _action = previous


T = TypeVar("T")

#: An operation that stops after each durable or external step. ``yield Point.X`` says: what stands above has happened.
Steps: TypeAlias = Generator[Point, None, T]


def run(steps: Steps[T], sandbox_id: str = "") -> T:
    """Drive an operation to its end, reaching each of its points; what an armed action raises is raised at the point.

    ``sandbox_id``: which sandbox it is about, for actions that fail a step of one sandbox only (``subject``).

    The tests' explorer drives operations itself: many at a time, in every order, and forgets some, as a crash does.
    """
    token = _subject.set(sandbox_id)
    try:
        point = next(steps)
        while True:
            try:
                reach(point)
            except BaseException as error:
                point = steps.throw(error)
            else:
                point = next(steps)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        _subject.reset(token)
