"""A daemon of its own for a comparison, spoken to over its REST interface, and the command line as a whole process."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benches.measure import BIN

START_SECONDS = 30


class Daemon:
    """A running ``fluxd``: its process id and URL, and its operations as calls with JSON."""

    def __init__(self, state: Path, process: subprocess.Popen[bytes], port: int) -> None:
        self.pid = process.pid
        self.url = f"http://127.0.0.1:{port}"
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        self._headers = {"Authorization": f"Bearer {(state / 'admin-token').read_text().strip()}"}

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Call a route and return the decoded reply; anything but a 2xx ends the comparison."""
        encoded = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, "Content-Type": "application/json"}
        self._connection.request(method, path, encoded, headers)
        reply = self._connection.getresponse()
        data = reply.read()
        if not 200 <= reply.status < 300:
            raise RuntimeError(f"{method} {path}: {reply.status} {data[:500]!r}")
        return json.loads(data) if data else None

    def sandbox(self, workspace: Path) -> str:
        """Create a sandbox over a directory and return its id."""
        return str(self.call("POST", "/v1/sandboxes", {"workspace": str(workspace)})["id"])

    def speculate(self, sandbox: str, command: str, **fields: Any) -> dict[str, Any]:
        """Speculate and return the changeset."""
        reply: dict[str, Any] = self.call("POST", f"/v1/sandboxes/{sandbox}/speculate", {"command": command, **fields})
        if reply["exit_code"] != 0:
            raise RuntimeError(f"{command}: exit code {reply['exit_code']}: {reply['stderr']}")
        return reply

    def decide(self, sandbox: str, changeset: str, verb: str) -> dict[str, Any]:
        """Approve, reject, apply or revert a changeset."""
        reply: dict[str, Any] = self.call("POST", f"/v1/sandboxes/{sandbox}/changesets/{changeset}/{verb}", {})
        return reply


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/healthz")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"the daemon did not answer within {START_SECONDS} s")


@contextmanager
def daemon(place: Path) -> Iterator[Daemon]:
    """Start a daemon with a state directory in ``place``, and end it afterwards."""
    state, port = place / "state", _free_port()
    with (place / "daemon.log").open("wb") as log:
        process = subprocess.Popen(
            [str(BIN / "fluxd"), "--state-dir", str(state), "--listen", f"127.0.0.1:{port}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            _wait_for(port, process)
            yield Daemon(state, process, port)
        finally:
            process.terminate()
            process.wait(timeout=30)


def fluxctl(state: Path, *arguments: str) -> Any:
    """Run the command line as a whole process, embedded, and return what it prints."""
    command = [str(BIN / "fluxctl"), "--state-dir", str(state), "--json", *arguments]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {result.stderr.decode(errors='replace')}")
    return json.loads(result.stdout)
