"""The front door of sandboxes' data planes: who asks, for which sandbox, and where that is served (spec: e2b, §2, §4).

Requests for a data plane are taken before any other route is looked at, and never reach one: a host name that leads
here opens nothing else of the daemon.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request

from flux.api.e2b import addressing
from flux.api.e2b.addressing import DATA_PORT, FILES, Target
from flux.api.e2b.ports import PortDoor
from flux.api.envd import application as envd
from flux.api.envd.application import HEALTH, INTERNAL, user_of
from flux.api.envd.call import Call, Tables
from flux.api.envd.errors import gone_reply, json_reply, refusal
from flux.api.rest.access import address_of, header
from flux.core import signature
from flux.core.access import Actor, bearer_of
from flux.core.errors import Code, FluxError
from flux.core.signature import Operation

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from flux.api.rest.gate import Gate
    from flux.api.rest.threads import Threads
    from flux.core.control import Located

_WAKING_PREFIXES = ("/process.", "/filesystem.", f"{FILES}/")
_QUERY_FIELDS_MAX = 32
_Reach: TypeAlias = Callable[[], "Located"]


class _Signed(msgspec.Struct, frozen=True):
    """What a signed URL says."""

    signature: str
    path: str
    operation: Operation
    user: str | None
    expires: str | None


class FrontDoor:
    """Takes what is for a data plane, and passes everything else on.

    Args:
        gate: what answers, and how often callers may ask.
        threads: where calls run.
        rest: what answers everything else.
        wall: the wall clock, in seconds since the epoch, by which signatures end.
        domain: the domain below which sandboxes' ports have names; without one they have none.
    """

    def __init__(
        self,
        gate: Gate,
        threads: Threads,
        rest: ASGIApp,
        wall: Callable[[], float] = time.time,
        *,
        domain: str | None = None,
    ) -> None:
        self._domain = domain
        self._ports = PortDoor(gate, threads)
        self._wall = wall
        self._gate = gate
        self._threads = threads
        self._rest = rest
        self._tables: Tables = envd.new_tables()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            target = addressing.target_of(scope)
        except FluxError as error:
            await _refused(scope, error, "")(scope, receive, send)
            return
        port = addressing.user_port(scope, self._domain)
        if port is not None:
            await self._ports.serve(port, scope, receive, send)
            return
        if target is None:
            await self._rest(scope, receive, send)
            return
        scope["state"]["operation"] = "sandbox.data"
        scope["path_params"] = {"sandbox": target.sandbox_id or ""}
        refused = _unserved(target, scope["path"])
        if refused is not None:
            await refused(scope, receive, send)
            return
        try:
            located = await self._threads.run("sandbox.get", self._admit, target, scope)
            user = user_of(header(scope, b"authorization"))
        except FluxError as error:
            await _refused(scope, error, target.sandbox_id or "")(scope, receive, send)
            return
        await self._serve(located, user, scope, receive, send)

    async def _serve(self, located: Located, user: str | None, scope: Scope, receive: Receive, send: Send) -> None:
        actor = bearer_of(located.sandbox_id)
        scope["state"]["actor"] = actor
        if located.local or scope["path"] == HEALTH or self._gate.forwarder is None:
            call = Call(
                plane=self._gate.platform.executions,
                threads=self._threads,
                tables=self._tables,
                actor=actor,
                sandbox_id=located.sandbox_id,
                generation=located.generation,
                user=user,
            )
            await envd.serve(call, scope["path"], scope, receive, send)
            return
        from flux.api.e2b.forward import forwarded

        try:
            await forwarded(self._gate.forwarder, located, actor, user, Request(scope, receive))(scope, receive, send)
        except FluxError as error:
            await _refused(scope, error, located.sandbox_id)(scope, receive, send)

    def _admit(self, target: Target, scope: Scope) -> Located:
        """Return where the sandbox's data plane is; wakes it if use may do that. Asks the store.

        Raises:
            FluxError: ``not_found`` if it does not run, ``unauthenticated``, ``exhausted``, and what a wake raises.
        """
        path = scope["path"]
        if path == HEALTH and target.sandbox_id is not None:
            found = self._gate.platform.reach(target.sandbox_id, None, wake=False)
        else:
            found = self._reached(target, scope, wake=path == FILES or path.startswith(_WAKING_PREFIXES))
        self._gate.rates.check_sandbox(found.sandbox_id)
        return found

    def _reached(self, target: Target, scope: Scope, *, wake: bool) -> Located:
        signed = _signed(scope)
        token = header(scope, b"x-access-token")
        if token is None and signed is not None:
            return self._guarded(scope, signed.signature, lambda: self._by_signature(target, signed, wake=wake))
        if target.sandbox_id is None:
            raise _bad_signature()
        secret = f"{target.sandbox_id} {token}"
        reach = self._gate.platform.reach
        return self._guarded(scope, secret, lambda: reach(target.sandbox_id or "", token or "", wake=wake))

    def _guarded(self, scope: Scope, secret: str, reach: _Reach) -> Located:
        """Let an address try only so many wrong secrets."""
        found: list[Located] = []

        def authenticate(_: str) -> Actor:
            found.append(reach())
            return bearer_of(found[0].sandbox_id)

        self._gate.rates.guesses.authenticate(address_of(scope), secret, authenticate)
        return found[0]

    def _by_signature(self, target: Target, signed: _Signed, *, wake: bool) -> Located:
        """Find the one sandbox whose token made a signature; its URL need not say which."""
        found = [
            (sandbox_id, token)
            for sandbox_id, token in self._gate.platform.tokens()
            if target.sandbox_id in (None, sandbox_id)
            and signature.is_signed(signed.signature, signed.path, signed.operation, signed.user, token, signed.expires)
        ]
        if len(found) != 1 or signature.is_over(signed.expires, self._wall()):
            raise _bad_signature()
        return self._gate.platform.reach(*found[0], wake=wake)


def _signed(scope: Scope) -> _Signed | None:
    """Return what a signed URL says, ``None`` if it is none; each part of it may be there once only."""
    if scope["path"] != FILES:
        return None
    try:
        text = scope["query_string"].decode("ascii")
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_QUERY_FIELDS_MAX, errors="surrogateescape")
    except ValueError:
        return None
    query = dict(pairs)
    if "signature" not in query or len(query) != len(pairs):
        return None
    return _Signed(
        signature=query["signature"],
        path=query.get("path", ""),
        operation="write" if scope["method"] == "POST" else "read",
        user=query.get("username"),
        expires=query.get("signature_expiration"),
    )


def _unserved(target: Target, path: str) -> Response | None:
    """Return the reply to what no sandbox serves, whoever asks."""
    if target.sandbox_id is not None and not addressing.is_id(target.sandbox_id):
        return gone_reply(target.sandbox_id[:64])
    if target.port != DATA_PORT:
        message = (
            f"cannot forward to the port {target.port} of the sandbox {target.sandbox_id}: ports are forwarded "
            "by host name, below the domain that the daemon's setting e2b.domain names; ask by such a name"
        )
        return json_reply(501, {"sandboxId": target.sandbox_id, "message": message, "port": target.port, "code": 501})
    if path in INTERNAL:
        return json_reply(404, {"code": 404, "message": f"cannot find {path}: it is for the sandbox's host only"})
    return None


def _refused(scope: Scope, error: FluxError, sandbox_id: str) -> Response:
    scope["state"]["outcome"] = error.code.value
    return refusal(error, sandbox_id)


def _bad_signature() -> FluxError:
    return FluxError(
        Code.UNAUTHENTICATED,
        "cannot use this URL: its signature is over, or of no sandbox that lives; have a new one made",
    )
