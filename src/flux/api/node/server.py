"""Serves a node's manager over gRPC. Nothing here rewrites a refusal (§5.2)."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from flux.api.node.messages import Nothing, checked, decode, encode
from flux.api.node.service import CALLS, DESCRIPTOR, NAME, Call
from flux.api.node.statuses import METADATA_BYTES_MAX, metadata_of, status_of
from flux.core.errors import Code, FluxError
from flux.ports.node import Node

#: Calls at once; those that wait for another one's end count too.
THREADS = 64
MESSAGE_BYTES_MAX = 64 * 1024 * 1024
_BEARER = "Bearer "

#: Hears of a call that failed for no reason that Flux knows of: its name and the exception.
Fault = Callable[[str, BaseException], None]


class NodeServer:
    """A gRPC server of one node.

    Args:
        node: what answers.
        address: where to listen, ``HOST:PORT``; port 0 lets the kernel choose.
        token: what every call must carry as ``authorization: Bearer TOKEN``.
        certificate: PEM of the certificate chain and of its private key, to speak TLS.
        fault: hears of calls that failed unexpectedly.

    Raises:
        FluxError: ``unavailable`` if the address is taken.
    """

    def __init__(
        self,
        node: Node,
        address: str,
        token: str,
        *,
        certificate: tuple[bytes, bytes] | None = None,
        fault: Fault = lambda _name, _error: None,
    ) -> None:
        self._server = grpc.server(
            ThreadPoolExecutor(THREADS, thread_name_prefix="flux-node"),
            options=[
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
                ("grpc.max_metadata_size", METADATA_BYTES_MAX),
                ("grpc.so_reuseport", 0),
            ],
        )
        self._server.add_generic_rpc_handlers([_Handlers(node, token, fault)])
        self.port = self._listen(address, certificate)

    def _listen(self, address: str, certificate: tuple[bytes, bytes] | None) -> int:
        try:
            if certificate is None:
                return int(self._server.add_insecure_port(address))
            chain, key = certificate
            return int(self._server.add_secure_port(address, grpc.ssl_server_credentials([(key, chain)])))
        except RuntimeError as error:
            raise FluxError(
                Code.UNAVAILABLE,
                f"cannot listen on {address} for the control plane: the address is taken or not ours; "
                "choose another by [node] listen",
            ) from error

    def start(self) -> None:
        """Answer calls from now on."""
        self._server.start()

    def stop(self, grace_seconds: float) -> None:
        """Take no more calls, let those that run finish for so long, then cut them. Returns when all have ended."""
        self._server.stop(grace_seconds).wait()


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds the handler of each call of the table."""

    def __init__(self, node: Node, token: str, fault: Fault) -> None:
        self._handlers = {
            f"/{NAME}/{name}": grpc.unary_unary_rpc_method_handler(_Handler(name, call, node, token, fault))
            for name, call in CALLS.items()
        }

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler, or nothing: gRPC then answers UNIMPLEMENTED."""
        return self._handlers.get(handler_call_details.method)


class _Handler:
    """Answers one call. Messages arrive as bytes, so that what cannot be read is refused as everything else is."""

    def __init__(self, name: str, call: Call, node: Node, token: str, fault: Fault) -> None:
        self._name = name
        self._call = call
        self._token = token
        self._fault = fault
        self._message: type[Message] = GetMessageClass(DESCRIPTOR.methods_by_name[name].input_type)
        self._act: Callable[..., Any] = getattr(node, call.method)

    def __call__(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        """Check who calls, decode, act, encode."""
        try:
            self._authenticate(context)
            request = self._request(raw)
            reply = self._act() if request is None else self._act(request)
            return b"" if self._call.reply is Nothing else encode(reply).SerializeToString()
        except FluxError as error:
            _refuse(context, error)
        except Exception as error:
            # No details of the node: the control plane takes the outcome for unknown, as it is.
            self._fault(self._name, error)
            context.abort(grpc.StatusCode.INTERNAL, f"a fault of the node: {type(error).__name__}; see its log")
            raise

    def _authenticate(self, context: grpc.ServicerContext) -> None:
        given = dict(context.invocation_metadata()).get("authorization", "")
        expected = (_BEARER + self._token).encode()
        if not hmac.compare_digest(str(given).encode("utf-8", "surrogateescape"), expected):
            raise FluxError(
                Code.UNAUTHENTICATED, "cannot serve this caller: its token is not the one in this node's node.token"
            )

    def _request(self, raw: bytes) -> Any:
        message = self._message()
        try:
            message.ParseFromString(raw)
        except DecodeError as error:
            raise FluxError(Code.INVALID, f"cannot read the {self._name} request: it is no such message") from error
        if self._call.request is Nothing:
            return None
        request: Any = checked(decode(message, self._call.request))
        if self._call.method == "activate" and request.create is not (self._name == "Create"):
            raise FluxError(Code.INVALID, f"cannot {self._name.lower()}: the request is meant for the other call")
        return request


def _refuse(context: grpc.ServicerContext, error: FluxError) -> NoReturn:
    context.set_trailing_metadata(metadata_of(error))
    text = error.message.encode("utf-8", "backslashreplace").decode()[:1000]
    context.abort(status_of(error), text)
    raise AssertionError("abort raises")
