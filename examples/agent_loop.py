"""An agent that works in a sandbox through the public E2B SDK, and tries risky steps out before they count.

The steps are a script, so this needs no model and no network. Everyday work goes through the SDK: create, write files,
run commands, pause, connect. What could do damage goes through Flux's own API on the very same sandbox: the command
runs in a throwaway copy, a reviewer sees what it changed, and only what was approved reaches the real files.

    E2B_API_URL, E2B_SANDBOX_URL  where fluxd listens
    E2B_API_KEY                   the agent's key: fluxctl keys create coder --role agent
    FLUX_REVIEWER_KEY             the reviewer's key: fluxctl keys create reader --role reviewer
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from e2b import Sandbox

NEEDED = ("E2B_API_URL", "E2B_API_KEY", "FLUX_REVIEWER_KEY")
PROJECT = "/home/user/project"
FILES = {
    f"{PROJECT}/prices.py": "def total(prices):\n    return sum(prices)\n",
    f"{PROJECT}/check.py": "from prices import total\nassert total([1, 2]) == 3\nprint('checked')\n",
    f"{PROJECT}/notes.txt": "keep me\n",
}


class Flux:
    """The few calls of Flux's own API that the loop needs, as one of its callers.

    Args:
        url: where fluxd listens.
        key: whose calls they are.
    """

    def __init__(self, url: str, key: str) -> None:
        self._url = url.rstrip("/")
        self._key = key

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Make a call and return its reply. Raises ``Refused`` with Flux's own words."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
        try:
            with urlopen(Request(self._url + path, data, headers, method=method)) as reply:
                return json.loads(reply.read())
        except HTTPError as error:
            refusal = json.loads(error.read())
            raise Refused(refusal["code"], refusal["message"]) from None


class Refused(Exception):
    """A refusal of Flux: its code, and a sentence that says what to do."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Step:
    """One thing that the agent wants to do and is not sure about."""

    why: str
    command: str


class Loop:
    """The agent, its sandbox, and the reviewer who decides about what it tried.

    Args:
        box: the sandbox, as the SDK has it.
        agent: Flux as the agent may use it: it speculates, and never decides.
        reviewer: Flux as the reviewer may use it.
    """

    def __init__(self, box: Sandbox, agent: Flux, reviewer: Flux) -> None:
        self.box = box
        self._agent = agent
        self._reviewer = reviewer
        self._path = f"/v1/sandboxes/{quote(box.sandbox_id)}"

    def try_out(self, step: Step) -> dict[str, Any]:
        """Run a step in a copy of the project, and show what it would change."""
        print(f"\nagent: {step.why}\n  tries: {step.command}")
        change: dict[str, Any] = self._agent.call(
            "POST",
            f"{self._path}/speculate",
            {"command": step.command, "cwd": PROJECT, "paths": [PROJECT], "user": "user"},
        )
        told = self._agent.call("GET", f"{self._path}/changesets/{change['id']}/diff")
        for file in told["files"]:
            print("  | " + (file.get("text") or f"{file['kind']} {file['path']}").rstrip().replace("\n", "\n  | "))
        return change

    def decide(self, change: dict[str, Any]) -> bool:
        """Let the reviewer decide: nothing that deletes a file passes. The digest names exactly what was looked at."""
        deletes = bool(change["changes"]["deleted"])
        place = f"{self._path}/changesets/{change['id']}"
        if deletes:
            self._reviewer.call("POST", f"{place}/reject", {"comment": "it deletes files"})
            print("reviewer: rejects it")
            return False
        self._reviewer.call("POST", f"{place}/approve", {"digest": change["digest"]})
        self._reviewer.call("POST", f"{place}/apply", {})
        print("reviewer: approves it; it is applied")
        return True

    def undo(self, change: dict[str, Any]) -> dict[str, Any]:
        """Have the reviewer make the inverse of an applied change; it is decided about like any other."""
        print("\nreviewer: takes it back")
        place = f"{self._path}/changesets/{change['id']}"
        inverse: dict[str, Any] = self._reviewer.call("POST", f"{place}/revert", {})
        return inverse


def main() -> int:
    """Run the whole loop; return the exit code."""
    missing = [name for name in NEEDED if not os.environ.get(name)]
    if missing:
        print(f"cannot start: {', '.join(missing)} not set; examples/README.md says how", file=sys.stderr)
        return 2
    url = os.environ["E2B_API_URL"]
    agent, reviewer = Flux(url, os.environ["E2B_API_KEY"]), Flux(url, os.environ["FLUX_REVIEWER_KEY"])
    box = Sandbox.create(timeout=300)
    try:
        return _loop(Loop(box, agent, reviewer))
    finally:
        box.kill()


def _loop(loop: Loop) -> int:
    box = loop.box
    for path, text in FILES.items():
        box.files.write(path, text)
    print(f"sandbox {box.sandbox_id}: {box.commands.run('python3 check.py', cwd=PROJECT).stdout.strip()}")
    # Something that runs beside, as a server of the agent's would: trying things out does not disturb it.
    beside = box.commands.run("sleep 600", background=True)

    rewrite = Step(
        "prices may be missing: skip what is None",
        "sed -i 's/sum(prices)/sum(p for p in prices if p is not None)/' prices.py && python3 -B check.py",
    )
    assert loop.decide(loop.try_out(rewrite))
    print(f"  the real project: {box.commands.run('python3 -B check.py', cwd=PROJECT).stdout.strip()}")

    tidy = Step("tidy the project up", "rm -f notes.txt")
    assert not loop.decide(loop.try_out(tidy))
    print(f"  notes.txt is still there: {box.files.exists(f'{PROJECT}/notes.txt')}")

    edit = loop.try_out(Step("explain the function", "sed -i '1i # adds prices up' prices.py"))
    box.files.write(f"{PROJECT}/prices.py", "def total(prices):\n    return round(sum(prices), 2)\n")
    try:
        loop.decide(edit)
    except Refused as refusal:
        print(f"  refused ({refusal.code}): {refusal}")
    else:
        raise AssertionError("an edit of a file that has changed since was applied")

    print(f"\nbeside, process {beside.pid} still runs: {beside.pid in [one.pid for one in box.commands.list()]}")
    box.pause()
    again = Sandbox.connect(box.sandbox_id)
    print(f"paused and connected: {again.files.read(f'{PROJECT}/prices.py').splitlines()[1].strip()}")
    loop.box = again
    count = loop.try_out(Step("count them too", "echo 'count = len' >> prices.py"))
    assert loop.decide(count)
    print(f"  the real project ends: {again.commands.run('tail -1 prices.py', cwd=PROJECT).stdout.strip()}")
    assert loop.decide(loop.undo(count))
    print(f"  the real project ends: {again.commands.run('tail -1 prices.py', cwd=PROJECT).stdout.strip()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
