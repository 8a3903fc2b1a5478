"""A real ``fluxd`` on loopback for tests: started on a state directory, spoken to, stopped or killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from flux.api.http import HttpClient

ENVIRONMENT = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8"}
SECONDS_MAX = 60.0


class Daemon:
    """One running ``fluxd``."""

    def __init__(self, state_directory: Path, *options: str) -> None:
        self.state_directory = state_directory
        self.log = state_directory.parent / f"{state_directory.name}.log"
        self.process = launch(state_directory, self.log, *options)
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        assert line.startswith("fluxd is ready on "), (line, self.log.read_text())
        self.url = line.removeprefix("fluxd is ready on ").strip()
        self.token = (state_directory / "admin-token").read_text().strip()

    def http(self, token: str | None = None, **options: Any) -> httpx.Client:
        """Return a client that sends ``token``, by default the administrator's."""
        headers = {"authorization": f"Bearer {token or self.token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=SECONDS_MAX, **options)

    def anonymous(self, **options: Any) -> httpx.Client:
        """Return a client without credentials."""
        return httpx.Client(base_url=self.url, timeout=SECONDS_MAX, **options)

    def client(self, token: str | None = None) -> HttpClient:
        """Return Flux's own client."""
        return HttpClient(self.url, token or self.token)

    def local(self) -> HttpClient:
        """Return Flux's own client over the unix socket."""
        return HttpClient(f"unix:{self.state_directory / 'socket'}")

    def records(self) -> list[dict[str, Any]]:
        """Return what the daemon logged."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def signal(self, number: int) -> None:
        """Send the daemon a signal."""
        self.process.send_signal(number)

    def stop(self) -> int:
        """Ask the daemon to stop and return its exit code."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.ended()

    def kill(self) -> None:
        """End the daemon as a power cut would."""
        self.process.kill()
        self.ended()

    def ended(self) -> int:
        """Wait for the daemon's end and return its exit code."""
        code = self.process.wait(SECONDS_MAX)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def launch(state_directory: Path, log: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start ``fluxd`` without waiting for it."""
    command = [sys.executable, "-m", "flux.app.fluxd", "--state-dir", str(state_directory)]
    if "--listen" not in options:
        command += ["--listen", "127.0.0.1:0"]
    with log.open("ab") as stream:
        return subprocess.Popen(
            [*command, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stream,
            env={**ENVIRONMENT, "HOME": str(state_directory.parent)},
        )
