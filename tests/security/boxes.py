"""Sandboxes to break out of, and a Python inside them that tries."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from flux.network.sink import TunSink
from flux.ports.substrate import Command, LaunchSpec, Limits, Mount
from flux.substrates.procbox.instance import ProcboxInstance
from flux.substrates.procbox.substrate import Procbox
from flux.testing.contracts.substrate import ENVIRONMENT, Running

_PRELUDE = """
import ctypes, errno, os, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(action, *arguments):
    try:
        result = action(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    return f"got {result!r}"
def call(name, *arguments):
    ctypes.set_errno(0)
    result = getattr(libc, name)(*arguments)
    return f"got {result}" if result >= 0 else errno.errorcode[ctypes.get_errno()]
def system(number, *arguments):
    whole = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return call("syscall", ctypes.c_long(number), *whole)
"""


def python_mounts() -> tuple[Mount, ...]:
    """Return what a sandbox needs to run this very Python, which need not be the system's."""
    prefix = sys.base_prefix
    return () if prefix.startswith("/usr") else (Mount(source=prefix, target=prefix),)


class Box:
    """One sandbox with everything it is made from below ``place``."""

    def __init__(self, place: Path, **changes: object) -> None:
        self.place = place
        for name in ("workspace", "home", "scratch", "state"):
            (place / name).mkdir(exist_ok=True)
        spec = LaunchSpec(
            sandbox_id="sbescape",
            layout="bound",
            tree=str(place / "workspace"),
            home=str(place / "home"),
            scratch=str(place / "scratch"),
            mounts=python_mounts(),
            limits=Limits(memory_mib=512, pids=100),
        )
        self.substrate = Procbox(str(place / "state"), sink=TunSink())
        self.instance: ProcboxInstance = self.substrate.start(msgspec.structs.replace(spec, **changes))

    def run(self, *argv: str, **changes: object) -> Running:
        """Start a program."""
        command = Command(argv=argv, environment=ENVIRONMENT, cwd="/work", uid=os.geteuid(), gid=os.getegid())
        return Running(self.instance, msgspec.structs.replace(command, **changes))

    def python(self, code: str, **changes: object) -> str:
        """Run Python code after ``_PRELUDE``; return what it prints."""
        executable = os.path.realpath(sys.executable)
        running = self.run(executable, "-I", "-c", _PRELUDE + code, **changes)
        ended, output, errors = running.finish()
        running.close()
        assert not errors, errors.decode()
        assert ended.code == 0, ended
        return output.decode().rstrip("\n")

    def shell(self, script: str, **changes: object) -> str:
        """Run a shell script; return what it prints, errors included."""
        running = self.run("/bin/sh", "-c", f"exec 2>&1; {script}", **changes)
        output = running.finish()[1]
        running.close()
        return output.decode().rstrip("\n")
