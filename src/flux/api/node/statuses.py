"""How errors travel over gRPC: one status per code unless the node says which, and the whole error beside it.

The status is for other programs; between control plane and node the error itself counts, as JSON in trailing metadata.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

import grpc

from flux.api import wire
from flux.core.errors import Code, FluxError

ERROR_KEY = "flux-error-bin"
#: Bytes of metadata that both ends take; gRPC's own bound is 8 KiB.
METADATA_BYTES_MAX = 256 * 1024
_ERROR_BYTES_MAX = METADATA_BYTES_MAX // 2
#: What decisions are made by, kept also where the details as a whole are too long to travel.
_KEPT = ("reason", "node_store_id", "generation", "attempt_id", "floor", "ended", "grpc_status")

_STATUSES = MappingProxyType(
    {
        Code.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
        Code.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
        Code.DENIED: grpc.StatusCode.PERMISSION_DENIED,
        Code.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
        Code.ALREADY_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
        Code.CONFLICT: grpc.StatusCode.ABORTED,
        Code.FENCED: grpc.StatusCode.FAILED_PRECONDITION,
        Code.ILLEGAL_STATE: grpc.StatusCode.FAILED_PRECONDITION,
        Code.EXPIRED: grpc.StatusCode.FAILED_PRECONDITION,
        Code.TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
        Code.NOT_APPLICABLE: grpc.StatusCode.FAILED_PRECONDITION,
        Code.EXHAUSTED: grpc.StatusCode.RESOURCE_EXHAUSTED,
        Code.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
        Code.UNKNOWN_OUTCOME: grpc.StatusCode.UNKNOWN,
        Code.INTERNAL: grpc.StatusCode.INTERNAL,
    }
)


def status_of(error: FluxError) -> grpc.StatusCode:
    """Return the status of an error: the one that its own details name, else the one of its code."""
    named = error.details.get("grpc_status")
    found = getattr(grpc.StatusCode, named, None) if isinstance(named, str) else None
    return found if isinstance(found, grpc.StatusCode) else _STATUSES[error.code]


def metadata_of(error: FluxError) -> tuple[tuple[str, bytes], ...]:
    """Return the trailing metadata that carries an error."""
    encoded = wire.encode_error(error)
    if len(encoded) > _ERROR_BYTES_MAX:
        details = {name: error.details[name] for name in _KEPT if name in error.details}
        encoded = wire.encode_error(FluxError(error.code, error.message[:1000], details))
    return ((ERROR_KEY, encoded),)


def error_in(metadata: Iterable[tuple[str, Any]] | None) -> FluxError | None:
    """Return the error that trailing metadata carries, or nothing if it carries none of Flux."""
    for key, value in metadata or ():
        if key == ERROR_KEY:
            return wire.decode_error(value)
    return None
