"""The caller's own terminal while a command's terminal is shown on it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

FALLBACK = (24, 80)


def size_of(descriptor: int) -> tuple[int, int]:
    """Return rows and columns of a terminal; the usual ones if it does not know."""
    try:
        size = os.get_terminal_size(descriptor)
    except OSError:
        return FALLBACK
    return (size.lines or FALLBACK[0], size.columns or FALLBACK[1])


@contextmanager
def raw(descriptor: int | None) -> Iterator[None]:
    """Let every key through to the command, and put the terminal back afterwards."""
    if descriptor is None or not os.isatty(descriptor):
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSANOW)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextmanager
def watching_size(descriptor: int, tell: Callable[[int, int], None]) -> Iterator[None]:
    """Call ``tell`` with rows and columns whenever the window changes. Only the main thread hears of it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def changed(number: int, frame: Any) -> None:
        tell(*size_of(descriptor))

    before = signal.signal(signal.SIGWINCH, changed)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
