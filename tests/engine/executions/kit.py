"""One machine with real executions on real disk, and short ways to pause and connect a sandbox on it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from flux.core.artifact import Artifact
from flux.core.fence import NodeRow
from flux.core.lifecycle import NodeState
from flux.core.node import ArtifactReference
from flux.core.sandbox import Sandbox, SandboxMount
from flux.engine.artifacts.mover import ArtifactMover
from flux.engine.context import Context
from flux.engine.lifecycle import launch
from flux.engine.lifecycle.executions import Executions
from flux.engine.settings import Settings
from flux.network.sink import TunSink
from flux.ports.executions import Made
from flux.ports.files import Files
from flux.ports.observer import Unobserved
from flux.ports.substrate import Command
from flux.store import sandboxes
from flux.store.stores import Stores
from flux.substrates.procbox.substrate import Procbox
from flux.testing.clock import FakeClock
from flux.trees.files import SystemFiles

CREATED_AT = 1_700_000_000.0


class Machine:
    """A state directory, a template, and the executions that are open on them."""

    def __init__(
        self, folder: Path, *, files: Files | None = None, persistent: bool = True, kit_id: str = "", **settings: Any
    ) -> None:
        self.state = folder / f"state{kit_id}"
        self.template = folder / "template"
        self.work = folder / "work"
        self.state.mkdir(mode=0o700, exist_ok=True)
        self.work.mkdir(exist_ok=True)
        if not self.template.exists():
            _make_template(self.template)
        self.files = files or SystemFiles()
        self.clock = FakeClock()
        self.substrate = Procbox(str(self.state), sink=TunSink())
        self.settings = Settings(**{"persistent": persistent, "lock_wait_seconds": 5.0, **settings})
        self.open()

    def open(self) -> None:
        """Open the state directory, as a start of Flux does."""
        stores = Stores(str(self.state), self.clock, self.files)
        self.context = Context(stores, {"procbox": self.substrate}, self.clock, self.files, self.settings, Unobserved())
        self.context.layers.clear_drafts()
        self.artifacts = ArtifactMover(self.context.layers, self.files, None, "n1")
        self.executions = Executions(self.context, self.artifacts)

    def reopen(self) -> None:
        """Open it anew, as after the end of Flux."""
        self.context.close()
        self.open()

    def sandbox(self, name: str = "sb1", *, built_in: bool = False, bound: bool = False) -> Sandbox:
        """Return the record of a sandbox that runs generation 1, and keep its row."""
        made = Sandbox(
            id=name,
            kind="procbox",
            layout="bound" if bound else "managed",
            state=NodeState.RUNNING,
            created_at=CREATED_AT,
            root_device=0,
            root_inode=0,
            workspace=str(self.work) if bound else None,
            template=None if bound else ("/" if built_in else str(self.template)),
            built_in=built_in,
            mounts=() if built_in or bound else (SandboxMount(source="/usr", target="/usr"),),
            generation=1,
        )
        with self.context.stores.database.transaction() as tx:
            row = NodeRow(sandbox_id=name, state=NodeState.RUNNING, version=1, generation=1, pod_uid="p1", bound=bound)
            sandboxes.insert(tx, row, made)
        return made

    def move_row(self, sandbox: Sandbox, state: NodeState, generation: int) -> Sandbox:
        """Give the row another state and generation, as the manager does around the calls; return the new record."""
        with self.context.stores.database.transaction() as tx:
            row = sandboxes.row(tx, sandbox.id)
            assert row is not None
            prior = NodeState.SUSPENDED if state is NodeState.ACTIVATING else None
            pod_uid = f"p{generation}"
            moved = msgspec.structs.replace(row, state=state, generation=generation, pod_uid=pod_uid, prior_state=prior)
            assert sandboxes.update(tx, moved) is not None
        return msgspec.structs.replace(sandbox, state=state, generation=generation)

    def cold_start(self, name: str = "sb1", *, built_in: bool = False, bound: bool = False) -> Sandbox:
        """Prepare and start generation 1."""
        made = self.sandbox(name, built_in=built_in, bound=bound)
        self.executions.prepare(made, 1, None)
        self.executions.start(made, 1)
        return made

    def run(self, sandbox: Sandbox, script: str, *, code: int = 0, user: int = 0) -> str:
        """Run a shell script in a sandbox to its end and return what it printed."""
        start: Callable[[], Any] = lambda: launch.start(self.context, sandbox)  # noqa: E731
        reader, writer = os.pipe()
        with self.context.instances.live(sandbox.id, sandbox.generation, start) as instance:
            nowhere = os.open(os.devnull, os.O_RDWR)
            command = Command(
                argv=["/bin/sh", "-c", script],
                environment={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                cwd="/" if sandbox.layout == "managed" else "/work",
                uid=user,
                gid=user,
            )
            process = instance.spawn(command, nowhere, writer, writer)
            os.close(writer)
            os.close(nowhere)
            with os.fdopen(reader, "rb") as stream:
                printed = stream.read().decode("utf-8", "backslashreplace")
            ended = process.wait()
        assert ended is not None
        assert ended.code == code, (ended, printed)
        return printed

    def pause(self, sandbox: Sandbox, parent: ArtifactReference | None = None) -> Made:
        """Save a sandbox and end it, in the manager's order."""
        generation = sandbox.generation
        self.move_row(sandbox, NodeState.SUSPENDING, generation)
        self.executions.quiesce(sandbox, generation)
        made = self.executions.capture(sandbox, generation, parent, created_at=CREATED_AT, snapshot=False)
        self.executions.end(sandbox, generation)
        self.move_row(sandbox, NodeState.SUSPENDED, generation)
        return made

    def snapshot(self, sandbox: Sandbox, parent: ArtifactReference | None = None) -> Made:
        """Save a sandbox and let it run on."""
        generation = sandbox.generation
        self.move_row(sandbox, NodeState.CAPTURING, generation)
        self.executions.quiesce(sandbox, generation)
        made = self.executions.capture(sandbox, generation, parent, created_at=CREATED_AT, snapshot=True)
        self.executions.resume(sandbox, generation)
        self.move_row(sandbox, NodeState.RUNNING, generation)
        return made

    def connect(self, sandbox: Sandbox, artifact: ArtifactReference | None) -> Sandbox:
        """Restore a sandbox as its next generation."""
        generation = sandbox.generation + 1
        self.move_row(sandbox, NodeState.ACTIVATING, generation)
        self.executions.prepare(sandbox, generation, artifact)
        self.executions.start(sandbox, generation)
        return self.move_row(sandbox, NodeState.RUNNING, generation)

    def cycle(self, sandbox: Sandbox) -> tuple[Sandbox, Made]:
        """Pause and connect."""
        made = self.pause(sandbox)
        return self.connect(sandbox, made.reference), made

    def artifact(self, made: Made) -> Artifact:
        """Return an artifact's manifest."""
        return self.context.layers.read_artifact(made.reference.id, made.reference.digest)

    def tree(self, sandbox: Sandbox) -> int:
        """Return the open merged tree of a sandbox that runs; it is the instance's."""
        instance = self.context.instances.running(sandbox.id)
        assert instance is not None
        return instance.tree_descriptor


