"""A sandbox's states on the node that has it, as one table (spec: generations, §3).

At rest: ``created`` (never ran), ``running``, ``suspended``, ``stopped``. The others are in flight: somebody works on
the row, and each is listed once in ``RECOVERY`` with what a restart makes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from flux.core.machine import Machine


class NodeState(StrEnum):
    """Where a sandbox is in its life on a node. ``gone`` is no row."""

    CREATED = "created"
    RUNNING = "running"
    SUSPENDED = "suspended"
    STOPPED = "stopped"
    ACTIVATING = "activating"
    SUSPENDING = "suspending"
    STOPPING = "stopping"
    CAPTURING = "capturing"
    DELETING = "deleting"
    GONE = "gone"


class NodeEvent(StrEnum):
    """What happens to a sandbox on a node. A rollback has one event for each state that it may lead back to."""

    CREATE = "create"
    ACTIVATE = "activate"
    ACTIVATED = "activated"
    ROLLED_BACK_TO_CREATED = "activation_rolled_back_to_created"
    ROLLED_BACK_TO_SUSPENDED = "activation_rolled_back_to_suspended"
    ROLLED_BACK_TO_STOPPED = "activation_rolled_back_to_stopped"
    SUSPEND = "suspend"
    SUSPENDED = "suspended"
    SUSPEND_FAILED = "suspend_failed"
    SUSPEND_FAILED_DEAD = "suspend_failed_dead"
    CAPTURE = "capture"
    CAPTURED = "captured"
    CAPTURE_FAILED = "capture_failed"
    STOP = "stop"
    STOPPED = "stopped"
    DELETE = "delete"
    DESTROY = "destroy"
    DELETED = "deleted"


_S, _E = NodeState, NodeEvent

#: The states that survive a restart as they are.
AT_REST = frozenset({_S.CREATED, _S.RUNNING, _S.SUSPENDED, _S.STOPPED})
IN_FLIGHT = frozenset({_S.ACTIVATING, _S.SUSPENDING, _S.STOPPING, _S.CAPTURING, _S.DELETING})
#: The states from which an activation starts, and to which its rollback leads back.
DORMANT = frozenset({_S.CREATED, _S.SUSPENDED, _S.STOPPED})

_TABLE: dict[tuple[NodeState, NodeEvent], NodeState] = {
    (_S.GONE, _E.CREATE): _S.CREATED,
    (_S.CREATED, _E.ACTIVATE): _S.ACTIVATING,
    (_S.SUSPENDED, _E.ACTIVATE): _S.ACTIVATING,
    (_S.STOPPED, _E.ACTIVATE): _S.ACTIVATING,
    (_S.ACTIVATING, _E.ACTIVATED): _S.RUNNING,
    (_S.ACTIVATING, _E.ROLLED_BACK_TO_CREATED): _S.CREATED,
    (_S.ACTIVATING, _E.ROLLED_BACK_TO_SUSPENDED): _S.SUSPENDED,
    (_S.ACTIVATING, _E.ROLLED_BACK_TO_STOPPED): _S.STOPPED,
    (_S.RUNNING, _E.SUSPEND): _S.SUSPENDING,
    (_S.SUSPENDING, _E.SUSPENDED): _S.SUSPENDED,
    (_S.SUSPENDING, _E.SUSPEND_FAILED): _S.RUNNING,
    (_S.SUSPENDING, _E.SUSPEND_FAILED_DEAD): _S.STOPPED,
    (_S.RUNNING, _E.CAPTURE): _S.CAPTURING,
    (_S.CAPTURING, _E.CAPTURED): _S.RUNNING,
    (_S.CAPTURING, _E.CAPTURE_FAILED): _S.RUNNING,
    (_S.RUNNING, _E.STOP): _S.STOPPING,
    (_S.STOPPING, _E.STOPPED): _S.STOPPED,
    (_S.CREATED, _E.DELETE): _S.DELETING,
    (_S.SUSPENDED, _E.DELETE): _S.DELETING,
    (_S.STOPPED, _E.DELETE): _S.DELETING,
    (_S.DELETING, _E.DELETED): _S.GONE,
}
_TABLE |= {(state, _E.DESTROY): _S.DELETING for state in _S if state is not _S.GONE}

LIFE: Machine[NodeState, NodeEvent] = Machine("sandbox", _TABLE)

_ROLLED_BACK: Mapping[NodeState, NodeEvent] = MappingProxyType(
    {
        _S.CREATED: _E.ROLLED_BACK_TO_CREATED,
        _S.SUSPENDED: _E.ROLLED_BACK_TO_SUSPENDED,
        _S.STOPPED: _E.ROLLED_BACK_TO_STOPPED,
    }
)


def rolled_back(to: NodeState) -> NodeEvent:
    """Return the event that undoes an activation which came from the state ``to`` (one of ``DORMANT``)."""
    return _ROLLED_BACK[to]


class Recover(StrEnum):
    """What a restart does with a row in flight."""

    ROLL_BACK = "roll_back"
    DRIVE_ON = "drive_on"


#: Every in-flight state once. ``suspending`` rolls back only until its artifact is named; see ``recovery_of``.
RECOVERY: Mapping[NodeState, Recover] = MappingProxyType(
    {
        _S.ACTIVATING: Recover.ROLL_BACK,
        _S.SUSPENDING: Recover.ROLL_BACK,
        _S.CAPTURING: Recover.ROLL_BACK,
        _S.STOPPING: Recover.DRIVE_ON,
        _S.DELETING: Recover.DRIVE_ON,
    }
)


def recovery_of(state: NodeState, *, artifact_named: bool) -> Recover:
    """Return what recovery does with a row in flight; a suspension whose artifact is named is driven on (§6)."""
    if state is NodeState.SUSPENDING and artifact_named:
        return Recover.DRIVE_ON
    return RECOVERY[state]


class ControlState(StrEnum):
    """Where a sandbox is in its life as the control plane sees it (§9)."""

    WAKING = "waking"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    SETTLING = "settling"
    KILLING = "killing"
    KILLED = "killed"


class ControlEvent(StrEnum):
    """What happens to a sandbox in the control plane."""

    WAKE = "wake"
    WOKEN = "woken"
    WAKE_FAILED = "wake_failed"
    SETTLE = "settle"
    SETTLED = "settled"
    PAUSE = "pause"
    PAUSED = "paused"
    PAUSE_FAILED = "pause_failed"
    LOST = "lost"
    KILL = "kill"
    KILLED = "killed"


_C, _V = ControlState, ControlEvent
# ``paused`` is entered only when the outcome of the last generation is known, so the mint of the next one may be the
# very transaction that leaves it; a wake that meets an unknown outcome goes back there through ``settling`` (§9.0).
_CONTROL: dict[tuple[ControlState, ControlEvent], ControlState] = {
    (_C.PAUSED, _V.WAKE): _C.WAKING,
    (_C.WAKING, _V.WAKE): _C.WAKING,  # its generation ended definitely: the next one, in the same wake
    (_C.WAKING, _V.WOKEN): _C.RUNNING,
    (_C.WAKING, _V.WAKE_FAILED): _C.PAUSED,
    (_C.WAKING, _V.SETTLE): _C.SETTLING,
    (_C.SETTLING, _V.SETTLED): _C.PAUSED,
    (_C.RUNNING, _V.PAUSE): _C.PAUSING,
    (_C.RUNNING, _V.PAUSED): _C.PAUSED,  # its node saved it without being asked here: a teardown, an older command
    (_C.RUNNING, _V.LOST): _C.PAUSED,  # its execution ended with its host: it wakes from its last artifact
    (_C.PAUSING, _V.PAUSED): _C.PAUSED,
    (_C.PAUSING, _V.PAUSE_FAILED): _C.RUNNING,
    (_C.PAUSING, _V.LOST): _C.PAUSED,
    (_C.WAKING, _V.LOST): _C.PAUSED,  # an operator forgot its node
    (_C.SETTLING, _V.LOST): _C.PAUSED,
    (_C.KILLING, _V.KILLED): _C.KILLED,
}
_CONTROL |= {(state, _V.KILL): _C.KILLING for state in _C if state not in (_C.KILLING, _C.KILLED)}

CONTROL_LIFE: Machine[ControlState, ControlEvent] = Machine("sandbox", _CONTROL)
