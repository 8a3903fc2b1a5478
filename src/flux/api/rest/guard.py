"""What every request passes through: its id, the Host check, the bound on requests, errors, headers, the log."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from starlette.requests import ClientDisconnect

from flux.api.rest.access import Peer, refuse_foreign_host
from flux.api.rest.bodies import error_reply
from flux.core.errors import Code, FluxError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUESTS_AT_ONCE_MAX = 1024
_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))
_UNKEPT = (b"cache-control", b"no-store")
_ABORTED_BY_CALLER = 499
#: The key of a request's state that says that a sandbox answers it.
FOREIGN = "foreign"


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """One request for the log. ``outcome`` is ``ok`` or the error's code, ``latency_ms`` milliseconds."""

    request_id: str
    method: str
    path: str
    operation: str | None
    status: int
    outcome: str
    latency_ms: float
    actor: str | None
    sandbox: str | None
    changeset: str | None
    fault: BaseException | None = None


class RequestObserver(Protocol):
    """Hears of every request when it is over."""

    def finished(self, request: Finished) -> None:
        """Hear of one."""
        ...


class Guard:
    """The outermost layer.

    Args:
        app: what answers.
        observer: hears of every request.
        any_host: answer for any Host header, as behind a proxy.
        domain: the daemon's own domain, if it has one: its names are answered for.
        let_by_host: tells of requests whose host name leads to nothing that a foreign page could use without a secret.
    """

    def __init__(
        self,
        app: ASGIApp,
        observer: RequestObserver,
        *,
        any_host: bool,
        domain: str | None = None,
        let_by_host: Callable[[Scope], bool] = lambda _: False,
    ) -> None:
        self._app = app
        self._let_by_host = let_by_host
        self._domain = domain
        self._any_host = any_host
        self._observer = observer
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one request through."""
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        passage = _Passage(scope, send)
        self._running += 1
        try:
            if self._running > REQUESTS_AT_ONCE_MAX:
                raise FluxError(
                    Code.UNAVAILABLE, "cannot take more requests at once: nothing was changed; try again soon"
                )
            if not self._any_host and not self._let_by_host(scope):
                refuse_foreign_host(scope, self._domain)
            await self._app(scope, receive, passage.send)
        except Exception as error:
            await passage.failed(receive, _innermost(error))
        finally:
            self._running -= 1
            self._observer.finished(passage.finished())
        return None


def _innermost(error: Exception) -> Exception:
    """Return the error that a group of tasks failed with."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _fault(error: Exception, request_id: str) -> FluxError:
    reason = type(error).__name__
    return FluxError(
        Code.INTERNAL,
        f"cannot answer: a fault of Flux ({reason}); its log has the request under id {request_id}",
        {"request_id": request_id},
    )


class _Passage:
    """One request on its way through the guard."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._began = time.perf_counter()
        self._status = 0
        self._outcome = "ok"
        self._fault: BaseException | None = None
        self.request_id = secrets.token_hex(8)
        state: dict[str, Any] = scope.setdefault("state", {})
        state.setdefault("peer", Peer())
        state["request_id"] = self.request_id

    async def send(self, message: Message) -> None:
        """Send on, with the headers that every reply has."""
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            self._status = message["status"]
            message = {**message, "headers": [*message["headers"], *self._more(message["headers"])]}
        elif message["type"] == "websocket.accept":
            self._status = 101
        await self._send(message)

    def _more(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return the headers that a reply has besides its own; how a sandbox's is to be shown is for it to say."""
        more = [(b"x-request-id", self.request_id.encode("ascii"))]
        if self._scope["state"].get(FOREIGN):
            return more
        names = {name.lower() for name, _ in headers}
        return [pair for pair in (*_HEADERS, _UNKEPT) if pair[0] not in names] + more

    async def failed(self, receive: Receive, error: Exception) -> None:
        """Tell the caller of an error."""
        if isinstance(error, FluxError):
            await self._tell(receive, error)
        elif isinstance(error, OSError | ClientDisconnect):
            # The caller is gone, or a file changed under its download: there is nobody, or nothing right, to tell.
            self._outcome, self._fault = "aborted", error
        else:
            self._fault = error
            await self._tell(receive, _fault(error, self.request_id))

    async def _tell(self, receive: Receive, error: FluxError) -> None:
        """Send an error, unless the reply has begun: then it is cut off."""
        self._outcome = error.code.value
        if self._status == 0:
            await error_reply(error)(self._scope, receive, self.send)

    def finished(self) -> Finished:
        """Return what the log shall know."""
        state = self._scope["state"]
        values = self._scope.get("path_params", {})
        actor = state.get("actor")
        return Finished(
            request_id=self.request_id,
            method=self._scope.get("method", "WEBSOCKET"),
            path=self._scope["path"],
            operation=state.get("operation"),
            status=self._status or _ABORTED_BY_CALLER,
            outcome=state.get("outcome", self._outcome),
            latency_ms=round((time.perf_counter() - self._began) * 1000, 3),
            actor=None if actor is None else actor.name,
            sandbox=values.get("sandbox"),
            changeset=values.get("changeset"),
            fault=self._fault,
        )
