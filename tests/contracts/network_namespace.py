"""A network namespace of a test's own, with a Python in it that does what it is told."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

_WORKER = """
import json, os, socket, struct, sys, traceback
channel = socket.socket(fileno=int(sys.argv[1]))
names = {"channel": channel}
def take(count):
    data = b""
    while len(data) < count:
        part = channel.recv(count - len(data))
        if not part:
            os._exit(0)
        data += part
    return data
channel.sendall(b"ready")
while True:
    source = take(struct.unpack("!I", take(4))[0]).decode()
    names["result"] = ""
    try:
        exec(source, names)
        reply = str(names["result"])
    except OSError as error:
        reply = type(error).__name__ + " " + str(error.errno)
    except BaseException:
        reply = traceback.format_exc()
    channel.sendall(struct.pack("!I", len(reply.encode())) + reply.encode())
"""


class NetworkNamespace:
    """A child process in a new network namespace with its loopback up; as root without a new user namespace.

    Args:
        existing: the path of a namespace to be in, in place of a new one.
    """

    def __init__(self, existing: str | None = None) -> None:
        ours, theirs = socket.socketpair()
        root = [] if os.geteuid() == 0 else ["--map-root-user"]
        into = ["unshare", "--net", *root] if existing is None else ["nsenter", f"--net={existing}"]
        command = [*into, sys.executable, "-c", _WORKER, str(theirs.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        ours.settimeout(30)
        self.channel = ours
        if ours.recv(5) != b"ready":
            self.kill()
            pytest.skip("this machine lets no test make a network namespace")
        self.command("ip link set lo up")

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def run(self, source: str) -> str:
        """Run Python code; return what it left in ``result``, or the name and number of the ``OSError`` it raised."""
        self.send(source)
        return self.receive()

    def send(self, source: str) -> None:
        """Start Python code without waiting for it."""
        self.channel.sendall(struct.pack("!I", len(source.encode())) + source.encode())

    def receive(self) -> str:
        """Wait for the code that was sent."""
        size = struct.unpack("!I", self._take(4))[0]
        return self._take(size).decode()

    def command(self, line: str) -> str:
        """Run a program in the namespace; fail if it fails."""
        nsenter = ["nsenter", "--preserve-credentials", "-U"] if os.geteuid() else ["nsenter"]
        command = [*nsenter, "-n", "-t", str(self.pid), *line.split()]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _take(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.channel.recv(count - len(data))
            assert part, "the child in the namespace died"
            data += part
        return data

    def kill(self) -> None:
        """Kill the child; the namespace goes with it, unless something else holds it."""
        self._process.kill()
        self._process.wait()
        self.channel.close()

    @property
    def link(self) -> Path:
        """The namespace's file in ``/proc``."""
        return Path(f"/proc/{self.pid}/ns/net")
