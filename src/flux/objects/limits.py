"""What an object may be at most: all of them are held in memory as a whole."""

from __future__ import annotations

from flux.core.errors import Code, FluxError

#: A pack has 16 MiB; a layer's description about 160 bytes for each 64 KiB of content and for each file.
OBJECT_BYTES_MAX = 1 << 30


def check_size(key: str, size: int) -> None:
    """Raise ``FluxError`` ``too_large`` for an object that Flux cannot have stored. ``size`` in bytes."""
    if size > OBJECT_BYTES_MAX:
        raise FluxError(
            Code.TOO_LARGE,
            f"cannot read {key}: it has {size} bytes and none has more than {OBJECT_BYTES_MAX}: see who wrote it",
        )
