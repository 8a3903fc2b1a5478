"""A whole Flux in this process, with real sandboxes over the built-in template (root), for the benches of waking."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flux.app.compose import compose
from flux.app.config import Config
from flux.control.platform import Platform
from flux.core.access import Actor, Role
from flux.core.requests import CreateSandbox, Exec, Pause, Resume

ADMIN = Actor(name="bench", role=Role.ADMIN)


class Wakes:
    """Sandboxes, and what is measured of them."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform

    def create(self) -> str:
        """Return the id of a new sandbox that has written a file."""
        sandbox = self._platform.create_sandbox(ADMIN, CreateSandbox()).sandbox.id
        self._platform.execute(ADMIN, sandbox, Exec(argv=["/bin/sh", "-c", "echo kept > /home/user/note"]))
        return sandbox

    def pause(self, sandbox: str) -> None:
        """Pause it."""
        self._platform.pause(ADMIN, sandbox, Pause())

    def connect(self, sandbox: str) -> None:
        """Wake it."""
        if self._platform.resume(ADMIN, sandbox, Resume()).woke_from != "artifact":
            raise SystemExit(f"sandbox {sandbox} did not wake from its artifact")


@contextmanager
def wakes(place: Path) -> Iterator[Wakes]:
    """Open a state directory in ``place`` with everything that a daemon has, uploads aside."""
    state = place / "state"
    state.mkdir(mode=0o700)
    runtime = compose(Config(state_dir=str(state)), persistent=True)
    try:
        runtime.recover()
        yield Wakes(runtime.platform)
    finally:
        runtime.close()
