"""What must hold (spec: generations, §10), one function each. What a function returns is what is wrong.

Those of ``EVERY_STEP`` are asked after each step, with what was known before it; those of ``AT_REST`` when nothing is
under way, every process was restarted and has recovered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from flux.core.errors import FluxError
from flux.core.fence import FINAL, Reason, Teardown
from flux.core.lifecycle import ControlState, NodeState
from flux.core.node import Activate, Activated, Destroy, Destroyed, Evict, Suspended, TearDown, TornDown
from flux.core.route import GENERATION_MAX
from flux.testing.explorer.facts import Facts, Kept, NodeView
from flux.testing.explorer.machine import Event, Machine, Saved, Tree
from flux.testing.explorer.tape import Entry

_REASONS = frozenset(reason.value for reason in Reason)
_FINAL = frozenset(reason.value for reason in FINAL)
_GONE = (ControlState.KILLING, ControlState.KILLED)
_DORMANT = (NodeState.CREATED, NodeState.STOPPED, NodeState.SUSPENDED)
_UNDER_WAY = (
    NodeState.ACTIVATING, NodeState.RUNNING, NodeState.SUSPENDING, NodeState.CAPTURING, NodeState.STOPPING
)  # fmt: skip


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One step, for the invariants.

    ``before`` and ``after``: what was and is known. ``party``: whose step it was. ``events``: what it did to its
    machine. ``request``: what the step's operation serves, if anything; ``answer``: what it came to, if it is over now.
    ``task``: its number.
    """

    before: Facts
    after: Facts
    machines: Mapping[str, Machine]
    party: str | None = None
    events: Sequence[Event] = ()
    request: Any = None
    answer: Entry | None = None
    task: int | None = None

    def of(self, what: str) -> list[Event]:
        """Return the events of a kind."""
        return [event for event in self.events if event.what == what]

    def trees(self) -> list[tuple[str, Tree]]:
        """Return every tree with the name of its node."""
        return [(name, tree) for name, machine in self.machines.items() for tree in machine.state.trees]

    def saved(self, artifact_id: str | None) -> Saved | None:
        """Return an artifact, wherever it is."""
        for machine in self.machines.values():
            for each in (*machine.state.saved, *machine.store.saved):
                if each.id == artifact_id:
                    return each
        return None

    @property
    def reason(self) -> str | None:
        """Why a node refused, or failed, in this step; ``None`` if it did neither."""
        error = None if self.answer is None else self.answer.error
        return str(error.details["reason"]) if isinstance(error, FluxError) and "reason" in error.details else None


def i1_at_most_one_live_execution(moment: Moment) -> str | None:
    """At most one live execution per sandbox can write to its state."""
    live: dict[str, list[str]] = {}
    for name, tree in moment.trees():
        if tree.is_live:
            live.setdefault(tree.sandbox_id, []).append(f"generation {tree.generation} on {name}")
    return next((f"{sandbox_id}: {', '.join(found)}" for sandbox_id, found in live.items() if len(found) > 1), None)


def i2_generations_never_go_down(moment: Moment) -> str | None:
    """A sandbox's generation never goes down: not the registry's, no fence's, and none starts after a later one."""
    for sandbox_id, known in moment.before.registry.items():
        now = moment.after.registry.get(sandbox_id)
        if now is not None and now.generation < known.generation:
            return f"the registry's generation of {sandbox_id} went from {known.generation} to {now.generation}"
    for name, view in moment.before.nodes.items():
        for fence in view.fences:
            held = moment.after.node(name).fence(fence.sandbox_id)
            if held.claimed < fence.claimed or held.retired < fence.retired:
                return f"the fence of {fence.sandbox_id} on {name} went from {fence} to {held}"
    for event in moment.of("started"):
        highest = moment.before.started.get(event.sandbox_id, 0)
        if event.generation <= highest:  # each starts once, whatever became of it
            return f"generation {event.generation} of {event.sandbox_id} started after {highest}"
    return None


