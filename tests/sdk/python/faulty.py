"""A Flux with failpoints in a process beside, run by Flux's own interpreter; asked in lines of JSON."""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from daemons import ENVIRONMENT, PROGRAMS, ROOT, new_key

SECONDS_MAX = 120.0


class Beside:
    """``tests/sdk/beside.py``: every method of it is one here, awaited."""

    def __init__(self, *, split: bool = False) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
        self._process = subprocess.Popen(
            [str(PROGRAMS / "python"), "-m", "tests.sdk.beside", *(["split"] if split else [])],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**ENVIRONMENT, "HOME": tempfile.gettempdir()},
        )
        about = self.ask("about")
        self.url: str = about["url"]
        self.key = new_key(Path(about["state"]))

    def ask(self, call: str, **arguments: Any) -> Any:
        """Call a method there, and raise what it raises."""
        pipes = self._process
        assert pipes.stdin is not None and pipes.stdout is not None
        pipes.stdin.write(json.dumps({"call": call, "arguments": arguments}).encode() + b"\n")
        pipes.stdin.flush()
        line = pipes.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise AssertionError(f"it has ended: {self._errors.read()[-3000:].decode()}")
        answer = json.loads(line)
        if "error" in answer:
            raise AssertionError(answer["error"])
        return answer["result"]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(asyncio.to_thread, self.ask, name)

    def stop(self) -> None:
        """Let it stop its daemons and end."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        code = self._process.wait(SECONDS_MAX)
        self._process.stdout.close()
        self._errors.seek(0)
        said = self._errors.read()[-3000:].decode()
        self._errors.close()
        assert code == 0, said
