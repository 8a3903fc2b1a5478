"""Who may work on what at once (spec: speculation).

- A changeset: one request; a second one is refused at once.
- A workspace root: speculations share it, apply and revert have it alone. Roots that overlap count as one.
- A sandbox: its operations run side by side; deleting it ends them and keeps new ones out.
"""

from __future__ import annotations

import errno
import fcntl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

import msgspec

from flux.core.errors import Code, FluxError

Inode: TypeAlias = tuple[int, int]

_POLL_SECONDS = 0.02


class Extent(msgspec.Struct, frozen=True):
    """A root directory by ``(device, inode)``, with those of the directories above it."""

    root: Inode
    above: frozenset[Inode]

    def overlaps(self, other: Extent) -> bool:
        """Tell whether one of the two is, or lies in, the other."""
        return self.root == other.root or self.root in other.above or other.root in self.above


class Claim(msgspec.Struct, eq=False):
    """One operation that holds, or waits for, a root."""

    extent: Extent
    exclusive: bool
    granted: bool = False

    def excludes(self, other: Claim) -> bool:
        """Tell whether the two cannot have their roots at the same time."""
        return (self.exclusive or other.exclusive) and self.extent.overlaps(other.extent)


class Locks:
    """The locks of one engine.

    Args:
        wait_seconds: how long an operation waits for a root.
    """

    def __init__(self, wait_seconds: float) -> None:
        self._wait_seconds = wait_seconds
        self._condition = threading.Condition()
        self._changesets: set[str] = set()
        self._claims: list[Claim] = []
        self._users: Counter[str] = Counter()
        self._closing: set[str] = set()

    @contextmanager
    def changeset(self, changeset_id: str) -> Iterator[None]:
        """Have a changeset alone.

        Raises:
            FluxError: ``conflict``, at once, if another request has it.
        """
        if not self.try_changeset(changeset_id):
            raise FluxError(
                Code.CONFLICT,
                f"cannot work on the changeset {changeset_id}: another request is working on it; look at it again then",
                {"reason": "busy"},
            )
        try:
            yield
        finally:
            self.release_changeset(changeset_id)

    def try_changeset(self, changeset_id: str) -> bool:
        """Take a changeset if nobody has it; the caller gives it back with ``release_changeset``."""
        with self._condition:
            if changeset_id in self._changesets:
                return False
            self._changesets.add(changeset_id)
            return True

    def take_changeset(self, changeset_id: str, seconds: float) -> bool:
        """Take a changeset as soon as nobody has it; ``False`` if somebody still has after so many ``seconds``."""
        with self._condition:
            if not self._condition.wait_for(lambda: changeset_id not in self._changesets, seconds):
                return False
            self._changesets.add(changeset_id)
            return True

    def release_changeset(self, changeset_id: str) -> None:
        """Give a changeset back."""
        with self._condition:
            self._changesets.discard(changeset_id)
            self._condition.notify_all()

    @contextmanager
    def root(self, extent: Extent, *, exclusive: bool) -> Iterator[None]:
        """Have a root, shared or alone; in order of arrival, so that nobody waits for ever.

        Raises:
            FluxError: ``unavailable`` if others have it for longer than the time to wait.
        """
        claim = self.take_root(extent, exclusive=exclusive)
        try:
            yield
        finally:
            self.give_root(claim)

    def take_root(self, extent: Extent, *, exclusive: bool) -> Claim:
        """Have a root for longer than a block, as ``root`` does; ``give_root``, by any thread, ends it."""
        claim = Claim(extent, exclusive)
        with self._condition:
            self._claims.append(claim)
            try:
                if not self._condition.wait_for(lambda: self._first(claim), self._wait_seconds):
                    raise _busy(self._wait_seconds)
                claim.granted = True
            except BaseException:
                self._withdraw(claim)
                raise
        return claim

    def give_root(self, claim: Claim) -> None:
        """Give a root back."""
        with self._condition:
            self._withdraw(claim)

    def _first(self, claim: Claim) -> bool:
        for other in self._claims:
            if other is claim:
                return True
            if claim.excludes(other):
                return False
        return True

    def _withdraw(self, claim: Claim) -> None:
        self._claims.remove(claim)
        self._condition.notify_all()

    @contextmanager
    def sandbox(self, sandbox_id: str) -> Iterator[None]:
        """Use a sandbox.

        Raises:
            FluxError: ``not_found`` if it is being deleted.
        """
        with self._condition:
            if sandbox_id in self._closing:
                raise FluxError(Code.NOT_FOUND, f"cannot find the sandbox {sandbox_id}: it is being deleted")
            self._users[sandbox_id] += 1
        try:
            yield
        finally:
            with self._condition:
                self._users[sandbox_id] -= 1
                if not self._users[sandbox_id]:
                    del self._users[sandbox_id]
                self._condition.notify_all()

    @contextmanager
    def deleting(self, sandbox_id: str, end_users: Callable[[], None]) -> Iterator[None]:
        """Keep new users of a sandbox out, have the present ones ended, and go on when they are gone.

        Raises:
            FluxError: ``not_found`` if somebody else deletes it already.
        """
        with self._condition:
            if sandbox_id in self._closing:
                raise FluxError(Code.NOT_FOUND, f"cannot find the sandbox {sandbox_id}: it is being deleted")
            self._closing.add(sandbox_id)
        try:
            self._drain(sandbox_id, end_users)
            yield
        finally:
            with self._condition:
                self._closing.discard(sandbox_id)

    def _drain(self, sandbox_id: str, end_users: Callable[[], None]) -> None:
        # A user that was only about to start something starts it after the first ending: ask again until all left.
        while True:
            end_users()
            with self._condition:
                if self._condition.wait_for(lambda: sandbox_id not in self._users, 0.2):
                    return


@contextmanager
def host_wide(root: int, wait_seconds: float) -> Iterator[None]:
    """Have a root alone among all of the host's state directories, while something is written to it.

    Raises:
        FluxError: ``unavailable`` if another program holds it for longer than ``wait_seconds``.
    """
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(root, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if error.errno != errno.EWOULDBLOCK:
                break  # a file system without such locks; what is displaced is checked anyway
            if time.monotonic() >= deadline:
                raise _busy(wait_seconds) from error
            time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(root, fcntl.LOCK_UN)


def _busy(waited: float) -> FluxError:
    return FluxError(
        Code.UNAVAILABLE,
        f"cannot have the workspace: others were working on it for {waited:g} s; nothing was changed, try again",
        {"reason": "busy"},
    )
