"""A sandbox's files as its users name them, on a substrate without walls."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from flux.core.access import Actor, Role, bearer_of
from flux.core.audit import AuditFilter
from flux.core.errors import Code
from flux.core.requests import CreateSandbox
from flux.core.sandbox import Sandbox
from flux.engine.filesystem import filesystem as module
from flux.engine.filesystem import names
from flux.engine.filesystem.entries import FileEntry
from flux.engine.filesystem.filesystem import Filesystem
from flux.engine.filesystem.spool import MIB, Body
from flux.engine.lifecycle.spots import Spot
from flux.testing.substrate import FakeSubstrate
from tests.engine.kit import ADMIN, Kit, refused, started

MINE = f"user:x:{os.geteuid()}:{os.getegid()}:me:/home/user:/bin/sh\n"


class Box:
    """A managed sandbox over a template: its tree on the host, and its files as ``user`` has them."""

    def __init__(self, kit: Kit, sandbox: Sandbox) -> None:
        self.kit = kit
        self.sandbox = sandbox
        self.root = kit.state / "sandboxes" / sandbox.id / "generations" / "1" / "upper"

    @property
    def files(self) -> Filesystem:
        return self.kit.engine.filesystem(ADMIN, self.sandbox.id, "user")

    def put(self, path: str, content: bytes, **notes: str) -> FileEntry:
        return self.files.put_file(path, Body(size=len(content), data=content), notes)

    def read(self, path: str) -> bytes:
        with os.fdopen(self.files.open_file(path).descriptor, "rb") as stream:
            return stream.read()


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    template = tmp_path / "templates" / "small"
    (template / "etc").mkdir(parents=True)
    (template / "home" / "user").mkdir(parents=True)
    (template / "tmp").mkdir()
    (template / "etc" / "passwd").write_text(f"root:x:0:0::/root:/bin/sh\n{MINE}odd:x:4294967290:12::/:/bin/sh\n")
    (template / "etc" / "group").write_text(f"mygroup:x:{os.getegid()}:\n")
    kit = Kit(tmp_path, FakeSubstrate(), persistent=True, template_root=str(tmp_path / "templates"))
    sandbox = started(kit.engine, CreateSandbox(template="small"))
    made = Box(kit, sandbox)
    found = kit.engine.context.instances.settled(sandbox.id, 1)
    if found is None:
        made.files.stat("/")
        found = kit.engine.context.instances.running(sandbox.id)
    assert found is not None
    made.root = Path(os.readlink(f"/proc/self/fd/{found.tree_descriptor}"))
    yield made
    kit.engine.close()


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        ("f", "/home/user/f"),
        ("~/f", "/home/user/f"),
        ("./d/../f", "/home/user/f"),
        ("/tmp//f/", "/tmp/f"),
        ("/../../tmp/f", "/tmp/f"),
        ("../../../../../tmp/f", "/tmp/f"),
        ("new/below/f", "/home/user/new/below/f"),
        ("~f/../x", None),
        ("a\0b", None),
        ("x" * 256, None),
        ("\ud800", None),
        ("d/" * 2100 + "f", None),
        ("/etc/passwd/f", None),
        ("", None),
        ("~", None),
        ("/", None),
    ],
)
def test_paths_are_from_the_home_or_the_root_and_lead_nowhere_else(box: Box, asked: str, path: str | None) -> None:
    if path is None:
        with refused(Code.INVALID):
            box.put(asked, b"x")
        return
    assert box.put(asked, b"x").path == path
    assert (box.root / path[1:]).read_bytes() == b"x"
    assert box.read(asked) == b"x"


@pytest.mark.parametrize(
    "name",
    ["with space", " x ", 'it\'s "q"', "new\nline", "back\\slash", "文件 🙂", "\udcff", "l" * 255, "-rf", "*", "..."],
)
def test_names_of_any_bytes(box: Box, name: str) -> None:
    box.put(f"names/{name}", b"content")
    assert [(entry.name, entry.path) for entry in box.files.entries("names")] == [(name, f"/home/user/names/{name}")]
    assert box.read(f"names/{name}") == b"content"
    box.files.move(f"names/{name}", "moved")
    box.files.move("moved", f"names/{name}")
    box.files.remove(f"names/{name}")
    assert os.listdir(box.root / "home/user/names") == []


def test_an_entry_is_told_as_it_is(box: Box) -> None:
    box.put("f", b"12345", key="a b; c")
    os.utime(box.root / "home/user/f", ns=(1, 1_700_000_000_123_456_789))
    found = box.files.stat("f")
    assert found == FileEntry(
        name="f",
        kind="file",
        path="/home/user/f",
        size=5,
        mode=0o644,
        permissions="-rw-r--r--",
        owner=box.files.stat("/etc").owner,
        group="mygroup",
        modified_ns=1_700_000_000_123_456_789,
        metadata={"key": "a b; c"},
    )
    (box.root / "home/user/l").symlink_to("../no/where")
    os.mkfifo(box.root / "home/user/p")
    (box.root / "tmp").chmod(0o1777)
    link, fifo, temporary, root = (box.files.stat(path) for path in ("l", "p", "/tmp", "/"))
    assert (link.kind, link.target, link.permissions) == ("symlink", "../no/where", "Lrwxrwxrwx")
    assert (fifo.kind, fifo.permissions[0]) == ("other", "p")
    assert (temporary.permissions, temporary.mode) == ("dtrwxrwxrwx", 0o777)
    assert (root.name, root.path, root.kind) == ("/", "/", "directory")
    with refused(Code.NOT_FOUND):
        box.files.stat("nothing")
    with refused(Code.INVALID):
        box.files.stat("f/below")


def test_names_of_owners_follow_the_sandbox_s_own_tables(box: Box) -> None:
    assert box.files.stat("/").group == "mygroup"
    (box.root / "etc/group").write_text(f"other:x:{os.getegid()}:\nbad line\nx:y:z:\n")
    assert box.files.stat("/").group == "other"
    (box.root / "etc/group").unlink()
    os.mkfifo(box.root / "etc/group")
    assert box.files.stat("/").group == str(os.getegid())
    (box.root / "etc/group").unlink()
    (box.root / "etc/group").symlink_to("/etc/group")
    assert box.files.stat("/").group == str(os.getegid())


def test_numbers_of_owners_that_are_none_name_nobody(box: Box) -> None:
    digits = "1" * 5000
    passwd = box.root / "etc/passwd"
    passwd.write_text(f"odd:x:{digits}:0::/:\nodd:x:5:{digits}::/:\nodd:x:٣:3::/:\n{passwd.read_text()}")
    told = box.files.stat("/")
    assert told.owner in ("root", "user")
    with refused(Code.INVALID):
        box.kit.engine.filesystem(ADMIN, box.sandbox.id, digits).stat("/")
    if os.geteuid() == 0:  # without privileges there is one user only
        assert box.kit.engine.filesystem(ADMIN, box.sandbox.id, "odd").stat("/") == told


def test_tables_of_owners_are_forgotten_before_they_fill_the_memory(box: Box, tmp_path: Path) -> None:
    tables, group = names.Tables(), tmp_path / "group"
    root = os.open(tmp_path, os.O_PATH)
    try:
        for version in range(4):
            group.write_text("".join(f"a:x:{number}\n" for number in range(version, version + 90_000)))
            assert tables.names(Spot(root, "/group", whole=True))[version] == "a"
            assert tables.held <= names.NAMES_MAX
    finally:
        os.close(root)


def test_a_write_in_place_keeps_what_the_file_is(box: Box) -> None:
    box.put("f", b"long old content", old="1")
    place = box.root / "home/user/f"
    place.chmod(0o750)
    os.link(place, box.root / "home/user/twin")
    before = place.stat()
    assert box.put("f", b"new", only="this").metadata == {"only": "this"}
    after = place.stat()
    assert (after.st_ino, after.st_mode, after.st_size, after.st_nlink) == (before.st_ino, before.st_mode, 3, 2)
    assert box.read("twin") == b"new"
    assert box.files.stat("twin").metadata == {"only": "this"}
    box.put("f", b"")
    assert (box.read("f"), box.files.stat("f").metadata) == (b"", {})


def test_links_are_followed_also_to_what_is_not_there_yet(box: Box) -> None:
    home = box.root / "home/user"
    (box.root / "srv" / "deep").mkdir(parents=True)
    (home / "d").symlink_to("/srv/deep")
    (home / "l").symlink_to("/tmp/made")
    (box.root / "srv/deep/up").symlink_to("../other")
    (home / "loop").symlink_to("loop")
    box.put("l", b"1")
    assert (box.root / "tmp/made").read_bytes() == b"1"
    assert (home / "l").is_symlink()
    box.put("d/up", b"2")
    assert (box.root / "srv/other").read_bytes() == b"2"
    with refused(Code.INVALID):
        box.put("loop", b"x")


def test_notes_that_cannot_be_kept_are_refused_before_anything_is_done(box: Box) -> None:
    for notes in (
        {"": "x"},
        {"k y": "x"},
        {"k": "ä"},
        {"k": "a\n"},
        {"k": "x" * 3000},
        {f"k{i}": "" for i in range(65)},
    ):
        with refused(Code.INVALID):
            box.files.put_file("f", Body(size=1, data=b"x"), notes)
    assert not (box.root / "home/user/f").exists()
    assert box.put("f", b"x", Author="Me").metadata == {"author": "Me"}


def test_content_of_any_size_waits_until_it_is_whole(box: Box) -> None:
    spool = box.files.spool()
    pieces = [os.urandom(MIB), os.urandom(5), os.urandom(2 * MIB + 3)]
    for piece in pieces:
        spool.add(piece)
    box.files.put_file("all", spool.body())
    box.files.put_file("part", spool.body(MIB - 1, MIB + 7))
    spool.close()
    whole = b"".join(pieces)
    assert box.read("all") == whole
    assert box.read("part") == whole[MIB - 1 : MIB + 7]
    small = box.files.spool()
    small.add(b"abc")
    assert bytes(small.body(1).data) == b"bc"
    small.close()


def test_a_full_disk_is_told_before_anything_is_changed(tmp_path: Path, box: Box) -> None:
    from flux.engine.filesystem.spool import Spool

    spool = Spool(str(tmp_path), 1 << 60)
    with refused(Code.EXHAUSTED):
        spool.add(b"x" * (MIB + 1))
    spool.close()
    box.put("f", b"old")
    with refused(Code.EXHAUSTED):
        box.files.put_file("f", Body(size=1 << 50, data=b"x"))
    with refused(Code.EXHAUSTED):
        box.files.put_file("new", Body(size=1 << 50, data=b"x"))
    assert box.read("f") == b"old"
    assert os.listdir(box.root / "home/user") == ["f"]


def test_lists_go_as_deep_as_asked_in_order(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("t/b/c/d", "t/a", "t/b/x"):
        box.put(path, b"x")
    (box.root / "home/user/t/l").symlink_to("b")
    (box.root / "home/user/to").symlink_to("t")

    def paths(asked: str, depth: int) -> list[str]:
        return [entry.path.removeprefix("/home/user/") for entry in box.files.entries(asked, depth)]

    assert paths("t", 1) == paths("t", 0) == ["t/a", "t/b", "t/l"]
    assert paths("t", 2) == ["t/a", "t/b", "t/b/c", "t/b/x", "t/l"]
    assert paths("to", 9) == ["to/a", "to/b", "to/b/c", "to/b/c/d", "to/b/x", "to/l"]
    with refused(Code.INVALID):
        box.files.entries("t/a")
    with refused(Code.NOT_FOUND):
        box.files.entries("nothing")
    monkeypatch.setattr(module, "ENTRIES_MAX", 4)
    assert len(paths("t/b", 2)) == 3
    with refused(Code.TOO_LARGE):
        paths("t", 2)


def test_directories_are_made_once(box: Box) -> None:
    assert box.files.make_directory("a/b").path == "/home/user/a/b"
    for path in ("a/b", "a", "/"):
        with refused(Code.ALREADY_EXISTS):
            box.files.make_directory(path)
    box.put("f", b"x")
    for path in ("f", "f/below"):
        with refused(Code.INVALID):
            box.files.make_directory(path)


def test_moves_replace_files_and_make_what_is_missing(box: Box) -> None:
    box.put("one", b"1")
    box.put("two", b"2")
    assert box.files.move("one", "two").size == 1
    assert box.read("two") == b"1"
    assert box.files.move("two", "new/place/three").path == "/home/user/new/place/three"
    box.put("full/f", b"x")
    with refused(Code.CONFLICT):
        box.files.move("new", "full")
    with refused(Code.NOT_FOUND):
        box.files.move("nothing", "x")
    with refused(Code.INVALID):
        box.files.move("full", "full/below")
    for source, destination in (("/", "x"), ("full", "/")):
        with refused(Code.INVALID):
            box.files.move(source, destination)


def test_removing_takes_all_below_and_nothing_that_links_lead_to(box: Box) -> None:
    box.put("kept/f", b"x")
    box.put("d/e/f", b"x")
    (box.root / "home/user/d/l").symlink_to("../kept")
    (box.root / "home/user/l").symlink_to("kept")
    box.files.remove("d")
    box.files.remove("l")
    box.files.remove("nothing/at/all")
    box.files.remove("d")
    assert os.listdir(box.root / "home/user") == ["kept"]
    assert box.read("kept/f") == b"x"
    with refused(Code.INVALID):
        box.files.remove("/")


def test_removing_what_is_deeper_than_files_can_be_open(box: Box) -> None:
    at = os.open(box.root / "home/user", os.O_RDONLY)
    for _ in range(500):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    box.files.remove("d")
    assert os.listdir(box.root / "home/user") == []


def test_parts_are_joined_and_gone(box: Box) -> None:
    for name in "abc":
        box.put(f"parts/{name}", name.encode() * 3)
    box.put("joined", b"old")
    made = box.files.compose(["parts/a", "parts/b", "parts/c", "parts/a"], "joined")
    assert (made.path, made.size) == ("/home/user/joined", 12)
    assert box.read("joined") == b"aaabbbcccaaa"
    assert os.listdir(box.root / "home/user/parts") == []
    box.put("x", b"x")
    for sources in ([], ["joined", "x"]):
        with refused(Code.INVALID):
            box.files.compose(sources, "joined")
    with refused(Code.NOT_FOUND):
        box.files.compose(["x", "nothing"], "joined")
    assert sorted(os.listdir(box.root / "home/user")) == ["joined", "parts", "x"]


def test_only_files_are_opened(box: Box) -> None:
    os.mkfifo(box.root / "home/user/p")
    for path in ("p", "/tmp", "~"):
        with refused(Code.INVALID):
            box.files.open_file(path)
    with refused(Code.INVALID):
        box.put("p", b"x")
    with refused(Code.INVALID):
        box.put("/tmp", b"x")
    with refused(Code.INVALID):
        box.files.compose(["p"], "new")


def test_who_may_do_what_is_asked_and_what_was_changed_is_recorded(box: Box) -> None:
    reviewer = Actor(name="rev", role=Role.REVIEWER, key_id="ky1")
    with refused(Code.DENIED):
        box.kit.engine.filesystem(reviewer, box.sandbox.id, "root").remove("x")
    with refused(Code.NOT_FOUND):
        box.kit.engine.filesystem(bearer_of("other"), box.sandbox.id, "root").stat("/")
    with refused(Code.INVALID):
        box.kit.engine.filesystem(ADMIN, box.sandbox.id, "nobody else").stat("/")
    box.put("f", b"x")
    box.files.move("f", "g")
    box.files.remove("g")
    box.files.make_directory("d")
    lines = box.kit.engine.audit(ADMIN, AuditFilter(event="sandbox.write"), 10).items
    assert [line.details for line in lines] == [
        {"path": "/home/user/f", "size": 1},
        {"action": "move", "path": "/home/user/f", "to": "/home/user/g"},
        {"action": "remove", "path": "/home/user/g"},
        {"action": "make-directory", "path": "/home/user/d"},
    ]


def test_a_watch_tells_what_others_and_writes_do(box: Box) -> None:
    box.put("w/old", b"x")
    watch = box.files.watch("w", recursive=True)
    try:
        box.put("w/new", b"12")
        events = watch.read(entries=True)
        assert [(event.type, event.name) for event in events if event.type != "chmod"] == [
            ("create", "new"),
            ("write", "new"),
        ]
        assert {event.entry.path for event in events if event.entry} == {"/home/user/w/new"}
        box.files.remove("w/old")
        [gone] = watch.read(entries=True)
        assert (gone.type, gone.name, gone.entry) == ("remove", "old", None)
    finally:
        watch.close()
    for path, code in (("nothing", Code.NOT_FOUND), ("w/new", Code.INVALID)):
        with refused(code):
            box.files.watch(path)
