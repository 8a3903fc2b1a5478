"""The states of a sandbox on a node, pair by pair, and what a restart makes of each (spec: generations, §3)."""

from __future__ import annotations

import itertools

import pytest

from flux.core import lifecycle
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import AT_REST, DORMANT, IN_FLIGHT, LIFE, RECOVERY, NodeEvent, NodeState, Recover

ALLOWED = {
    ("gone", "create"): "created",
    ("created", "activate"): "activating",
    ("suspended", "activate"): "activating",
    ("stopped", "activate"): "activating",
    ("activating", "activated"): "running",
    ("activating", "activation_rolled_back_to_created"): "created",
    ("activating", "activation_rolled_back_to_suspended"): "suspended",
    ("activating", "activation_rolled_back_to_stopped"): "stopped",
    ("running", "suspend"): "suspending",
    ("suspending", "suspended"): "suspended",
    ("suspending", "suspend_failed"): "running",
    ("suspending", "suspend_failed_dead"): "stopped",
    ("running", "capture"): "capturing",
    ("capturing", "captured"): "running",
    ("capturing", "capture_failed"): "running",
    ("running", "stop"): "stopping",
    ("stopping", "stopped"): "stopped",
    ("created", "delete"): "deleting",
    ("suspended", "delete"): "deleting",
    ("stopped", "delete"): "deleting",
    ("deleting", "deleted"): "gone",
    **{(state.value, "destroy"): "deleting" for state in NodeState if state is not NodeState.GONE},
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(NodeState, NodeEvent)))
def test_every_pair(state: NodeState, event: NodeEvent) -> None:
    expected = ALLOWED.get((state.value, event.value))
    if expected is not None:
        assert LIFE.next(state, event).value == expected
        return
    with pytest.raises(FluxError) as caught:
        LIFE.next(state, event)
    assert caught.value.code is Code.ILLEGAL_STATE


def test_every_state_is_either_at_rest_or_in_flight() -> None:
    assert AT_REST | IN_FLIGHT | {NodeState.GONE} == set(NodeState)
    assert not AT_REST & IN_FLIGHT
    assert DORMANT | {NodeState.RUNNING} == AT_REST


def test_every_state_in_flight_is_listed_once_for_recovery() -> None:
    assert set(RECOVERY) == IN_FLIGHT
    assert {state for state, way in RECOVERY.items() if way is Recover.DRIVE_ON} == {
        NodeState.STOPPING,
        NodeState.DELETING,
    }


@pytest.mark.parametrize("state", sorted(IN_FLIGHT))
def test_only_a_suspension_is_driven_on_because_its_artifact_is_named(state: NodeState) -> None:
    assert lifecycle.recovery_of(state, artifact_named=False) is RECOVERY[state]
    expected = Recover.DRIVE_ON if state is NodeState.SUSPENDING else RECOVERY[state]
    assert lifecycle.recovery_of(state, artifact_named=True) is expected


@pytest.mark.parametrize("state", sorted(DORMANT))
def test_a_rollback_leads_back_to_where_the_activation_came_from(state: NodeState) -> None:
    assert LIFE.next(LIFE.next(state, NodeEvent.ACTIVATE), lifecycle.rolled_back(state)) is state
