"""Room on disk for content that is about to be written: there is enough, or it is known before anything is changed."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

_KEEP_SIZE = 0x01


def reserve(descriptor: int, size: int) -> None:
    """Reserve the first ``size`` bytes of an open file; its length and content stay as they are.

    Raises:
        OSError: ``ENOSPC`` if they are not there, ``EOPNOTSUPP`` where the file system cannot tell.
    """
    if _fallocate()(descriptor, _KEEP_SIZE, ctypes.c_longlong(0), ctypes.c_longlong(size)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@cache
def _fallocate() -> Any:
    return ctypes.CDLL(None, use_errno=True).fallocate64
