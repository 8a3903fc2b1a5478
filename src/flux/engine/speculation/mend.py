"""Finishing what was interrupted: an intent that was never cleared, an apply that a crash cut off (spec: speculation).

Every in-flight state has one way on. Roll back: an apply whose state is still ``approved``. Drive on: everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flux.core.access import SYSTEM
from flux.core.changeset import Changeset, State
from flux.core.paths import from_portable, printable
from flux.engine.context import Context
from flux.engine.lifecycle import roots
from flux.engine.speculation import transition
from flux.store import sandboxes
from flux.store.changeset_index import Intent, Row
from flux.trees.apply import Recovery, recover


def mend(context: Context, row: Row) -> Recovery:
    """Finish what the intent of ``row`` began, or take it back. The caller has the changeset alone."""
    found = Recovery("nothing", [])
    if row.intent is Intent.APPLY and context.stores.changesets.exists(row.id):
        record = context.stores.changesets.read(row.id)
        found = _recover(context, record)
        if record.state is State.APPROVED and found.outcome != "nothing":
            problems = [f"{printable(problem.path)}: {problem.reason}" for problem in found.problems]
            transition.fail(context, SYSTEM, record, _reason(problems))
            return found
    transition.settle(context, row)
    return found


def _recover(context: Context, record: Changeset) -> Recovery:
    with context.stores.changesets.opened(record.id) as directory, _root(context, record) as root:
        return recover(
            directory,
            root,
            committed=record.state is State.APPLIED,
            files=context.files,
            revert_bytes=context.settings.caps.revert_bytes,
        )


@contextmanager
def _root(context: Context, record: Changeset) -> Iterator[str]:
    """Give the path of the workspace's root; that of a managed sandbox is there while the sandbox runs."""
    with context.stores.database.reading() as tx:
        sandbox = sandboxes.find(tx, record.sandbox_id)
    if sandbox is None or sandbox.layout == "bound":
        yield from_portable(record.root)
        return
    with roots.opened(context, sandbox) as root:
        yield f"/proc/self/fd/{root.descriptor}/."


def _reason(problems: list[str]) -> str:
    if not problems:
        return "the apply was interrupted, and everything was taken back"
    return f"the apply was interrupted, and not everything could be taken back: {'; '.join(problems)}"
