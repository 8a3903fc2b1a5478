"""The scanner: every fact of every entry, whatever names, depth and races; nothing followed, nothing crossed."""

from __future__ import annotations

import mmap
import os
import resource
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flux.core import manifest
from flux.core.manifest import EntryType, Fingerprint
from flux.trees import _native
from flux.trees.scan import Scan, entry, hash_file, rescan, scan, tops
from tests.trees.filesystems import mounted
from tests.trees.unprivileged import as_nobody, place

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes devices, owners or mounts, which needs root")

TYPES = {
    stat.S_IFREG: EntryType.FILE,
    stat.S_IFDIR: EntryType.DIRECTORY,
    stat.S_IFLNK: EntryType.SYMLINK,
    stat.S_IFIFO: EntryType.FIFO,
    stat.S_IFSOCK: EntryType.SOCKET,
    stat.S_IFCHR: EntryType.CHARACTER_DEVICE,
    stat.S_IFBLK: EntryType.BLOCK_DEVICE,
}


def opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY)


def scanned(path: Path, *paths: str, skip: tuple[str, ...] = ()) -> Scan:
    root = opened(path)
    try:
        return scan(root, paths or ("/",), skip=skip)
    finally:
        os.close(root)


def rescanned(path: Path, base: manifest.Manifest, *paths: str, skip: tuple[str, ...] = ()) -> list[str]:
    root = opened(path)
    try:
        return rescan(root, paths or ("/",), base, skip=skip)
    finally:
        os.close(root)


def fingerprint(raw: bytes) -> Fingerprint:
    """Return what the standard library says about an entry."""
    status = os.lstat(raw)
    kind = TYPES[stat.S_IFMT(status.st_mode)]
    directory = kind is EntryType.DIRECTORY
    device = kind in (EntryType.CHARACTER_DEVICE, EntryType.BLOCK_DEVICE)
    names = sorted(os.listxattr(raw, follow_symlinks=False))
    return Fingerprint(
        type=kind,
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        size=0 if directory else status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        inode=status.st_ino,
        links=0 if directory else status.st_nlink,
        rdev=status.st_rdev if device else 0,
        target=os.fsdecode(os.readlink(raw)) if kind is EntryType.SYMLINK else None,
        xattrs=tuple((name, os.getxattr(raw, name, follow_symlinks=False)) for name in names),
    )


def without_digests(found: manifest.Manifest) -> manifest.Manifest:
    return {path: f"{token.rpartition(' ')[0]} -" for path, token in found.items()}


def expected(top: Path) -> manifest.Manifest:
    """Return the manifest as the standard library and the reference encoder make it."""
    raw = os.fsencode(top)
    result = {"/": fingerprint(raw).token()}
    for above, directories, files in os.walk(raw):
        for name in directories + files:
            path = os.path.join(above, name)
            result[os.fsdecode(path[len(raw) :])] = fingerprint(path).token()
    return result


ODD_NAMES = (b"new\nline", b"\xff\xfe", b"-", b"*", b"$(id)", b"a;b", b"two  spaces", b"\x1b[31m\x07\r", b"n" * 255)


def test_every_fact_is_written_as_the_reference_encoder_does(tmp_path: Path) -> None:
    top = os.fsencode(tmp_path)
    for number, name in enumerate(ODD_NAMES):
        Path(os.fsdecode(top + b"/" + name)).write_bytes(b"x" * number)
        os.symlink(name, top + b"/link%d" % number)
    for target in (b"-", b"%2D", b"a=b,c", b"~._-/", "é".encode(), b"x" * 4095):
        os.symlink(target, top + b"/to" + bytes(str(hash(target)), "ascii"))
    (tmp_path / "e\u0301").mkdir()
    (tmp_path / "\u00e9" / "inside").mkdir(parents=True)
    os.mkfifo(tmp_path / "fifo", 0o640)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    (tmp_path / "file").write_bytes(b"content")
    os.link(tmp_path / "file", tmp_path / "other")
    os.utime(tmp_path / "file", ns=(0, -1_500_000_001))
    for key, value in (
        ("user.b", b"\x00\xff,=% -"),
        ("user.a", b""),
        ("user.c=d,e f", b"-"),
        ("user.big", b"v" * 3000),
    ):
        os.setxattr(tmp_path / "file", key, value)
    os.chmod(tmp_path / "file", 0o6751)
    found = scanned(tmp_path)
    assert without_digests(found.manifest) == expected(tmp_path)
    assert sorted(found.linked) == ["/file", "/other"]
    assert found.total_bytes == sum(range(len(ODD_NAMES))) + len(b"content")
    assert not found.nested and not found.unreadable
    for token in found.manifest.values():
        assert manifest.parse(token).token() == token


