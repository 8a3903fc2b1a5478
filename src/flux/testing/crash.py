"""Making exactly one call fail, or be the last of its process. Every call of the Files port reaches its point first.

A sweep counts the calls of a scenario once and then runs it once for each of them: nothing that can go wrong is left to
choice.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection

from flux.failpoints import Action, Point, armed


class Nth:
    """Has an effect at the ``number``-th point that is reached (from 1), or from it on with ``onwards``.

    ``spared`` points neither count nor suffer.
    """

    def __init__(self, number: int, effect: Action, *, onwards: bool = False, spared: Collection[Point] = ()) -> None:
        self._number = number
        self._effect = effect
        self._onwards = onwards
        self._spared = spared
        self.reached = 0

    def __call__(self, point: Point) -> None:
        if point in self._spared:
            return
        self.reached += 1
        if self.reached == self._number or (self._onwards and self.reached > self._number):
            self._effect(point)


def die(point: Point) -> None:
    """End this process at once, as ``kill -9`` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail(number: int) -> Action:
    """Return the effect that a call fails with the given errno."""

    def effect(point: Point) -> None:
        raise OSError(number, os.strerror(number), point.value)

    return effect


def count(action: Callable[[], object]) -> int:
    """Return how many points ``action`` reaches."""
    counter = Nth(0, lambda point: None)
    with armed(counter):
        action()
    return counter.reached


def in_child(action: Callable[[], object], effect: Action | None = None) -> int:
    """Run ``action`` in a forked child with ``effect`` armed; return minus the signal that killed it, or its exit code.

    An exception in the child is printed and gives the exit code 1.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with armed(effect or (lambda point: None)):
                action()
            code = 0
        except BaseException:
            traceback.print_exc(file=sys.stderr)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
