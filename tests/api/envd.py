"""A sandbox's data plane over raw HTTP, as a client without an SDK speaks it."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

STREAM = {"content-type": "application/connect+json", "connect-protocol-version": "1"}
HEADER = struct.Struct(">BI")
END = 2


class Ended(Exception):
    """The end frame had an error."""

    def __init__(self, error: Mapping[str, str]) -> None:
        super().__init__(error["message"])
        self.code = error["code"]
        self.message = error["message"]


class Envd:
    """The data plane of one sandbox.

    Args:
        url: the daemon's.
        key: an API key of it.
    """

    def __init__(self, url: str, key: str, **creation: Any) -> None:
        self.url = url
        self.key = key
        body = {"templateID": "base", "timeout": 600, **creation}
        made = httpx.post(f"{url}/v2/sandboxes", json=body, headers={"x-api-key": key}, timeout=60)
        assert made.status_code == 201, made.text
        self.id: str = made.json()["sandboxID"]
        self.token: str = made.json()["envdAccessToken"]
        self.headers = {"e2b-sandbox-id": self.id, "e2b-sandbox-port": "49983", "x-access-token": self.token}
        self.http = httpx.Client(base_url=url, headers=self.headers, timeout=60)

    def control(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Ask the control plane for something of this sandbox."""
        headers = {"x-api-key": self.key}
        return httpx.request(method, f"{self.url}/sandboxes/{self.id}{path}", headers=headers, timeout=60, **options)

    def close(self) -> None:
        """Kill the sandbox."""
        self.http.close()
        self.control("DELETE", "")

    def call(self, method: str, body: Any = None, **headers: str) -> Any:
        """Make a call of the process service that is no stream. Raises ``Ended``."""
        reply = self.raw(method, json.dumps(body or {}).encode(), **headers)
        if reply.status_code != 200:
            raise Ended(reply.json())
        return reply.json()

    def raw(self, method: str, body: bytes, **headers: str) -> httpx.Response:
        """Send anything to a method of the process service."""
        given = {"content-type": "application/json", **{key.replace("_", "-"): value for key, value in headers.items()}}
        return self.http.post(f"/process.Process/{method}", content=body, headers=given)

    @contextmanager
    def stream(self, method: str, body: Any, **headers: str) -> Iterator[Iterator[Any]]:
        """Make a call with a stream of events, which raises ``Ended`` at an error; leaving the block hangs up."""
        given = {**STREAM, **{key.replace("_", "-"): value for key, value in headers.items()}}
        content = frame(json.dumps(body).encode())
        with self.http.stream("POST", f"/process.Process/{method}", content=content, headers=given) as reply:
            assert reply.status_code == 200, reply.read()
            yield events(reply.iter_bytes())

    def run(self, command: str, **more: Any) -> tuple[bytes, bytes, Mapping[str, Any]]:
        """Run a command to its end; return stdout, stderr and the end event."""
        with self.stream("Start", start(command, **more)) as happened:
            return collect(happened)

    def pids(self) -> list[int]:
        """Return the processes that run."""
        return [process["pid"] for process in self.call("List").get("processes", [])]


def start(command: str, *, stdin: bool | None = False, pty: Any = None, tag: str | None = None, **config: Any) -> Any:
    """Return the request that starts a shell command."""
    process = {"cmd": "/bin/bash", "args": ["-c", command], **config}
    optional = {"stdin": stdin, "pty": pty, "tag": tag}
    return {"process": process, **{key: value for key, value in optional.items() if value is not None}}


def selected(pid: int) -> Any:
    """Return the request that names a process."""
    return {"process": {"pid": pid}}


def frame(data: bytes, flags: int = 0) -> bytes:
    """Return a frame."""
    return HEADER.pack(flags, len(data)) + data


def events(chunks: Iterator[bytes]) -> Iterator[Any]:
    """Yield the events of a stream up to its end frame. Raises ``Ended``."""
    held = b""
    for chunk in chunks:
        held += chunk
        while len(held) >= HEADER.size:
            flags, length = HEADER.unpack_from(held)
            if len(held) < HEADER.size + length:
                break
            data, held = json.loads(held[HEADER.size : HEADER.size + length]), held[HEADER.size + length :]
            if flags & END:
                if "error" in data:
                    raise Ended(data["error"])
                assert not held
                return
            yield data["event"]
    raise AssertionError("the stream has no end frame")


def collect(happened: Iterator[Any]) -> tuple[bytes, bytes, Mapping[str, Any]]:
    """Return all of a process's output, of a terminal as stdout, and how it ended."""
    output: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    end: Mapping[str, Any] | None = None
    for event in happened:
        for name, data in event.get("data", {}).items():
            output["stderr" if name == "stderr" else "stdout"].append(base64.b64decode(data))
        end = event.get("end", end)
    assert end is not None
    return b"".join(output["stdout"]), b"".join(output["stderr"]), end


def said(event: Any) -> bytes:
    """Return the output in an event."""
    return b"".join(base64.b64decode(data) for data in event.get("data", {}).values())