def _make_template(place: Path) -> None:
    """Make a template whose programs are the host's, mounted read-only."""
    for name in ("usr", "etc", "home"):
        (place / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (place / name).symlink_to(f"usr/{name}")


Look = dict[str, tuple[Any, ...]]


def look(tree: int, skip: tuple[str, ...] = ("proc", "sys", "dev", "usr")) -> Look:
    """Return everything about every entry of an open tree: attributes, contents, which names are one."""
    found: Look = {}
    names: dict[int, list[str]] = {}
    _walk(tree, "", found, names, skip)
    for group in names.values():
        for path in group:
            found[path] = (*found[path], tuple(sorted(group)))
    return found


def _walk(directory: int, above: str, found: Look, names: dict[int, list[str]], skip: tuple[str, ...]) -> None:
    for name in sorted(os.listdir(directory)):
        path = f"{above}/{name}"
        if not above and name in skip:
            continue
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISSOCK(status.st_mode):
            continue
        found[path] = (*_attributes(directory, name, status), _content(directory, name, status))
        if stat.S_ISDIR(status.st_mode):
            inside = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            try:
                _walk(inside, path, found, names, ())
            finally:
                os.close(inside)
        else:
            names.setdefault(status.st_ino, []).append(path)


def _attributes(directory: int, name: str, status: os.stat_result) -> tuple[Any, ...]:
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=directory)
    try:
        target = f"/proc/self/fd/{handle}"
        xattrs = tuple(sorted((key, os.getxattr(target, key)) for key in os.listxattr(target)))
    finally:
        os.close(handle)
    return (
        oct(status.st_mode),
        status.st_uid,
        status.st_gid,
        status.st_mtime_ns,
        status.st_rdev if not stat.S_ISDIR(status.st_mode) else 0,
        xattrs,
    )


def _content(directory: int, name: str, status: os.stat_result) -> Any:
    if stat.S_ISLNK(status.st_mode):
        return os.readlink(name, dir_fd=directory)
    if not stat.S_ISREG(status.st_mode):
        return None
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory)
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def differences(one: Look, other: Look) -> dict[str, tuple[Any, Any]]:
    """Return what differs between two looks, by path."""
    return {
        path: (one.get(path), other.get(path)) for path in one.keys() | other.keys() if one.get(path) != other.get(path)
    }