def i3_rolled_back_attempts_start_nothing(moment: Moment) -> str | None:
    """An attempt that was rolled back never starts anything again; nor does another one of its generation."""
    for event in (*moment.of("prepared"), *moment.of("started")):
        if (event.node, event.sandbox_id, event.generation) in moment.before.rolled_back:
            return f"generation {event.generation} was rolled back on {event.node}, and is {event.what} again"
    return None


def i4_destroyed_sandboxes_never_come_back(moment: Moment) -> str | None:
    """A destroyed sandbox never comes back, on any node."""
    for name, sandbox_id in moment.after.destroyed:
        row = moment.after.node(name).row(sandbox_id)
        if row is not None:
            return f"{sandbox_id} was destroyed on {name}, and has a row there: {row.state}"
        if any(tree.sandbox_id == sandbox_id for held, tree in moment.trees() if held == name):
            return f"{sandbox_id} was destroyed on {name}, and has a tree there"
    for name, tree in moment.trees():
        if tree.sandbox_id in moment.after.killed:
            return f"{tree.sandbox_id} was killed, and has a tree on {name}"
    for sandbox_id in moment.before.killed:
        known = moment.after.registry.get(sandbox_id)
        if known is not None and known.state not in _GONE:
            return f"{sandbox_id} was killed, and is {known.state} in the registry"
    return None


def i5_teardown_of_rolled_back_saves_nothing(moment: Moment) -> str | None:
    """Teardown of a rolled-back generation creates no snapshot, no artifact, no upload, and says so."""
    request = moment.request
    if not isinstance(request, TearDown) or moment.party is None:
        return None
    generation = request.execution.generation
    if (moment.party, request.sandbox_id, generation) not in moment.before.rolled_back:
        return None
    before, after = moment.before.node(moment.party), moment.after.node(moment.party)
    if moment.of("captured") or after.artifacts > before.artifacts or after.jobs > before.jobs:
        return f"the teardown of generation {generation}, which was rolled back, saved something"
    return _rolled_back_answer(moment, before, request)


def _rolled_back_answer(moment: Moment, before: NodeView, request: TearDown) -> str | None:
    if moment.answer is None or not isinstance(moment.answer.value, TornDown):
        return None
    torn_down, generation = moment.answer.value, request.execution.generation
    if torn_down.outcome in (Teardown.SUSPENDED, Teardown.SUSPEND):
        return f"generation {generation} was rolled back, and its teardown says {torn_down.outcome.value}"
    row = before.row(request.sandbox_id)
    if torn_down.outcome is Teardown.ROLLED_BACK and row is not None:
        told = None if torn_down.artifact is None else torn_down.artifact.id
        if told != row.artifact_id:
            return (
                f"the teardown of generation {generation} tells of {told}, the original artifact is {row.artifact_id}"
            )
    if (
        row is None
        or row.state not in _DORMANT
        or moment.before.node(moment.party or "").fence(request.sandbox_id).claimed != generation
    ):
        return None
    # what was decided while the activation was still under way may be told after its rollback: ask again
    if torn_down.outcome not in (Teardown.ROLLED_BACK, Teardown.PENDING):
        return f"generation {generation} was rolled back last, and its teardown says {torn_down.outcome.value}"
    return None


def i6_successors_restore_the_original(moment: Moment) -> str | None:
    """The successor restores from the original artifact: same id, same digest; never from nothing, if there is one."""
    for event in moment.of("prepared"):
        kept = moment.before.kept.get(event.sandbox_id)
        wanted = None if kept is None else (kept.artifact_id, kept.digest)
        found = None if event.artifact_id is None else (event.artifact_id, event.digest)
        if wanted != found:
            return f"generation {event.generation} is laid over {found}; what was saved last is {wanted}"
    return None


def i7_needed_artifacts_exist(moment: Moment) -> str | None:
    """An artifact exists as long as any generation may restore from it."""
    for known in moment.after.registry.values():
        if known.state not in _GONE and known.artifact_id and moment.saved(known.artifact_id) is None:
            return f"{known.sandbox_id} wakes from {known.artifact_id}, which is nowhere"
    for name, view in moment.after.nodes.items():
        for row in view.rows:
            for artifact_id in (row.artifact_id, row.restoring, row.named):
                if row.state != NodeState.DELETING and artifact_id and moment.saved(artifact_id) is None:
                    return f"the row of {row.sandbox_id} on {name} refers to {artifact_id}, which is nowhere"
    return None


