"""Real daemons with failpoints armed from a file: alone with every role, or a control plane and nodes of their own."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from flux.api.node.client import NodeClient
from tests.cases.kit import ENVIRONMENT
from tests.scenarios.flux import Command, Rest
from tests.scenarios.inside import ControlStore, NodeStore

T = TypeVar("T")

SECONDS_MAX = 60.0
_TURN_SECONDS = 0.01
_READY = "fluxd is ready on "


def until(met: Callable[[], T], what: str, seconds: float = SECONDS_MAX) -> T:
    """Return the first true thing that ``met`` says; a test fails when there is none in time."""
    deadline = time.monotonic() + seconds
    while not (found := met()):
        assert time.monotonic() < deadline, f"it never came to this: {what}"
        threading.Event().wait(_TURN_SECONDS)
    return found


class Faults:
    """The file of a daemon's failpoints. Lines act in their order; one that was used up does not act again."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lines: list[str] = []
        self._made = 0

    def arm(self, *faults: str) -> None:
        """Arm ``POINT SANDBOX|* TIMES ACTION`` beside those that are armed already."""
        # Each line differs from all before, as a line that was used up would otherwise stay so.
        for fault in faults:
            self._made += 1
            self._lines.append(fault.replace(" ", " " * self._made, 1))
        self._write()

    def replace(self, *faults: str) -> None:
        """Arm these in place of all that were armed, at one moment: what those held goes on."""
        self._lines = []
        if faults:
            self.arm(*faults)
        else:
            self._write()

    def clear(self) -> None:
        """Disarm everything, and let go what is held."""
        self.replace()

    def reached(self, point: str) -> int:
        """Return how often an armed line acted at a point."""
        with contextlib.suppress(FileNotFoundError):
            log = self.file.with_name(self.file.name + ".reached").read_text()
            return sum(line.split()[0] == point for line in log.splitlines())
        return 0

    @contextlib.contextmanager
    def held(self, point: str, sandbox: str, *before: str) -> Iterator[None]:
        """Hold the next step at a point, after the faults ``before`` it, until the block ends."""
        self.arm(*before, f"{point} {sandbox} 1 hold")
        try:
            yield
        finally:
            self.clear()

    def _write(self) -> None:
        partial = self.file.with_name(self.file.name + ".new")
        partial.write_text("\n".join(self._lines))
        partial.rename(self.file)


class Fluxd:
    """One running ``fluxd`` of some role on a state directory; it can be killed and started again."""

    def __init__(
        self, state: Path, role: str = "all", configuration: str = "", environment: dict[str, str] | None = None
    ) -> None:
        self.state = state
        self.environment = {**ENVIRONMENT, "HOME": str(state.parent), **(environment or {})}
        self.role = role
        state.mkdir(mode=0o700, parents=True)
        (state / "flux.toml").write_text(configuration)
        self.log = state.with_name(state.name + ".log")
        self.faults = Faults(state.with_name(state.name + ".faults"))
        self.clock = state.with_name(state.name + ".clock")
        self.told: dict[str, str] = {}
        self.start()

    def start(self) -> None:
        """Start it and wait until it serves; again, it listens where it did before."""
        command = [sys.executable, "-m", "flux.testing.fluxd", "--faults", str(self.faults.file)]
        command += ["--clock", str(self.clock), "--period", "0.3", "--serve-manager"]
        command += ["--state-dir", str(self.state), "--role", self.role]
        listen = self.told["url"].rpartition("/")[2] if self.told else "127.0.0.1:0"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--listen", listen, "--node-listen", self.told.get("node", "127.0.0.1:0")],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.environment,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        if not line.startswith(_READY):
            self.kill()
            raise AssertionError((line, self.log.read_text()[-3000:]))
        self.told = json.loads((self.state / "daemon.json").read_text())
        self.url = line.removeprefix(_READY).strip()

    @property
    def node_address(self) -> str:
        """Where its node manager listens."""
        address: str = self.told["node"]
        return address

    @property
    def node_token(self) -> str:
        """What calls of its node manager carry."""
        return (self.state / "node.token").read_text().strip()

    def rest(self) -> Rest:
        """Return a client with the administrator's token."""
        return Rest(self.url, (self.state / "admin-token").read_text().strip())

    @contextlib.contextmanager
    def later(self, seconds: float) -> Iterator[None]:
        """Set its wall clock so much later, or earlier if negative, for a block."""
        partial = self.clock.with_name(self.clock.name + ".new")
        partial.write_text(str(seconds))
        partial.rename(self.clock)
        try:
            yield
        finally:
            self.clock.unlink()

    def stop(self) -> None:
        """Ask it to end, and see that it ends well."""
        self.faults.clear()
        if self.process.poll() is None:
            self.process.terminate()
        assert self.ended() == 0, self.log.read_text()[-3000:]

    def kill(self) -> None:
        """End it as a power cut would, and only it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.ended()

    def ended(self) -> int:
        """Wait for its end; return its exit code."""
        code = self.process.wait(SECONDS_MAX)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def records(self) -> list[dict[str, Any]]:
        """Return what it logged."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


