"""The real ``fluxctl``, run as its users do: on a state directory by itself, and on a daemon by its URL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BASE_ENVIRONMENT = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}


class Done:
    """What a run left: exit code, stdout as bytes, stderr as text."""

    def __init__(self, process: subprocess.CompletedProcess[bytes]) -> None:
        self.code = process.returncode
        self.stdout = process.stdout
        self.stderr = process.stderr.decode("utf-8", "surrogateescape")

    def reply(self) -> Any:
        assert self.stdout, (self.code, self.stderr)
        return json.loads(self.stdout)


class Program:
    """``fluxctl`` with its global options and an environment that holds nothing of the user's."""

    def __init__(self, options: list[str], home: Path, **environment: str) -> None:
        self.options = options
        self.environment = {**BASE_ENVIRONMENT, "HOME": str(home), **environment}

    def run(self, *words: str, stdin: bytes = b"", cwd: Path | None = None) -> Done:
        command = [sys.executable, "-m", "flux.app.fluxctl", *self.options, *words]
        process = subprocess.run(command, input=stdin, capture_output=True, env=self.environment, cwd=cwd, check=False)
        return Done(process)

    def started(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a command that goes on by itself; its stdout is a pipe."""
        command = [sys.executable, "-m", "flux.app.fluxctl", *self.options, *words]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=self.environment)

    def __call__(self, *words: str, stdin: bytes = b"") -> Any:
        """Run a command that must succeed and return its JSON reply."""
        done = self.run(*words, stdin=stdin)
        assert done.code == 0, (words, done.code, done.stderr)
        return done.reply()

    def refused(self, code: int, *words: str) -> dict[str, Any]:
        """Run a command that must fail with that exit code and return the error object it wrote to stderr."""
        done = self.run("--json", *words)
        assert done.code == code, (words, done.code, done.stdout, done.stderr)
        assert done.stdout == b""
        error: dict[str, Any] = json.loads(done.stderr)
        assert set(error) == {"code", "message", "details"}
        plain = self.run(*words)
        assert (plain.code, plain.stdout) == (code, b"")
        assert plain.stderr.startswith("fluxctl: cannot "), plain.stderr
        return error


@pytest.fixture(scope="session")
def embedded_program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    place = tmp_path_factory.mktemp("embedded")
    return Program(["--state-dir", str(place / "state")], place)


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Program, Any]]:
    """A running daemon: the program on its state directory, and the reply of ``daemon start``."""
    place = tmp_path_factory.mktemp("daemon")
    program = Program(["--state-dir", str(place / "state")], place)
    started = program("daemon", "start", "--listen", "127.0.0.1:0")
    yield program, started
    program("daemon", "stop")


@pytest.fixture(params=["embedded", "server"])
def flux(request: pytest.FixtureRequest) -> Program:
    """The program, once with an engine of its own and once on a daemon by its URL."""
    if request.param == "embedded":
        program: Program = request.getfixturevalue("embedded_program")
        return program
    local, started = request.getfixturevalue("daemon")
    token = Path(started["state_directory"], "admin-token").read_text().strip()
    return Program(["--server", started["url"]], Path(local.environment["HOME"]), FLUX_TOKEN=token)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    (place / "dir").mkdir(parents=True)
    (place / "a.txt").write_text("one\n")
    (place / "dir" / "b.txt").write_text("two\n")
    return place


@pytest.fixture
def sandbox(flux: Program, workspace: Path) -> Iterator[str]:
    """The id of a sandbox bound to ``workspace``."""
    made = flux("sandbox", "create", "--workspace", str(workspace))
    yield made["id"]
    flux.run("sandbox", "rm", made["id"])
