"""The request behind a changeset, kept so that ``rerun`` repeats it exactly, bytes that are not UTF-8 included."""

from __future__ import annotations

import msgspec

from flux.core.paths import from_portable, portable
from flux.core.requests import Speculate


def encode(request: Speculate) -> bytes:
    """Return the request as JSON."""
    return msgspec.json.encode(
        msgspec.structs.replace(
            request,
            command=None if request.command is None else portable(request.command),
            argv=None if request.argv is None else [portable(argument) for argument in request.argv],
            paths=None if request.paths is None else [portable(path) for path in request.paths],
            environment={key: portable(value) for key, value in request.environment.items()},
            cwd=None if request.cwd is None else portable(request.cwd),
        )
    )


def decode(data: bytes) -> Speculate:
    """Return the request that ``encode`` was given."""
    request = msgspec.json.decode(data, type=Speculate)
    return msgspec.structs.replace(
        request,
        command=None if request.command is None else from_portable(request.command),
        argv=None if request.argv is None else [from_portable(argument) for argument in request.argv],
        paths=None if request.paths is None else [from_portable(path) for path in request.paths],
        environment={key: from_portable(value) for key, value in request.environment.items()},
        cwd=None if request.cwd is None else from_portable(request.cwd),
    )