_QUICK = """
[control]
inventory_seconds = 0.2
collect_grace_seconds = 0.0
{control}
[node]
listen = "127.0.0.1:0"
evict_idle_seconds = {idle}
{node}
{more}
"""


class Platform:
    """A whole Flux of real processes: one daemon with every role, or a control plane and nodes of their own."""

    def __init__(
        self,
        place: Path,
        *,
        split: bool = False,
        idle: float = 3600.0,
        control: str = "",
        more: str = "",
        objects: Path | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._environment = environment
        self.place = place
        self.split = split
        self._pool = ThreadPoolExecutor(16)
        self._clients: list[NodeClient] = []
        self.nodes: dict[str, Fluxd] = {}
        text = _QUICK.format(idle=idle, control=control, node="{node}", more=more)
        self.objects = objects or place / "objects"
        self.objects.mkdir(exist_ok=True)
        self._text = text if "[objects]" in more else f'{text}[objects]\nurl = "file://{self.objects}"\n'
        if split:
            self.control = Fluxd(place / "control", "control", self._text.replace("{node}", ""), environment)
        else:
            self.control = Fluxd(place / "all", "all", self._text.replace("{node}", ""), environment)
            self.nodes["local"] = self.control
        self.rest = self.control.rest()
        if split:
            self.add_node("one")

    def add_node(self, name: str) -> Fluxd:
        """Start a node and register it."""
        node = f'name = "{name}"'
        self.nodes[name] = Fluxd(self.place / name, "node", self._text.replace("{node}", node), self._environment)
        self.register(name)
        return self.nodes[name]

    def register(self, name: str) -> None:
        """Tell the control plane of a node."""
        node = self.nodes[name]
        self.rest.send("POST", "/nodes", {"name": name, "address": node.node_address, "token": node.node_token})

    @property
    def node(self) -> Fluxd:
        """The only node, or the first."""
        return next(iter(self.nodes.values()))

    @property
    def node_store(self) -> NodeStore:
        """What the first node remembers."""
        return NodeStore(self.node.state)

    @property
    def control_store(self) -> ControlStore:
        """What the control plane remembers."""
        return ControlStore(self.control.state)

    @property
    def command(self) -> Command:
        """``fluxctl`` on the control plane's state directory."""
        return Command(self.control.state)

    def client(self, name: str | None = None) -> NodeClient:
        """Return a connection straight to a node's manager."""
        node = self.node if name is None else self.nodes[name]
        client = NodeClient(node.node_address, node.node_token)
        self._clients.append(client)
        return client

    def later(self, action: Callable[..., T], *arguments: Any, **options: Any) -> Future[T]:
        """Call in a thread."""
        return self._pool.submit(action, *arguments, **options)

    def restart(self) -> None:
        """Start again whatever was killed, and speak to it."""
        for daemon in dict.fromkeys([*self.nodes.values(), self.control]):
            if daemon.process.poll() is not None:
                daemon.start()
        self.rest.close()
        self.rest = self.control.rest()

    def close(self) -> None:
        """Stop everything that was started here."""
        daemons = list(dict.fromkeys([self.control, *self.nodes.values()]))
        for daemon in daemons:
            daemon.faults.clear()
        for client in self._clients:
            client.close()
        self.rest.close()
        self._pool.shutdown(wait=True)
        try:
            for daemon in daemons:
                daemon.stop()
        finally:
            for daemon in daemons:
                daemon.kill()


@contextlib.contextmanager
def platform(place: Path, **options: Any) -> Iterator[Platform]:
    """Run a Flux for a block."""
    place.mkdir(parents=True, exist_ok=True)
    made = Platform(place, **options)
    try:
        yield made
    finally:
        made.close()
