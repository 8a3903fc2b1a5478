"""A node behind gRPC. What is not the node's own word is an unknown outcome, or ``unavailable`` if nothing was sent."""

from __future__ import annotations

import socket
from typing import Any, TypeVar

import grpc
import msgspec
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from flux.api.node.messages import Nothing, decode, encode
from flux.api.node.service import CALLS, DESCRIPTOR, NAME, Call
from flux.api.node.statuses import METADATA_BYTES_MAX, error_in
from flux.core import node
from flux.core.errors import Code, FluxError
from flux.core.paths import printable

R = TypeVar("R", bound=msgspec.Struct)

_CONNECT_SECONDS = 5.0
_MESSAGE_BYTES_MAX = 64 * 1024 * 1024
_OPTIONS = (
    # A repeat is the control plane's to decide: it knows what a repeat means.
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", _MESSAGE_BYTES_MAX),
    ("grpc.max_metadata_size", METADATA_BYTES_MAX),
    # A node that is gone without a word is noticed while a call waits for it.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
)


class NodeClient:
    """Implements ``ports.node.Node`` over gRPC. Thread-safe.

    Args:
        address: ``HOST:PORT`` of the node's gRPC server.
        token: the node's token.
        authority: PEM of the certificate authority to trust; without it the connection is not encrypted.
        deadline_factor: multiplies every call's deadline; for tests.
    """

    def __init__(
        self, address: str, token: str, *, authority: bytes | None = None, deadline_factor: float = 1.0
    ) -> None:
        self._address = address
        self._factor = deadline_factor
        self._metadata = (("authorization", f"Bearer {token}"),)
        if authority is None:
            self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(root_certificates=authority)
            self._channel = grpc.secure_channel(address, credentials, options=_OPTIONS)

    def activate(self, request: node.Activate) -> node.Activated:
        """Create or Start."""
        return self._call("Create" if request.create else "Start", request, node.Activated)

    def suspend(self, request: node.Suspend) -> node.Suspended:
        """Save an execution and end it."""
        return self._call("Suspend", request, node.Suspended)

    def stop(self, request: node.Stop) -> node.Stopped:
        """End an execution without saving it."""
        return self._call("Stop", request, node.Stopped)

    def tear_down(self, request: node.TearDown) -> node.TornDown:
        """End a generation for good."""
        return self._call("Teardown", request, node.TornDown)

    def evict(self, request: node.Evict) -> None:
        """Delete an idle, backed-up sandbox from the node's disk."""
        self._call("Evict", request, Nothing)

    def destroy(self, request: node.Destroy) -> node.Destroyed:
        """End everything of a sandbox, for ever."""
        return self._call("Delete", request, node.Destroyed)

    def capture(self, request: node.Capture) -> node.Captured:
        """Take a snapshot of a running execution."""
        return self._call("Capture", request, node.Captured)

    def inventory(self, request: node.Inventory) -> node.Inventoried:
        """Tell the node facts and get its report."""
        return self._call("Inventory", request, node.Inventoried)

    def list(self) -> node.Listed:
        """Return every row and artifact."""
        return self._call("List", None, node.Listed)

    def describe(self) -> node.Described:
        """Return which node this is."""
        return self._call("Describe", None, node.Described)

    def close(self) -> None:
        """Close the connection; calls that wait end with an unknown outcome. Idempotent."""
        self._channel.close()

    def _call(self, name: str, request: msgspec.Struct | None, shape: type[R]) -> R:
        row = CALLS[name]
        raw = b"" if request is None else encode(request).SerializeToString()
        self._connect(name)
        reply = self._send(name, row, raw)
        if shape is Nothing:
            return shape()
        message = GetMessageClass(DESCRIPTOR.methods_by_name[name].output_type)()
        try:
            message.ParseFromString(reply)
            return decode(message, shape)
        except (DecodeError, FluxError) as error:
            raise self._unknown(name, f"its answer cannot be read ({type(error).__name__})") from error

    def _connect(self, name: str) -> None:
        """Tell a node that cannot be reached from one that does not answer: the one was sent nothing for sure."""
        host, _, port = self._address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS):
                return
        except (OSError, ValueError) as error:
            raise self._unreachable(name) from error

    def _send(self, name: str, row: Call, raw: bytes) -> bytes:
        try:
            call = self._channel.unary_unary(f"/{NAME}/{name}")
            timeout = row.deadline_seconds * self._factor
            reply: bytes = call(raw, timeout=timeout, metadata=self._metadata, wait_for_ready=True)
            return reply
        except grpc.RpcError as error:
            raise self._failed(name, error) from error
        except ValueError as error:  # the channel was closed meanwhile, by this process
            raise self._unreachable(name) from error

    def _failed(self, name: str, error: Any) -> FluxError:
        told = error_in(error.trailing_metadata())
        if told is not None and "node_store_id" in told.details:
            return told
        said = told.message if told is not None else f"{error.code().name.lower()}: {error.details()}"
        return self._unknown(name, printable(said)[:300])

    def _unknown(self, name: str, why: str) -> FluxError:
        return FluxError(
            Code.UNKNOWN_OUTCOME,
            f"cannot tell the outcome of {name} on the node at {printable(self._address)}: {why}; "
            "the control plane asks again or settles it",
            {"reason": "UnknownOutcome", "call": name},
        )

    def _unreachable(self, name: str) -> FluxError:
        return FluxError(
            Code.UNAVAILABLE,
            f"cannot reach the node at {printable(self._address)} for {name}: no connection; nothing was sent",
            {"reason": "NodeUnreachable", "call": name},
        )
