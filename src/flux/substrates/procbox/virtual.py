"""Reading and writing the kernel's own files (``/proc``, cgroups), where one call carries the whole content."""

from __future__ import annotations

import os
import re

_BYTES = 1 << 16
#: How the kernel writes blanks and backslashes of a path.
_ESCAPED = re.compile(r"\\([0-7]{3})")


def read(path: str) -> str:
    """Return a file's content; empty if there is no such file or the kernel does not give it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    parts = []
    try:
        while part := os.read(descriptor, _BYTES):
            parts.append(part)
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return b"".join(parts).decode("utf-8", "surrogateescape")


def mount_points() -> set[str]:
    """Return where something is mounted, as this process sees it."""
    places = {line.split(" ", 5)[4] for line in read("/proc/self/mountinfo").splitlines()}
    return {_ESCAPED.sub(lambda found: chr(int(found[1], 8)), place) for place in places}


def write(path: str, text: str) -> None:
    """Tell the kernel something.

    Raises:
        OSError: it refuses.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode("ascii"))
    except OSError as error:
        error.filename = path
        raise
    finally:
        os.close(descriptor)
