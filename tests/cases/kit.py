"""What the cases share: Flux from outside, the bare command beside it, and a look at every fact of a tree."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import stat
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx

ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
SECONDS_MAX = 60.0
KINDS = {"added": "+", "modified": "~", "deleted": "-", "type_changed": "!"}
#: Everything within this of now was written by a command of the test and not dated by hand.
JUST_NOW_NS = 600 * 10**9

Reply = dict[str, Any]


class Refused(Exception):
    """Flux said no: its error object, and the status where it came over HTTP."""

    def __init__(self, error: Reply, status: int | None = None) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: str = error["code"]
        self.message: str = error["message"]
        self.details: Reply = error["details"]
        self.status = status


class Flux(Protocol):
    """Flux as a person or an agent calls it."""

    def create(self, workspace: Path, **options: Any) -> str: ...

    def speculate(self, sandbox: str, command: str, engine: str = "auto", **options: Any) -> Reply: ...

    def decide(self, verb: str, changeset: Reply, **options: Any) -> Reply: ...

    def show(self, changeset: Reply) -> Reply: ...

    def diff(self, changeset: Reply) -> Reply: ...

    def remove(self, sandbox: str) -> None: ...


class Program:
    """``fluxctl --json`` on a state directory of its own."""

    def __init__(self, state: Path, before: Sequence[str] = (), **environment: str) -> None:
        self.state = state
        self.before = before
        self.environment = {**ENVIRONMENT, "HOME": str(state.parent), **environment}

    def run(self, *words: str, timeout: float = SECONDS_MAX) -> subprocess.CompletedProcess[bytes]:
        """Run the program and return how it ended."""
        command = [
            *self.before,
            sys.executable,
            "-m",
            "flux.app.fluxctl",
            "--state-dir",
            str(self.state),
            "--json",
            *words,
        ]
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=self.environment, check=False, timeout=timeout
        )

    def __call__(self, *words: str) -> Any:
        done = self.run(*words)
        if done.returncode != 0:
            assert done.stdout == b"", done.stdout
            raise Refused(json.loads(done.stderr))
        return json.loads(done.stdout) if done.stdout.strip() else {}

    def create(self, workspace: Path, **options: Any) -> str:
        made: str = self("sandbox", "create", "--workspace", str(workspace), *_flags(options))["id"]
        return made

    def speculate(self, sandbox: str, command: str, engine: str = "auto", **options: Any) -> Reply:
        words = ["--copy-engine", engine, *_flags(options)]
        reply: Reply = self("sandbox", "speculate", sandbox, *words, "--", command)
        return reply

    def decide(self, verb: str, changeset: Reply, **options: Any) -> Reply:
        reply: Reply = self("sandbox", verb, changeset["sandbox_id"], changeset["id"], *_flags(options))
        return reply

    def show(self, changeset: Reply) -> Reply:
        reply: Reply = self("sandbox", "changeset", changeset["sandbox_id"], changeset["id"])
        return reply

    def diff(self, changeset: Reply) -> Reply:
        reply: Reply = self("sandbox", "changeset", changeset["sandbox_id"], changeset["id"], "--diff")
        return reply

    def remove(self, sandbox: str) -> None:
        self("sandbox", "rm", sandbox)


_FLAG = {"paths": "--path", "only": "--only", "timeout_seconds": "--timeout"}


def _flags(options: Reply) -> list[str]:
    words = []
    for name, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            words += [_FLAG.get(name, "--" + name.replace("_", "-")), str(one)]
    return words


class Daemon:
    """``fluxd``, spoken to over its unix socket."""

    def __init__(self, state: Path) -> None:
        self.program = Program(state)
        self.program("daemon", "start", "--listen", "127.0.0.1:0")
        transport = httpx.HTTPTransport(uds=str(state / "socket"))
        self.http = httpx.Client(transport=transport, base_url="http://flux/v1", timeout=SECONDS_MAX)

    def close(self) -> None:
        """Stop it."""
        self.http.close()
        self.program("daemon", "stop")

    def _send(self, method: str, path: str, body: Reply | None = None) -> Any:
        reply = self.http.request(method, path, json=body)
        if reply.is_error:
            raise Refused(reply.json(), reply.status_code)
        return reply.json() if reply.content else {}

    def create(self, workspace: Path, **options: Any) -> str:
        made: str = self._send("POST", "/sandboxes", {"workspace": str(workspace), **options})["id"]
        return made

    def speculate(self, sandbox: str, command: str, engine: str = "auto", **options: Any) -> Reply:
        body = {"command": command, "copy_engine": engine, **options}
        reply: Reply = self._send("POST", f"/sandboxes/{sandbox}/speculate", body)
        return reply

    def _place(self, changeset: Reply) -> str:
        return f"/sandboxes/{changeset['sandbox_id']}/changesets/{changeset['id']}"

    def decide(self, verb: str, changeset: Reply, **options: Any) -> Reply:
        reply: Reply = self._send("POST", f"{self._place(changeset)}/{verb}", options)
        return reply

    def show(self, changeset: Reply) -> Reply:
        reply: Reply = self._send("GET", self._place(changeset))
        return reply

    def diff(self, changeset: Reply) -> Reply:
        reply: Reply = self._send("GET", f"{self._place(changeset)}/diff")
        return reply

    def remove(self, sandbox: str) -> None:
        self._send("DELETE", f"/sandboxes/{sandbox}")


@dataclass(frozen=True)
class Facts:
    """What one entry is. ``moment`` and ``identity`` are what a faithful copy of it need not share."""

    kind: str
    mode: str
    owner: tuple[int, int]
    device: int
    target: str | None
    xattrs: tuple[tuple[str, bytes], ...]
    content: tuple[int, str] | None
    links: tuple[str, ...]
    layout: tuple[tuple[int, int], ...] | None
    moment: int
    identity: tuple[int, int, int]

    def named(self) -> tuple[Any, ...]:
        """Return what a changeset reports a difference in: holes are carried, not compared."""
        return self.mode, self.owner, self.device, self.target, self.xattrs, self.content

    def exact(self) -> tuple[Any, ...]:
        """Return what must be the same as after the bare command, times aside."""
        return self.kind, *self.named(), self.links, self.layout


Tree = dict[str, Facts]


def look(top: Path, *, nested_from: str | None = None) -> Tree:
    """Return the facts of every entry of a tree, by path from its root; nothing below ``nested_from`` is entered."""
    entries: dict[str, tuple[bytes, os.stat_result]] = {}
    groups: dict[tuple[int, int], list[str]] = defaultdict(list)
    pending = [(os.fsencode(top), "/")]
    while pending:
        raw, path = pending.pop()
        status = os.lstat(raw)
        entries[path] = (raw, status)
        if not stat.S_ISDIR(status.st_mode):
            groups[status.st_dev, status.st_ino].append(path)
        elif path != nested_from:
            pending += [(raw + b"/" + name, path.rstrip("/") + "/" + os.fsdecode(name)) for name in os.listdir(raw)]
    return {
        path: _facts(raw, status, tuple(sorted(groups.get((status.st_dev, status.st_ino), ()))))
        for path, (raw, status) in entries.items()
    }


def _facts(raw: bytes, status: os.stat_result, links: tuple[str, ...]) -> Facts:
    kind = stat.filemode(status.st_mode)[0]
    # XFS shows an ACL a second time, under a name of its own.
    names = [name for name in os.listxattr(raw, follow_symlinks=False) if not name.startswith("trusted.SGI_ACL_")]
    return Facts(
        kind=kind,
        mode=oct(stat.S_IMODE(status.st_mode)),
        owner=(status.st_uid, status.st_gid),
        device=status.st_rdev if kind in "bc" else 0,
        target=os.fsdecode(os.readlink(raw)) if kind == "l" else None,
        xattrs=tuple(sorted((name, os.getxattr(raw, name, follow_symlinks=False)) for name in names)),
        content=_content(raw) if kind == "-" else None,
        links=links if len(links) > 1 else (),
        layout=_layout(raw) if kind == "-" else None,
        moment=status.st_mtime_ns,
        identity=(status.st_ino, status.st_ctime_ns, status.st_nlink),
    )


def _content(raw: bytes) -> tuple[int, str]:
    with open(raw, "rb") as file:  # noqa: PTH123
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest


def _layout(raw: bytes) -> tuple[tuple[int, int], ...]:
    """Return where a file has data, as offsets of its begin and end."""
    descriptor = os.open(raw, os.O_RDONLY)
    found = []
    end = 0
    try:
        while True:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
            end = os.lseek(descriptor, start, os.SEEK_HOLE)
            found.append((start, end))
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
    finally:
        os.close(descriptor)
    return tuple(found)


def names(before: Tree, after: Tree) -> set[str]:
    """Return what an exact changeset names: ``+`` added, ``~`` modified, ``-`` deleted, ``!`` of another type."""
    found = {f"+{path}" for path in after.keys() - before.keys()} | {
        f"-{path}" for path in before.keys() - after.keys()
    }
    for path in before.keys() & after.keys():
        if before[path].kind != after[path].kind:
            found.add(f"!{path}")
        elif before[path].named() != after[path].named() or _relinked(path, before, after):
            found.add(f"~{path}")
    return found


def _relinked(path: str, before: Tree, after: Tree) -> bool:
    """Tell whether a name has other peers; one that was only deleted is named by its deletion."""
    gone = {name for name in before[path].links if name not in after or before[name].kind != after[name].kind}
    return set(before[path].links) - gone - {path} != set(after[path].links) - {path}


def location(entry: Reply) -> str:
    """Return the path of an entry of a reply, whose name need not be text."""
    encoded = entry.get("path_base64")
    return entry["path"] if encoded is None else os.fsdecode(base64.b64decode(encoded))


def reported(changeset: Reply) -> set[str]:
    """Return what a changeset names, in the form of ``names``."""
    changes = changeset["changes"]
    assert changes.keys() == {*KINDS, "unchanged"}
    found = [KINDS[kind] + location(entry) for kind in KINDS for entry in changes[kind]]
    assert len(found) == len(set(found)), "an entry is named twice"
    return set(found)


def entries(changeset: Reply) -> dict[str, Reply]:
    """Return every named entry by its path."""
    return {location(entry): entry for kind in KINDS for entry in changeset["changes"][kind]}


def shell(script: str, where: Path, *, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    """Run a bare command."""
    environment = {**ENVIRONMENT, "HOME": "/nonexistent", "USER": "root"}
    return subprocess.run(
        ["/bin/sh", "-c", script],
        cwd=where,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=check,
        umask=0o022,
        timeout=SECONDS_MAX,
    )


class Case:
    """One workspace, a plain copy of it, and a sandbox over it."""

    def __init__(self, flux: Flux, workspace: Path, beside: Path, setup: str) -> None:
        self.flux = flux
        self.workspace = workspace
        self.bare = beside / "bare"
        workspace.mkdir(parents=True, exist_ok=True)
        shell(setup, workspace)
        self.before = look(workspace)
        self.sandbox = flux.create(workspace)

    def expect(self, command: str) -> tuple[Tree, subprocess.CompletedProcess[bytes]]:
        """Return what the bare command makes of a plain copy, and how it ended."""
        subprocess.run(["rm", "-rf", self.bare], check=True)
        subprocess.run(["cp", "-a", self.workspace, self.bare], check=True)
        assert names(self.before, look(self.bare)) == set(), "the copy is not one"
        done = shell(command, self.bare, check=False)
        return look(self.bare), done

    def speculate(self, command: str, engine: str = "auto", **options: Any) -> Reply:
        """Run the command in Flux, which leaves the real tree untouched to the inode."""
        made = self.flux.speculate(self.sandbox, command, engine, **options)
        assert made["state"] == "pending"
        assert engine in ("auto", made["copy_engine"])
        self.untouched()
        return made

    def untouched(self) -> None:
        """Assert that nobody wrote to the tree since it was set up."""
        assert look(self.workspace) == self.before

    def apply(self, made: Reply, **options: Any) -> Reply:
        """Approve what was reviewed, and apply it."""
        self.flux.decide("approve", made, digest=made["digest"], **options)
        self.untouched()
        applied = self.flux.decide("apply", made)
        assert applied["state"] == "applied"
        return applied

    def carry(self, command: str, engine: str, wanted: Sequence[str] | None = None) -> Reply:
        """Prove one row: named exactly, as it was after reject, as the bare command made it after apply, and back."""
        expected, bare = self.expect(command)
        made = self.speculate(command, engine)
        said = made["exit_code"], made["stdout"], made["stderr"]
        assert said == (bare.returncode, bare.stdout.decode(), bare.stderr.decode()), (said, bare)
        assert not made["unstaged"] and not made["skipped"] and not made["not_captured"]
        named = reported(made)
        assert named == names(self.before, expected), named ^ names(self.before, expected)
        assert wanted is None or named == set(wanted), named ^ set(wanted)
        if engine == "overlay":
            assert self.flux.decide("reject", made)["state"] == "rejected"
            self.untouched()
            made = self.speculate(command, engine)
            self.apply(made)
            self.equals(expected, made)
        else:
            self.apply(made)
            self.equals(expected, made)
            self.revert(made)
        return made

    def equals(self, expected: Tree, made: Reply) -> None:
        """Assert that the tree is what the bare command made."""
        found = look(self.workspace)
        assert differences(expected, found) == {}, differences(expected, found)
        named = entries(made)
        for path in found:
            if found[path].kind == "d":
                continue
            if path not in named:
                assert found[path].moment == self.before[path].moment, (
                    path,
                    found[path].moment,
                    self.before[path].moment,
                )
            elif time.time_ns() - expected[path].moment > JUST_NOW_NS:
                assert found[path].moment == expected[path].moment, path
            else:
                assert found[path].moment == named[path]["after"]["mtime_ns"], path

    def revert(self, made: Reply) -> None:
        """Undo an applied changeset: the tree is as it was."""
        inverse = self.flux.decide("revert", made)
        if not entries(made):
            return
        assert inverse["state"] == "pending"
        self.flux.decide("approve", inverse, digest=inverse["digest"])
        self.flux.decide("apply", inverse)
        found = look(self.workspace)
        assert differences(self.before, found) == {}, differences(self.before, found)
        assert {path: facts.moment for path, facts in found.items() if facts.kind != "d"} == {
            path: facts.moment for path, facts in self.before.items() if facts.kind != "d"
        }

    def close(self) -> None:
        """Delete the sandbox: the workspace stays."""
        self.flux.remove(self.sandbox)
        assert self.workspace.is_dir()


def differences(expected: Tree, found: Tree) -> dict[str, tuple[Any, Any]]:
    """Return by path what is not exact."""
    pairs = {path: (expected.get(path), found.get(path)) for path in expected.keys() | found.keys()}
    return {
        path: (one and one.exact(), other and other.exact())
        for path, (one, other) in pairs.items()
        if one is None or other is None or one.exact() != other.exact()
    }


def alive(marker: str) -> list[int]:
    """Return the processes whose command line holds ``marker``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in line:
                found.append(int(entry.name))
    return found
