"""A workspace, a throwaway copy of it in which a real command runs, and the bare command on a plain copy beside it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from flux.core import manifest
from flux.core.changeset import Change, Entry
from flux.core.limits import Caps
from flux.core.manifest import EntryType
from flux.core.requests import CopyEngine
from flux.ports.substrate import Overlay
from flux.trees.beneath import open_regular
from flux.trees.files import SystemFiles
from flux.trees.run import Capture, CaptureRequest, RunTree, prepare
from flux.trees.scan import scan, with_content
from flux.trees.workspace import Workspace

SHELL_ENVIRONMENT = {"PATH": os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin", "LC_ALL": "C.UTF-8"}
# Ends a script with everything it started.
BOUNDED = ("timeout", "--kill-after=5", "120")
TIMED_OUT = 124
OPTIONS_ROOT = "index=on,redirect_dir=on,metacopy=off"
OPTIONS_USER = "userxattr"

# What an entry is, for the comparison of two trees: everything but inode numbers and times.
Facts = tuple[object, ...]
Tree = dict[str, Facts]


class Arena:
    """One workspace and everything around it, below one directory."""

    def __init__(
        self, top: Path, *, state: Path | None = None, max_bytes: int = 1 << 40, caps: Caps | None = None
    ) -> None:
        self.top = top
        self.workspace = top / "workspace"
        self.state = state or top / "state"
        self.max_bytes = max_bytes
        self.caps = caps or Caps()
        self.blobs = self.state / "blobs"
        self.preimages = self.state / "preimages"
        self.files = SystemFiles()
        self.run_tree: RunTree | None = None
        self.below: View | None = None
        self.own = Workspace("bound", str(self.workspace))
        for path in (self.workspace, self.state, self.blobs, self.preimages, self.state / "scratch"):
            path.mkdir(exist_ok=True)

    def shell(self, script: str, where: Path | None = None) -> None:
        """Run a set-up script in the workspace."""
        run(script, where or self.workspace)

    def bare(self, script: str, setup: str | None = None) -> Tree:
        """Return what the bare command makes of a plain copy of the workspace as it is now, or of one set up anew."""
        copy = self.top / "bare"
        subprocess.run(["rm", "-rf", str(copy)], check=True)
        if setup is None:
            subprocess.run(["cp", "-a", str(self.workspace), str(copy)], check=True)
        else:
            copy.mkdir()
            run(setup, copy)
        run(script, copy, check=False)
        return facts(copy)

    def prepare(self, engine: CopyEngine = "auto", skip: tuple[str, ...] = ()) -> RunTree:
        """Make a throwaway copy of the workspace."""
        self.root = os.open(self.workspace, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.run_tree = prepare(
                self.own,
                self.root,
                str(self.state / "scratch"),
                paths=["/"],
                requested=engine,
                max_bytes=self.max_bytes,
                files=self.files,
                skip=skip,
                probe_cache=str(self.state / "probes.json"),
            )
        except BaseException:
            os.close(self.root)
            raise
        return self.run_tree

    def run(self, script: str, paths: tuple[str, ...] = ("/",), meanwhile: str = "") -> Capture:
        """Run a command in the copy and capture what it did; ``meanwhile`` runs in the real workspace before that."""
        assert self.run_tree is not None
        view = View(self.run_tree.tree, self.state, below=self.below)
        try:
            view.run(script)
            if meanwhile:
                self.shell(meanwhile)
            return self.capture(view.descriptor, paths)
        finally:
            view.close()

    def capture(self, after: int, paths: tuple[str, ...]) -> Capture:
        """Capture through an open view of the copy."""
        assert self.run_tree is not None
        for path in [*self.blobs.iterdir(), *self.preimages.iterdir()]:
            path.unlink()
        blobs = os.open(self.blobs, os.O_RDONLY | os.O_DIRECTORY)
        preimages = os.open(self.preimages, os.O_RDONLY | os.O_DIRECTORY)
        try:
            request = CaptureRequest(paths=paths, blobs=blobs, preimages=preimages, caps=self.caps, files=self.files)
            return self.run_tree.capture(after, request)
        finally:
            os.close(blobs)
            os.close(preimages)

    def speculate(self, script: str, engine: CopyEngine, paths: tuple[str, ...] = ("/",)) -> Capture:
        """Do everything, and clean up."""
        run_tree = self.prepare(engine)
        try:
            assert run_tree.engine == engine or engine == "auto"
            return self.run(script, paths)
        finally:
            self.close()

    def close(self) -> None:
        """Remove the copy."""
        if self.run_tree is not None:
            self.run_tree.close()
            os.close(self.root)
            self.run_tree = None
        assert not list((self.state / "scratch").iterdir())

    def blob(self, change: Change) -> bytes:
        """Return a staged content."""
        assert change.staged is not None
        if change.staged.blob is not None:
            return (self.blobs / change.staged.blob).read_bytes()
        root = os.open(self.workspace, os.O_RDONLY | os.O_DIRECTORY)
        with os.fdopen(open_regular(root, change.staged.reference_path or ""), "rb") as file:
            os.close(root)
            return file.read()


class View:
    """The workspace as the run sees it: an overlay is mounted in a namespace of its own, a copy is where it is."""

    def __init__(self, tree: str | Overlay, state: Path, *, options: str = "", below: View | None = None) -> None:
        self._holder: subprocess.Popen[str] | None = None
        self._options = options
        if isinstance(tree, str):
            self.path = tree
        else:
            self.path = self._mount(tree, state / "merged", below)
        self.descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)

    def _mount(self, overlay: Overlay, target: Path, below: View | None) -> str:
        target.mkdir(exist_ok=True)
        root = os.geteuid() == 0
        self._enter = ["-m"] if root else ["-m", "-U", "--preserve-credentials"]
        lower = ":".join(overlay.lower)
        if below is not None:
            assert overlay.lower_descriptor is not None and not overlay.lower
            assert below._holder is not None
            lower = below._target
            command = ["nsenter", "-t", str(below._holder.pid), *self._enter]
        else:
            command = ["unshare", "-m", "--propagation", "private"]
            command += [] if root else ["-U", "--map-current-user", "--keep-caps"]
        options = (OPTIONS_ROOT if root else OPTIONS_USER) + self._options
        text = f"{options},lowerdir={lower},upperdir={overlay.upper},workdir={overlay.work}"
        script = 'mount -i -t overlay -o "$1" overlay "$2" && echo ready && read end; umount "$2"'
        self._holder = subprocess.Popen(
            [*command, "sh", "-c", script, "sh", text, str(target)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=SHELL_ENVIRONMENT,
        )
        self._target = str(target)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n"
        return f"/proc/{self._holder.pid}/root{target}"

    def run(self, script: str) -> None:
        """Run a command there."""
        if self._holder is None:
            run(script, Path(self.path), check=False)
            return
        command = ["nsenter", "-t", str(self._holder.pid), *self._enter, "bash", "-c", 'cd "$1" && eval "$2"', "bash"]
        done = subprocess.run([*BOUNDED, *command, self._target, script], check=False, env=SHELL_ENVIRONMENT)
        assert done.returncode != TIMED_OUT, f"the script hangs: {script}"

    def close(self) -> None:
        """Unmount."""
        os.close(self.descriptor)
        if self._holder is not None:
            self._holder.communicate("end\n")


def run(script: str, where: Path, *, check: bool = True) -> None:
    """Run a shell script."""
    done = subprocess.run([*BOUNDED, "bash", "-c", script], cwd=where, check=False, env=SHELL_ENVIRONMENT)
    assert done.returncode != TIMED_OUT, f"the script hangs: {script}"
    if check:
        done.check_returncode()


def facts(where: Path) -> Tree:
    """Return what a tree is."""
    root = os.open(where, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found = scan(root)
        entries = {path: manifest.parse(with_content(root, path, token)) for path, token in found.manifest.items()}
    finally:
        os.close(root)
    groups: dict[int, list[str]] = {}
    for path in found.linked:
        groups.setdefault(entries[path].inode, []).append(path)
    result: Tree = {}
    for path, entry in entries.items():
        if entry.type is EntryType.SOCKET:
            continue
        mode = 0 if entry.type is EntryType.SYMLINK else entry.mode
        names = sorted(groups.get(entry.inode, ())) if entry.links > 1 else []
        result[path] = (
            entry.type, mode, entry.uid, entry.gid, entry.digest, entry.target, entry.xattrs, entry.rdev,
            tuple(names) if len(names) > 1 else (),
        )  # fmt: skip
    return result


def model(before: Tree, changes: list[Change]) -> Tree:
    """Return what a tree becomes by changes, reckoned from the changes alone."""
    result = dict(before)
    groups: dict[str, object] = {path: fact[-1] for path, fact in before.items() if fact[-1]}
    for change in changes:
        path = change.location
        groups.pop(path, None)
        if change.after is None:
            del result[path]
            continue
        assert (path in before) == (change.before is not None), path
        result[path] = entry_facts(change.after)
        if change.after.link_group is not None:
            groups[path] = change.after.link_group
    names: dict[object, list[str]] = {}
    for path, group in groups.items():
        names.setdefault(group, []).append(path)
    peers = {path: tuple(sorted(names[group])) for path, group in groups.items() if len(names[group]) > 1}
    return {path: (*fact[:-1], peers.get(path, ())) for path, fact in result.items()}


def entry_facts(entry: Entry) -> Facts:
    """Return the facts that an entry of a changeset states."""
    mode = 0 if entry.type is EntryType.SYMLINK else entry.mode_bits
    xattrs = tuple(sorted(entry.xattr_values.items()))
    return (entry.type, mode, entry.uid, entry.gid, entry.digest, entry.link_target, xattrs, entry.rdev, ())


def prove(arena: Arena, script: str, engine: CopyEngine, setup: str | None = None) -> Capture:
    """Prove that a capture says exactly what the bare command does, and that what it staged is what it says."""
    before = facts(arena.workspace)
    bare = arena.bare(script, setup)
    found = arena.speculate(script, engine)
    assert facts(arena.workspace) == before, "the run changed the real workspace"
    assert model(before, found.changes.every()) == bare
    assert not found.unstaged
    prove_contents(arena, found)
    return found


def prove_contents(arena: Arena, found: Capture) -> None:
    """Prove that every new content is staged and is what the entry says."""
    for change in found.changes.every():
        after, before = change.after, change.before
        if after is None or after.type is not EntryType.FILE:
            assert change.staged is None
            continue
        new = before is None or before.type is not EntryType.FILE or "content" in change.attributes
        assert (change.staged is not None) == new, change
        if change.staged is not None:
            content = arena.blob(change)
            assert len(content) == after.size
            assert after.digest == digest(content), change


def digest(content: bytes) -> str:
    """Return a content's digest."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
