"""Questions that the control plane asks a node about one sandbox, until it answers (spec: generations, §7–§9)."""

from __future__ import annotations

from flux.control import answers
from flux.control.answers import Answer
from flux.control.calls import Calls, Nap, Send
from flux.control.context import Control, Deadline
from flux.control.transitions import Saved
from flux.core.errors import FluxError
from flux.core.fence import Ended, Teardown
from flux.core.node import ArtifactReference, Inventoried, Inventory, RowReport, TearDown, TornDown
from flux.core.route import Execution
from flux.store.registry.sandboxes import SandboxRow

#: Teardowns after which the node may still hold an execution that is not the one that was named.
_MAY_HIDE_ANOTHER = (Teardown.NEWER, Teardown.NOTHING_RUNNING)


def inventory(context: Control, row: SandboxRow) -> Calls[Inventoried | None]:
    """Ask the row's node what it has, telling it nothing; ``None`` if it does not answer."""
    try:
        found = yield Send(
            row.node or "",
            Inventory(node_store_id=row.node_store_id or ""),
            context.settings.inventory_timeout_seconds,
        )
    except FluxError:
        return None
    assert isinstance(found, Inventoried)
    return found


def report(context: Control, row: SandboxRow) -> Calls[tuple[bool, RowReport | None]]:
    """Return whether the node answers, and what it has of the sandbox."""
    found = yield from inventory(context, row)
    if found is None:
        return False, None
    return True, next((held for held in found.rows if held.sandbox_id == row.id), None)


def tear_down(context: Control, row: SandboxRow, execution: Execution, deadline: Deadline) -> Calls[TornDown | None]:
    """Tear an execution down on the row's node and return what it came to; ``None`` if the time is over first."""
    request = TearDown(sandbox_id=row.id, node_store_id=row.node_store_id or "", execution=execution)
    while not deadline.is_over:
        try:
            torn = yield Send(row.node or "", request, deadline.left_seconds)
        except FluxError as error:
            if answers.of(error, row.node_store_id) is Answer.OTHER_STORE:
                return None
        else:
            assert isinstance(torn, TornDown)
            if torn.outcome is not Teardown.PENDING:
                return torn
        yield Nap(min(context.settings.nap_seconds, deadline.left_seconds), row.id)
    return None


def settled(context: Control, row: SandboxRow, deadline: Deadline) -> Calls[tuple[bool, Saved | None]]:
    """End the row's execution, and any other of the sandbox on that node; return whether, and what was saved (§9.0)."""
    torn = yield from tear_down(context, row, row.execution, deadline)
    if torn is None:
        return False, None
    if torn.outcome is Teardown.SUSPENDED and torn.artifact is not None:
        return True, Saved(generation=row.generation, artifact=torn.artifact)
    if torn.outcome in _MAY_HIDE_ANOTHER:
        answered, held = yield from report(context, row)
        if not answered:
            return False, None
        if not _is_current(context, row):
            return False, None  # somebody else settled it: what runs by now may be the sandbox's next generation
        if held is not None and held.generation is not None and held.pod_uid is not None and _is_up(held):
            other = Execution(generation=held.generation, pod_uid=held.pod_uid)
            torn = yield from tear_down(context, row, other, deadline)
            if torn is None:
                return False, None
            if torn.outcome is Teardown.SUSPENDED and torn.artifact is not None:
                return True, Saved(generation=other.generation, artifact=torn.artifact)
    return True, saved_of(row, torn.ended)


def _is_current(context: Control, seen: SandboxRow) -> bool:
    """Tell whether the registry is still where the row was seen, after a node's report.

    Generations never go down, so what the report shows beside that one was not minted here since, and may be ended.
    """
    row = context.row(seen.id)
    return row is not None and (row.state, row.generation, row.attempt_id) == (
        seen.state,
        seen.generation,
        seen.attempt_id,
    )


def _is_up(held: RowReport) -> bool:
    return held.state.value in ("running", "activating", "suspending", "capturing", "stopping")


def saved_of(row: SandboxRow, ended: tuple[Ended, ...]) -> Saved | None:
    """Return the newest artifact that the endings tell of, if it is later than the current one."""
    newest = answers.newest_artifact(ended, row.artifact_generation)
    if newest is None or newest.artifact_id is None or newest.artifact_digest is None:
        return None
    reference = ArtifactReference(id=newest.artifact_id, digest=newest.artifact_digest, durable=newest.durable)
    return Saved(generation=newest.generation, artifact=reference)
