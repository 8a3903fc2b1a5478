"""Network namespaces: a new one, and doing something in one.

A namespace belongs to a thread, so each of this is done by a thread that ends with it; a process that it starts is born
into its namespace.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_NEW_NETWORK = 0x40000000
_OWN = "/proc/thread-self/ns/net"


def new() -> int:
    """Return a descriptor of a new network namespace, which ends with the last descriptor and process of it.

    Raises:
        OSError: the kernel refuses.
    """

    def make() -> int:
        _call("unshare", _NEW_NETWORK)
        return os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)

    return _apart(make)


def inside(namespace: int | None, action: Callable[[], T]) -> T:
    """Do something in the network namespace of a descriptor, or in the caller's if there is none; return its result.

    Raises:
        OSError: the namespace cannot be entered; else what ``action`` raises.
    """
    if namespace is None:
        return action()

    def enter() -> T:
        _call("setns", namespace, _NEW_NETWORK)
        return action()

    return _apart(enter)


def _apart(action: Callable[[], T]) -> T:
    results: list[T] = []
    failures: list[BaseException] = []

    def act() -> None:
        try:
            results.append(action())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=act, name="flux-network-namespace")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def _call(name: str, *arguments: int) -> None:
    """Make a system call that Python lacks."""
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