@needs_root
def test_owners_devices_acls_and_capabilities_are_seen(tmp_path: Path) -> None:
    os.mknod(tmp_path / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(tmp_path / "block", stat.S_IFBLK | 0o600, os.makedev(259, 70000))
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    os.symlink("x", tmp_path / "link")
    os.chown(tmp_path / "link", 4_000_000_000, 3, follow_symlinks=False)
    os.setxattr(tmp_path / "link", "trusted.link", b"1", follow_symlinks=False)
    subprocess.run(["setfacl", "-m", "u:1:rw", str(tmp_path / "file")], check=True)
    subprocess.run(["setfacl", "-d", "-m", "g:2:rx", str(tmp_path / "directory")], check=True)
    subprocess.run(["setcap", "cap_net_raw+ep", str(tmp_path / "file")], check=True, env={"PATH": "/sbin:/usr/sbin"})
    found = scanned(tmp_path).manifest
    assert without_digests(found) == expected(tmp_path)
    assert dict(manifest.parse(found["/file"]).xattrs).keys() == {"security.capability", "system.posix_acl_access"}


def test_a_tree_deeper_than_a_path_may_be_long(tmp_path: Path) -> None:
    name = "d" * 255
    depth = 60
    current = opened(tmp_path)
    for _ in range(depth):
        os.mkdir(name, dir_fd=current)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=current)
        os.close(current)
        current = below
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=current))
    os.close(current)
    found = scanned(tmp_path)
    bottom = f"/{name}" * depth + "/bottom"
    assert len(found.manifest) == depth + 2
    assert manifest.parse(found.manifest[bottom]).size == 0
    root = opened(tmp_path)
    assert _native.lookup(root, [bottom]) == [f"{found.manifest[bottom].rpartition(' ')[0]} -"]
    os.close(root)


def test_links_are_never_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("x")
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "to").symlink_to(outside)
    (workspace / "self").symlink_to("self")
    assert scanned(workspace).manifest.keys() == {"/", "/to", "/self"}
    assert not scanned(workspace, "/to/secret", "/self/x").manifest
    root = opened(workspace)
    assert entry(root, "/to/secret") is None and entry(root, "/missing") is None
    assert manifest.parse(entry(root, "/to") or "").target == str(outside)
    os.close(root)


