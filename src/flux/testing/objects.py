"""An object store in memory that can be down, refuse, lose, delay and damage (spec: generations, §6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

from flux.core.errors import Code, FluxError
from flux.core.objects import check_key

Method: TypeAlias = Literal["put_new", "get", "get_range", "head", "list", "delete"]


class FakeObjectStore:
    """Implements ``ports.artifacts.ObjectStore``.

    ``objects``: key → content, to be looked at and changed by tests. ``before``: called before each call takes effect,
    with the method and the key; what it raises is raised. ``calls``: all calls so far. ``now``: the time that new
    objects get, in wall-clock seconds. ``received``: bytes that were put.
    """

    def __init__(self, now: Callable[[], float] = lambda: 0.0) -> None:
        self.objects: dict[str, bytes] = {}
        self.times: dict[str, float] = {}
        self.calls: list[tuple[Method, str]] = []
        self.before: Callable[[Method, str], None] = lambda method, key: None
        self.now = now
        self.received = 0
        self._lost = ""

    def put_new(self, key: str, data: bytes) -> bool:
        self._reach("put_new", key)
        created = key not in self.objects
        if created:
            self.objects[key] = bytes(data)
            self.times[key] = self.now()
            self.received += len(data)
        self._lose("put_new", key)
        return created

    def get(self, key: str) -> bytes:
        self._reach("get", key)
        return self._content(key)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        self._reach("get_range", key)
        return self._content(key)[offset : offset + length]

    def head(self, key: str) -> int | None:
        self._reach("head", key)
        found = self.objects.get(key)
        return None if found is None else len(found)

    def list(self, prefix: str) -> list[tuple[str, int, float]]:
        top = prefix.strip("/")
        if top:
            check_key(top)
        self.calls.append(("list", prefix))
        self.before("list", prefix)
        found = [key for key in self.objects if not top or key.startswith(top + "/")]
        return sorted((key, len(self.objects[key]), self.times.get(key, 0.0)) for key in found)

    def delete(self, key: str) -> None:
        self._reach("delete", key)
        self.objects.pop(key, None)
        self.times.pop(key, None)
        self._lose("delete", key)

    def damage(self, key: str, at: int = -1) -> None:
        """Flip one bit of an object: of its byte ``at``, by default one in the middle."""
        data = bytearray(self.objects[key])
        data[len(data) // 2 if at < 0 else at] ^= 1
        self.objects[key] = bytes(data)

    @contextmanager
    def failing(self, error: Callable[[], FluxError], method: Method | None = None, key: str = "") -> Iterator[None]:
        """Let calls fail, before they do anything: all, or those of one method, or of keys that begin with ``key``."""
        previous = self.before

        def fail(called: Method, at: str) -> None:
            previous(called, at)
            if method in (None, called) and at.startswith(key):
                raise error()

        self.before = fail
        try:
            yield
        finally:
            self.before = previous

    def lose_reply(self, key: str) -> None:
        """Do the next put or deletion of a key that begins with ``key``, and then fail as if nothing had come back."""
        self._lost = key

    def _lose(self, method: Method, key: str) -> None:
        if self._lost and key.startswith(self._lost):
            self._lost = ""
            raise slow()

    def _reach(self, method: Method, key: str) -> None:
        check_key(key)
        self.calls.append((method, key))
        self.before(method, key)

    def _content(self, key: str) -> bytes:
        if key not in self.objects:
            raise FluxError(Code.NOT_FOUND, f"cannot read {key} in the object store: it is not there", {"key": key})
        return self.objects[key]


def down() -> FluxError:
    """Return what an adapter raises whose store cannot be reached."""
    return FluxError(Code.UNAVAILABLE, "cannot reach the object store: connection refused: see that it runs")


def slow() -> FluxError:
    """Return what an adapter raises whose store did not answer in time."""
    return FluxError(Code.UNAVAILABLE, "cannot reach the object store: no answer in time: see that it runs")


def refusing() -> FluxError:
    """Return what an adapter raises whose store is full."""
    return FluxError(Code.EXHAUSTED, "cannot store anything in the object store: it is full: make room there")


def denying() -> FluxError:
    """Return what an adapter raises whose store does not know its credentials."""
    return FluxError(Code.DENIED, "cannot use the object store: access denied: see the credentials")