def i8_durable_before_the_reply(moment: Moment) -> str | None:
    """Fence and receipts are durable before the reply that depends on them."""
    if moment.answer is None or moment.party is None:
        return None
    answer, request, view = moment.answer.value, moment.request, moment.after.node(moment.party)
    if isinstance(request, Activate):
        return _activation_recorded(moment, view, request)
    if isinstance(request, TearDown) and isinstance(answer, TornDown) and answer.outcome is not Teardown.PENDING:
        retired = view.fence(request.sandbox_id).retired
        if retired < request.execution.generation:
            return f"the teardown of generation {request.execution.generation} was answered, retired is {retired}"
    if isinstance(request, Destroy) and isinstance(answer, Destroyed):
        fence = view.fence(request.sandbox_id)
        if fence.retired != GENERATION_MAX or not fence.receipt:
            return f"the destruction of {request.sandbox_id} was answered, and its fence is {fence}"
    if isinstance(request, Evict) and moment.answer.error is None:
        fence = view.fence(request.sandbox_id)
        if fence.retired < request.execution.generation or not fence.receipt:
            return f"the eviction of {request.sandbox_id} was answered, and its fence is {fence}"
    return None


def _activation_recorded(moment: Moment, view: NodeView, request: Activate) -> str | None:
    generation, fence = request.route.generation, view.fence(request.sandbox_id)
    if isinstance(moment.answer and moment.answer.value, Activated) and fence.claimed < generation:
        return f"generation {generation} runs, and only {fence.claimed} is claimed"
    if moment.reason in _FINAL and fence.claimed < generation and fence.retired < generation:
        return f"generation {generation} was refused for good as {moment.reason}, and the fence is {fence}"
    return None


def i9_unknown_is_neither_success_nor_refusal(moment: Moment) -> str | None:
    """An unknown outcome is neither success nor refusal; the same attempt asked again gets the same terminal class."""
    changed = _answers_agree(moment)
    if changed is not None:
        return changed
    for sandbox_id, known in moment.after.registry.items():
        before = moment.before.registry.get(sandbox_id)
        if before is None or before == known:
            continue
        ran = (str(known.node), sandbox_id, known.generation) in moment.after.committed
        if known.state == ControlState.RUNNING and before.state != ControlState.RUNNING and not ran:
            return f"generation {known.generation} is published, and never ran on {known.node}"
        if known.generation > before.generation >= 1 and _may_still_start(moment, sandbox_id):
            return f"generation {known.generation} was minted while {before.generation} may run on {before.node}"
    return None


def _answers_agree(moment: Moment) -> str | None:
    if not isinstance(moment.request, Activate) or moment.answer is None or moment.party is None:
        return None
    key = (moment.party, moment.request.route.attempt_id)
    if moment.before.classes.get(key) == "ended" and moment.answer.error is None:
        return f"attempt {key[1]} had ended on {key[0]}, and now it is told that it runs"
    return None


def _may_still_start(moment: Moment, sandbox_id: str) -> bool:
    known = moment.before.registry[sandbox_id]
    view = moment.after.node(str(known.node))
    fence, row = view.fence(sandbox_id), view.row(sandbox_id)
    if any(
        tree.is_live and tree.generation == known.generation and tree.sandbox_id == sandbox_id
        for _, tree in moment.trees()
    ):
        return True
    if fence.retired >= known.generation or fence.claimed > known.generation:
        return False
    if fence.claimed < known.generation:
        return True
    return row is not None and row.generation == known.generation and row.state in _UNDER_WAY


def i10_refused_calls_change_nothing(moment: Moment) -> str | None:
    """A refused call changes nothing: row, fence, receipts, pins, files, jobs, counters.

    One that had moved the row was admitted: what it ends with later is a failure, told as its repetition's refusal.
    """
    error = None if moment.answer is None else moment.answer.error
    if not isinstance(error, FluxError) or moment.reason not in _REASONS or moment.task is None:
        return None
    if moment.task in moment.after.writers - moment.after.admitted:
        return f"{type(moment.request).__name__} was refused as {moment.reason}, and changed something"
    return None


