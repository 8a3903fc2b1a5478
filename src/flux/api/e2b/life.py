"""E2B's routes of a sandbox's life: create, look, connect, pause, time-outs, kill (spec: e2b, §3, §5)."""

from __future__ import annotations

from flux.api.e2b import shapes
from flux.api.e2b.creation import creation
from flux.api.e2b.endpoint import Answer, Call, Row
from flux.api.e2b.errors import Unsupported
from flux.core.errors import Code, FluxError
from flux.core.lifecycle import ControlState
from flux.core.requests import Pause, Resume

_TIMEOUT_SECONDS = 300
#: What the older routes take where nothing is said.
_OLD_TIMEOUT_SECONDS = 15


def create(call: Call) -> Answer:
    """Create a sandbox."""
    return _created(call, _TIMEOUT_SECONDS)


def create_old(call: Call) -> Answer:
    """Create a sandbox by the older route."""
    return _created(call, _OLD_TIMEOUT_SECONDS)


def _created(call: Call, timeout_seconds: int) -> Answer:
    request = creation(call, call.body, timeout_seconds)
    status = call.platform.create_sandbox(call.actor, request, call.idempotency_key)
    return Answer(status=201, body=shapes.made(status, call.actor, call.domain))


def get(call: Call) -> Answer:
    """Tell everything of a sandbox."""
    status = call.platform.get_sandbox(call.actor, call.sandbox)
    return Answer(body=shapes.detail(status, call.actor, call.platform.room(), call.domain))


def kill(call: Call) -> Answer:
    """Delete a sandbox and what was saved of it."""
    call.platform.delete_sandbox(call.actor, call.sandbox)
    return Answer(status=204)


def connect(call: Call) -> Answer:
    """Make a sandbox run, and let it live at least so long from now: 200 if it ran, 201 if it was woken."""
    asked = _TIMEOUT_SECONDS if call.body.timeout is None else call.body.timeout
    status = call.platform.resume(call.actor, call.sandbox, Resume(timeout_seconds=asked if asked > 0 else None))
    code = 200 if status.woke_from == "running" else 201
    return Answer(status=code, body=shapes.made(status, call.actor, call.domain))


def resume(call: Call) -> Answer:
    """Wake a sandbox that is paused."""
    status = call.platform.get_sandbox(call.actor, call.sandbox)
    if status.state is ControlState.RUNNING:
        raise FluxError(
            Code.ILLEGAL_STATE, f"cannot resume sandbox {status.sandbox.id}: it is running already; connect to it"
        )
    wanted = {None: status.sandbox.on_timeout, True: "pause", False: "kill"}[call.body.auto_pause]
    if wanted != status.sandbox.on_timeout:
        raise Unsupported(
            f"let sandbox {status.sandbox.id} {wanted} at its time-out", "what happens then is set when it is created"
        )
    asked = _OLD_TIMEOUT_SECONDS if call.body.timeout is None else call.body.timeout
    status = call.platform.resume(call.actor, call.sandbox, Resume(timeout_seconds=asked if asked > 0 else None))
    return Answer(status=201, body=shapes.made(status, call.actor, call.domain))


def pause(call: Call) -> Answer:
    """Save a sandbox's files and end its processes; 409 only if it is paused already."""
    status = call.platform.get_sandbox(call.actor, call.sandbox)
    if status.state is ControlState.PAUSED:
        raise FluxError(
            Code.ILLEGAL_STATE,
            f"cannot pause sandbox {status.sandbox.id}: it is paused already; connect to it to go on",
            {"status": 409, "error_code": "sandbox_already_paused"},
        )
    call.platform.pause(call.actor, call.sandbox, Pause())
    return Answer(status=204)


def set_timeout(call: Call) -> Answer:
    """Let a sandbox's time-out be so many seconds from now; with none left it is over at once."""
    if call.body.timeout > 0:
        call.platform.set_timeout(call.actor, call.sandbox, call.body.timeout)
    else:
        call.platform.end_now(call.actor, call.sandbox)
    return Answer(status=204)


def refresh(call: Call) -> Answer:
    """Let a sandbox live at least so long from now."""
    asked = _OLD_TIMEOUT_SECONDS if call.body.duration is None else call.body.duration
    if asked > 0:
        call.platform.extend(call.actor, call.sandbox, asked)
    else:
        call.platform.get_sandbox(call.actor, call.sandbox)
    return Answer(status=204)


_ONE = "/sandboxes/{sandbox}"

ROWS = (
    Row(
        method="POST",
        path="/v2/sandboxes",
        operation="sandbox.create",
        handler=create,
        shape=shapes.NewSandbox,
        slow=True,
        doing="create",
    ),
    Row(
        method="POST",
        path="/sandboxes",
        operation="sandbox.create",
        handler=create_old,
        shape=shapes.NewSandbox,
        slow=True,
        doing="create",
    ),
    Row(method="GET", path=_ONE, operation="sandbox.get", handler=get),
    Row(method="DELETE", path=_ONE, operation="sandbox.delete", handler=kill, slow=True),
    Row(
        method="POST",
        path="/v2" + _ONE + "/connect",
        operation="sandbox.resume",
        handler=connect,
        shape=shapes.Connect,
        slow=True,
        doing="wake",
    ),
    Row(
        method="POST",
        path=_ONE + "/connect",
        operation="sandbox.resume",
        handler=connect,
        shape=shapes.OldConnect,
        slow=True,
        doing="wake",
    ),
    Row(
        method="POST",
        path=_ONE + "/resume",
        operation="sandbox.resume",
        handler=resume,
        shape=shapes.Resume,
        slow=True,
        doing="wake",
    ),
    Row(
        method="POST",
        path=_ONE + "/pause",
        operation="sandbox.pause",
        handler=pause,
        shape=shapes.Pause,
        slow=True,
        doing="pause",
    ),
    Row(
        method="POST",
        path=_ONE + "/timeout",
        operation="sandbox.timeout",
        handler=set_timeout,
        shape=shapes.Timeout,
        slow=True,
    ),
    Row(
        method="POST",
        path=_ONE + "/refreshes",
        operation="sandbox.timeout",
        handler=refresh,
        shape=shapes.Refresh,
    ),
)
