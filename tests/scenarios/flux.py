"""Flux from outside, once over REST and once through ``fluxctl``: the same calls, replies and refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeAlias

import httpx

from tests.cases.kit import Program, Refused, Reply

SECONDS_MAX = 120.0


class Rest:
    """The REST API of a daemon. Thread-safe."""

    def __init__(self, url: str, token: str) -> None:
        self.http = httpx.Client(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=SECONDS_MAX)

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def send(self, method: str, path: str, body: Reply | None = None, **options: Any) -> Any:
        """Call a route; a refusal is raised as ``Refused`` with its status."""
        reply = self.http.request(method, f"/v1{path}", json=body, **options)
        if reply.is_error:
            raise Refused(reply.json(), reply.status_code)
        return reply.json() if reply.content else {}

    def create(self, **options: Any) -> Reply:
        key = options.pop("idempotency_key", None)
        headers = {} if key is None else {"Idempotency-Key": key}
        made: Reply = self.send("POST", "/sandboxes", options, headers=headers)
        return made

    def get(self, sandbox: str) -> Reply:
        found: Reply = self.send("GET", f"/sandboxes/{sandbox}")
        return found

    def pause(self, sandbox: str, *, durable: bool = False) -> Reply:
        paused: Reply = self.send("POST", f"/sandboxes/{sandbox}/pause", {"durable": durable})
        return paused

    def resume(self, sandbox: str, timeout_seconds: int | None = None) -> Reply:
        body = {} if timeout_seconds is None else {"timeout_seconds": timeout_seconds}
        resumed: Reply = self.send("POST", f"/sandboxes/{sandbox}/resume", body)
        return resumed

    def run(self, sandbox: str, command: str) -> Reply:
        ended: Reply = self.send("POST", f"/sandboxes/{sandbox}/exec", {"command": command})
        return ended

    def write(self, sandbox: str, path: str, content: bytes) -> None:
        reply = self.http.put(f"/v1/sandboxes/{sandbox}/files", params={"path": path}, content=content)
        if reply.is_error:
            raise Refused(reply.json(), reply.status_code)

    def read(self, sandbox: str, path: str) -> bytes:
        reply = self.http.get(f"/v1/sandboxes/{sandbox}/files", params={"path": path})
        if reply.is_error:
            raise Refused(reply.json(), reply.status_code)
        return reply.content

    def snapshot(self, sandbox: str) -> Reply:
        made: Reply = self.send("POST", f"/sandboxes/{sandbox}/snapshots", {})
        return made

    def fork(self, sandbox: str, count: int = 1) -> list[Reply]:
        made: list[Reply] = self.send("POST", f"/sandboxes/{sandbox}/fork", {"count": count})["items"]
        return made

    def artifacts(self, sandbox: str) -> list[Reply]:
        found: list[Reply] = self.send("GET", "/artifacts", params={"sandbox": sandbox})["items"]
        return found

    def verify(self, artifact: str) -> Reply:
        found: Reply = self.send("POST", f"/artifacts/{artifact}/verify")
        return found

    def collect(self) -> Reply:
        found: Reply = self.send("POST", "/collect")
        return found

    def delete(self, sandbox: str) -> None:
        self.send("DELETE", f"/sandboxes/{sandbox}")


class Command:
    """``fluxctl --json`` on a state directory: embedded, or over the socket of its daemon."""

    def __init__(self, state: Path) -> None:
        self.program = Program(state)

    def feed(self, content: bytes, *words: str) -> bytes:
        """Run the program with an input and without ``--json``; return its output."""
        command = [sys.executable, "-m", "flux.app.fluxctl", "--state-dir", str(self.program.state), *words]
        done = subprocess.run(
            command, input=content, capture_output=True, env=self.program.environment, check=False, timeout=SECONDS_MAX
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def create(self, **options: Any) -> Reply:
        words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        made: Reply = self.program("sandbox", "create", *words)
        return made

    def get(self, sandbox: str) -> Reply:
        found: Reply = self.program("sandbox", "get", sandbox)
        return found

    def pause(self, sandbox: str, *, durable: bool = False) -> Reply:
        paused: Reply = self.program("sandbox", "pause", sandbox, *(["--durable"] if durable else []))
        return paused

    def resume(self, sandbox: str, timeout_seconds: int | None = None) -> Reply:
        words = [] if timeout_seconds is None else ["--timeout", str(timeout_seconds)]
        resumed: Reply = self.program("sandbox", "resume", sandbox, *words)
        return resumed

    def run(self, sandbox: str, command: str) -> Reply:
        done = self.program.run("sandbox", "exec", sandbox, "--", command, timeout=SECONDS_MAX)
        if not done.stdout:
            raise Refused(json.loads(done.stderr))
        ended: Reply = json.loads(done.stdout)
        return ended

    def write(self, sandbox: str, path: str, content: bytes) -> None:
        self.feed(content, "sandbox", "cp", "-", f"{sandbox}:{path}")

    def read(self, sandbox: str, path: str) -> bytes:
        return self.feed(b"", "sandbox", "cp", f"{sandbox}:{path}", "-")

    def snapshot(self, sandbox: str) -> Reply:
        made: Reply = self.program("sandbox", "snapshot", sandbox)
        return made

    def artifacts(self, sandbox: str) -> list[Reply]:
        found: list[Reply] = self.program("artifacts", "list", "--sandbox", sandbox)["items"]
        return found

    def verify(self, artifact: str) -> Reply:
        found: Reply = self.program("artifacts", "verify", artifact)
        return found

    def delete(self, sandbox: str) -> None:
        self.program("sandbox", "rm", sandbox)


Caller: TypeAlias = Rest | Command