def i11_both_agree_on_the_artifact(moment: Moment) -> str | None:
    """Node and control plane agree on the current artifact whenever both are at rest."""
    for sandbox_id, known in moment.after.registry.items():
        if known.state not in (ControlState.PAUSED, ControlState.RUNNING):
            continue
        row = moment.after.node(str(known.node)).row(sandbox_id)
        if row is not None and row.is_at_rest and row.artifact_id != known.artifact_id:
            return f"{sandbox_id} rests on {row.artifact_id} on {known.node}, in the registry on {known.artifact_id}"
        kept = moment.after.kept.get(sandbox_id)
        if kept is not None and (kept.artifact_id, kept.digest) != (known.artifact_id, known.artifact_digest):
            return f"{sandbox_id} was last saved to {kept.artifact_id}, the registry has {known.artifact_id}"
    return None


def i12_acknowledged_writes_are_there(moment: Moment) -> str | None:
    """A write acknowledged before a suspend that was reported successful is there after the next restore."""
    for sandbox_id, kept in moment.after.kept.items():
        if moment.before.kept.get(sandbox_id) != kept:
            saved = moment.saved(kept.artifact_id)
            missing = kept.lines - set(saved.lines if saved else ())
            if missing:
                return f"{kept.artifact_id} of {sandbox_id} lacks the lines {sorted(missing)}"
    for event in moment.of("started"):
        expected: Kept | None = moment.before.kept.get(event.sandbox_id)
        missing = (frozenset() if expected is None else expected.lines) - set(event.lines)
        if missing:
            return f"generation {event.generation} starts without the lines {sorted(missing)}"
    return None


def i13_nothing_is_left_over(moment: Moment) -> str | None:
    """After recovery no row is in flight, no resource is without a row, no sandbox left frozen."""
    for name, view in moment.after.nodes.items():
        for row in view.rows:
            if not row.is_at_rest:
                return f"the row of {row.sandbox_id} on {name} is {row.state}"
    for name, tree in moment.trees():
        held = moment.after.node(name).row(tree.sandbox_id)
        if held is None or held.generation != tree.generation or held.state != NodeState.RUNNING:
            return f"{name} has a tree of generation {tree.generation} of {tree.sandbox_id} and no row for it"
        if tree.frozen:
            return f"generation {tree.generation} of {tree.sandbox_id} on {name} is frozen"
    return None


Invariant = Callable[[Moment], str | None]

EVERY_STEP: tuple[Invariant, ...] = (
    i1_at_most_one_live_execution,
    i2_generations_never_go_down,
    i3_rolled_back_attempts_start_nothing,
    i4_destroyed_sandboxes_never_come_back,
    i5_teardown_of_rolled_back_saves_nothing,
    i6_successors_restore_the_original,
    i7_needed_artifacts_exist,
    i8_durable_before_the_reply,
    i9_unknown_is_neither_success_nor_refusal,
    i10_refused_calls_change_nothing,
    i12_acknowledged_writes_are_there,
)
AT_REST: tuple[Invariant, ...] = (i11_both_agree_on_the_artifact, i13_nothing_is_left_over)
ALL: tuple[Invariant, ...] = (*EVERY_STEP, *AT_REST)


def class_of(answer: Entry) -> str | None:
    """Return how an activation's answer ends its attempt: for good, or not at all."""
    if isinstance(answer.value, Activated):
        return "runs"
    error = answer.error
    if isinstance(error, FluxError) and "node_store_id" in error.details and "reason" in error.details:
        return None if error.details["reason"] in (Reason.ROW_BUSY, Reason.PREDECESSOR_RUNNING) else "ended"
    return None


def saved_by(answer: Entry) -> bool:
    """Tell whether an answer reports a suspension."""
    value = answer.value
    return isinstance(value, Suspended) or (isinstance(value, TornDown) and value.outcome is Teardown.SUSPENDED)
