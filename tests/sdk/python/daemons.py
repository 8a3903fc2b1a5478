"""``fluxd`` as its users start it: alone with every role, or a control plane and a node."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = ROOT / ".venv" / "bin"
SECONDS_MAX = 60.0
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}

_READY = "fluxd is ready on "


class Fluxd:
    """One running ``fluxd`` on a state directory of its own, at an address that the kernel chose."""

    def __init__(self, state: Path, role: str = "all", configuration: str = "") -> None:
        self.state = state
        state.mkdir(mode=0o700, parents=True)
        (state / "flux.toml").write_text(configuration)
        self.log = state.with_name(state.name + ".log")
        command = [str(PROGRAMS / "fluxd"), "--state-dir", str(state), "--role", role, "--listen", "127.0.0.1:0"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *(["--node-listen", "127.0.0.1:0"] if role == "node" else [])],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**ENVIRONMENT, "HOME": str(state.parent)},
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        if not line.startswith(_READY):
            self.process.kill()
            raise AssertionError((line, self.log.read_text()[-3000:]))
        self.url = line.removeprefix(_READY).strip()

    def fluxctl(self, *words: str) -> Any:
        """Run ``fluxctl --json`` on its state directory."""
        return fluxctl(self.state, *words)

    def stop(self) -> None:
        """Ask it to end, and see that it ends well."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait(SECONDS_MAX)
        assert self.process.stdout is not None
        self.process.stdout.close()
        assert code == 0, self.log.read_text()[-3000:]


class Flux:
    """What an SDK speaks to: ``url`` and ``key`` go into its environment.

    Args:
        place: an empty directory.
        split: a control plane and a node as two processes, instead of one with every role.
        configuration: more for each ``flux.toml``.
    """

    def __init__(self, place: Path, *, split: bool = False, configuration: str = "") -> None:
        self.daemons: list[Fluxd] = []
        (place / "objects").mkdir(parents=True)
        text = f'{configuration}\n[objects]\nurl = "file://{place}/objects"\n'
        try:
            self._start(place, text, split=split)
        except BaseException:
            self.stop()
            raise

    def _start(self, place: Path, text: str, *, split: bool) -> None:
        self.control = Fluxd(place / "control", "control" if split else "all", text)
        self.daemons.append(self.control)
        self.node = self.control
        if split:
            self.node = Fluxd(place / "node", "node", f'{text}[node]\nname = "one"\n')
            self.daemons.append(self.node)
            manager = json.loads((self.node.state / "daemon.json").read_text())["node"]
            token = str(self.node.state / "node.token")
            self.control.fluxctl("node", "add", "one", "--address", manager, "--token-file", token)
        self.url = self.control.url
        self.key = new_key(self.control.state)

    def stop(self) -> None:
        """Stop everything that was started here; the node last, which the control plane still speaks to."""
        for daemon in self.daemons:
            daemon.stop()


def fluxctl(state: Path, *words: str) -> Any:
    """Run ``fluxctl --json`` on a state directory."""
    command = [str(PROGRAMS / "fluxctl"), "--state-dir", str(state), "--json", *words]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**ENVIRONMENT, "HOME": str(state.parent)},
        check=False,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout) if done.stdout.strip() else {}


def new_key(state: Path, name: str = "sdk") -> str:
    """Issue a user's key."""
    key: str = fluxctl(state, "keys", "create", name)["key"]
    return key