@needs_root
def test_mounts_inside_are_named_and_not_entered(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    for path in ("plain", "bind", "tmpfs"):
        (workspace / path).mkdir(parents=True)
    (workspace / "plain" / "file").write_text("x")
    (workspace / "bound-file").touch()
    mounts = [
        ["mount", "--bind", str(workspace / "plain"), str(workspace / "bind")],
        ["mount", "--bind", str(workspace / "plain" / "file"), str(workspace / "bound-file")],
        ["mount", "-t", "tmpfs", "tmpfs", str(workspace / "tmpfs")],
    ]
    try:
        for command in mounts:
            subprocess.run(command, check=True)
        found = scanned(workspace)
        assert sorted(found.nested) == ["/bind", "/bound-file", "/tmpfs"]
        assert found.manifest.keys() == {"/", "/plain", "/plain/file"}
        assert not rescanned(workspace, found.manifest)
        root = opened(workspace)
        assert [entry(root, path) for path in ("/bind", "/bind/file", "/bound-file", "/tmpfs")] == [None] * 4
        os.close(root)
        assert not scanned(workspace, "/bind", "/tmpfs/x").manifest
    finally:
        for command in mounts:
            subprocess.run(["umount", command[-1]], check=True)


@needs_root
def test_a_workspace_may_be_a_mount_itself(tmp_path: Path) -> None:
    with mounted(tmp_path, ("tmpfs",)) as places:
        (places["tmpfs"] / "file").write_text("x")
        found = scanned(places["tmpfs"])
        assert found.manifest.keys() == {"/", "/file"} and not found.nested


@needs_root
def test_a_nested_subvolume_counts_as_a_mount(tmp_path: Path) -> None:
    with mounted(tmp_path, ("btrfs",)) as places:
        subprocess.run(["btrfs", "-q", "subvolume", "create", str(places["btrfs"] / "inner")], check=True)
        (places["btrfs"] / "inner" / "file").touch()
        found = scanned(places["btrfs"])
        assert found.nested == ["/inner"] and found.manifest.keys() == {"/"}


def test_only_what_is_asked_for_is_scanned(tmp_path: Path) -> None:
    for path in ("a/b/c", "a/d", "ab", "e"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "file").write_text("abc")
    assert scanned(tmp_path, "/a/b", "/file", "/missing", "/file/below").manifest.keys() == {"/a/b", "/a/b/c", "/file"}
    assert scanned(tmp_path, "/a/b", "/a").manifest.keys() == {"/a", "/a/b", "/a/b/c", "/a/d"}
    assert scanned(tmp_path, skip=("/a", "/file")).manifest.keys() == {"/", "/ab", "/e"}
    assert scanned(tmp_path, "/file").total_bytes == 3
    assert not scanned(tmp_path, "/a", skip=("/a",)).manifest
    assert tops(["/b/c", "/a", "/b", "/a/x", "/ab"]) == ["/a", "/ab", "/b"]


def test_a_second_scan_returns_only_what_differs(tmp_path: Path) -> None:
    for name in ("same", "rewritten", "gone", "moved", "chmod"):
        (tmp_path / name).write_text(name)
    (tmp_path / "tree" / "below").mkdir(parents=True)
    _native.next_tick()
    root = opened(tmp_path)
    base = _native.scan(root, "/", [], None)[0]
    (tmp_path / "rewritten").write_text("other")
    (tmp_path / "gone").unlink()
    (tmp_path / "tree" / "below").rmdir()
    (tmp_path / "new").touch()
    (tmp_path / "chmod").chmod(0o600)
    found = _native.scan(root, "/", [], base)[0]
    os.close(root)
    assert found.keys() - {"/", "/tree"} == {"/rewritten", "/gone", "/tree/below", "/new", "/chmod"}
    assert found["/gone"] == found["/tree/below"] == ""
    assert rescanned(tmp_path, base) == ["/chmod", "/gone", "/new", "/rewritten", "/tree/below"]
    assert rescanned(tmp_path, base, "/tree") == ["/tree/below"]
    assert rescanned(tmp_path, base, "/gone", "/same") == ["/gone"]
    assert rescanned(tmp_path, base, skip=("/tree", "/gone")) == ["/chmod", "/new", "/rewritten"]


def test_equal_content_is_no_difference_where_it_is_known(tmp_path: Path) -> None:
    for name in ("known", "unknown"):
        (tmp_path / name).write_text("text")
    base = without_digests(scanned(tmp_path).manifest)
    with (tmp_path / "known").open("rb") as file:
        base["/known"] = manifest.with_digest(base["/known"], hash_file(file.fileno()))
    for name in ("known", "unknown"):
        (tmp_path / name).unlink()
        (tmp_path / name).write_text("text")
    assert rescanned(tmp_path, base) == ["/unknown"]
    (tmp_path / "known").write_text("next")
    assert rescanned(tmp_path, base) == ["/known", "/unknown"]


def test_a_rewrite_within_one_tick_of_the_clock_is_found(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("one")
    base = scanned(tmp_path).manifest
    assert manifest.parse(base["/file"]).digest is not None
    path.write_text("two")
    # What a rewrite in the same tick leaves: every time, the size and the inode are as they were.
    token = _native.lookup(root := opened(tmp_path), ["/file"])[0]
    os.close(root)
    base["/file"] = manifest.with_digest(token, manifest.parse(base["/file"]).digest or "")
    assert rescanned(tmp_path, base) == ["/file"]


@needs_root
def test_on_tmpfs_a_write_through_a_mapping_is_found(tmp_path: Path) -> None:
    with mounted(tmp_path, ("tmpfs",)) as places:
        path = places["tmpfs"] / "file"
        path.write_bytes(b"a" * 4096)
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
            mapping[0] = ord("b")
            base = scanned(places["tmpfs"]).manifest
            mapping[0] = ord("c")
            root = opened(places["tmpfs"])
            assert entry(root, "/file") != base["/file"]
            os.close(root)
            assert rescanned(places["tmpfs"], base) == ["/file"]


@needs_root
def test_without_privileges_what_cannot_be_read_is_named() -> None:
    with place() as top:
        (top / "closed" / "inside").mkdir(parents=True)
        (top / "listable").mkdir()
        (top / "listable" / "file").touch()
        (top / "file").touch(0o000)
        (top / "closed").chmod(0o700)
        (top / "listable").chmod(0o744)

        def check() -> None:
            found = scanned(top)
            assert found.manifest.keys() == {"/", "/closed", "/listable", "/file"}
            assert dict(found.unreadable).keys() == {"/closed", "/listable/file"} or "/listable" in dict(
                found.unreadable
            )
            assert scanned(top, "/closed").manifest.keys() == {"/closed"}
            assert dict(scanned(top, "/closed").unreadable) == {"/closed": "Permission denied"}

        as_nobody(check)


def test_a_tree_that_changes_all_the_time_is_no_danger(tmp_path: Path) -> None:
    stop = threading.Event()

    def churn(number: int) -> None:
        top = tmp_path / str(number)
        while not stop.is_set():
            (top / "a" / "b").mkdir(parents=True)
            (top / "a" / "b" / "file").write_text("x")
            os.symlink("x", top / "a" / "link")
            (top / "a").rename(top / "c")
            remove_again(top)

    threads = [threading.Thread(target=churn, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    root = opened(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    try:
        for _ in range(150):
            found = _native.scan(root, "/", [], None)
            _native.lookup(root, sorted(found[0]))
            assert "/" in found[0] and not found[1]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len(os.listdir("/proc/self/fd")) <= before  # what earlier tests left open may close meanwhile
    os.close(root)


def remove_again(top: Path) -> None:
    (top / "c" / "b" / "file").unlink()
    (top / "c" / "link").unlink()
    (top / "c" / "b").rmdir()
    (top / "c").rmdir()
    top.rmdir()


def test_scans_leave_no_memory_behind(tmp_path: Path) -> None:
    for number in range(300):
        path = tmp_path / f"directory{number % 17}" / f"file{number}"
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.setxattr(path, "user.note", b"n" * 100)
    root = opened(tmp_path)
    base = _native.scan(root, "/", [], None)[0]
    sizes = []
    for _ in range(4):
        for _ in range(60):
            _native.scan(root, "/", ["/directory3"], base)
            _native.lookup(root, list(base))
        sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    os.close(root)
    assert sizes[-1] - sizes[1] < 1024, "each round of scans took more memory"


LITTLE_MEMORY = """
import os, resource, sys
from flux.trees import _native
root = os.open(sys.argv[1], os.O_RDONLY)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
outcomes = set()
for spare in range(0, 6 << 20, 96 << 10):
    resource.setrlimit(resource.RLIMIT_AS, (used + spare, resource.RLIM_INFINITY))
    try:
        outcomes.add(len(_native.scan(root, "/", [], None)[0]))
    except (MemoryError, OSError) as error:
        outcomes.add(type(error).__name__)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
outcomes.add(len(_native.scan(root, "/", [], None)[0]))
print(sorted(map(str, outcomes)))
"""


def test_without_memory_a_scan_fails_and_nothing_else(tmp_path: Path) -> None:
    for number in range(3000):
        (tmp_path / f"file{number}-with-a-name-that-takes-some-memory").touch()
    done = subprocess.run(
        [sys.executable, "-c", LITTLE_MEMORY, str(tmp_path)], capture_output=True, text=True, check=True
    )
    outcomes = set(done.stdout.strip("[]\n").replace("'", "").split(", "))
    assert outcomes >= {"3001"} and outcomes <= {"3001", "MemoryError", "OSError", "BlockingIOError"}
    assert len(outcomes) > 1, "memory never ran out"
