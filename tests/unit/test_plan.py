"""Plans: which renames an apply makes, which inode stays where, and what is refused before anything is touched."""

from __future__ import annotations

import pytest

from flux.core.changeset import Change, Entry, Staged
from flux.core.errors import Code, FluxError
from flux.core.links import Fate
from flux.core.manifest import EntryType, Fingerprint, Manifest
from flux.core.plan import implied_directories, kept_bytes, make_plan, revertible

FILE, DIRECTORY, SYMLINK = EntryType.FILE, EntryType.DIRECTORY, EntryType.SYMLINK


def entry(kind: EntryType = FILE, *, content: str = "a", mode: str = "0644", group: int | None = None) -> Entry:
    digest = content if kind is FILE else None
    target = content if kind is SYMLINK else None
    size = len(content) if kind is FILE else 0
    return Entry(
        type=kind, mode=mode, uid=0, gid=0, size=size, mtime_ns=1, digest=digest, target=target, link_group=group
    )


def token(kind: EntryType = FILE, *, inode: int = 1, links: int = 1, content: str = "a", mode: int = 0o644) -> str:
    return Fingerprint(
        type=kind, mode=mode, uid=0, gid=0, size=len(content), mtime_ns=1, ctime_ns=1, inode=inode, links=links,
        digest=content if kind is FILE else None,
    ).token()  # fmt: skip


def change(
    path: str,
    before: Entry | None,
    after: Entry | None,
    *attributes: str,
    blob: str | None = None,
    reference: str | None = None,
) -> Change:
    staged = Staged(blob=blob, reference=reference) if blob or reference else None
    return Change(path=path, before=before, after=after, attributes=attributes, staged=staged)


def steps(changes: list[Change], base: Manifest) -> list[tuple[str, str]]:
    return [(step.kind, step.path) for step in make_plan(changes, base).steps]


def fate_of(changes: list[Change], base: Manifest, path: str) -> Fate:
    return next(new.fate for new in make_plan(changes, base).new if new.path == path)


def test_only_the_topmost_paths_are_steps() -> None:
    old = entry(DIRECTORY)
    changes = [
        change("/new", None, old),
        change("/new/a", None, entry(), blob="0"),
        change("/new-b", None, entry(), blob="1"),
        change("/gone", old, None),
        change("/gone/x", entry(), None),
        change("/typed", old, entry(), "type", blob="2"),
        change("/typed/y", entry(), None),
        change("/file", entry(), entry(content="b"), "content", blob="3"),
    ]
    base = {
        "/gone": token(DIRECTORY),
        "/gone/x": token(inode=2),
        "/typed": token(DIRECTORY),
        "/typed/y": token(inode=3),
    }
    plan = make_plan(changes, base | {"/file": token(inode=4), "/": token(DIRECTORY)})
    assert [(step.kind, step.path) for step in plan.steps] == [
        ("remove", "/gone"),
        ("replace", "/file"),
        ("replace", "/typed"),
        ("create", "/new"),
        ("create", "/new-b"),
    ]
    assert [new.place for new in plan.new] == ["/1", "/3", "/4", "/3/a", "/2"]
    assert plan.displaced == [["/gone", "/gone/x"], ["/file"], ["/typed", "/typed/y"], [], []]


def test_attributes_are_amended_in_place_directories_last_and_deepest_first() -> None:
    changes = [
        change("/", entry(DIRECTORY), entry(DIRECTORY, mode="0700"), "mode"),
        change("/a", entry(DIRECTORY), entry(DIRECTORY, mode="0700"), "mode"),
        change("/a/b", entry(DIRECTORY), entry(DIRECTORY, mode="0700"), "mode"),
        change("/a/b/f", entry(), entry(mode="0600"), "mode"),
        change("/z", entry(), entry(), "links"),
    ]
    plan = make_plan(changes, {item.path: token(inode=number) for number, item in enumerate(changes)})
    assert plan.steps == []
    assert [amend.path for amend in plan.amends] == ["/a/b/f", "/a/b", "/a", "/"]


def test_an_inode_is_amended_once() -> None:
    changes = [change(path, entry(group=1), entry(mode="0600", group=1), "mode") for path in ("/f", "/g")]
    plan = make_plan(changes, {"/f": token(inode=7, links=2), "/g": token(inode=7, links=2)})
    assert [amend.path for amend in plan.amends] == ["/f"]


def test_a_link_s_own_attributes_do_not_replace_it() -> None:
    before, after = entry(SYMLINK), entry(SYMLINK, mode="0777")
    assert steps([change("/l", before, after, "owner")], {"/l": token(SYMLINK)}) == []
    assert steps([change("/l", before, entry(SYMLINK, content="b"), "target")], {"/l": token(SYMLINK)}) == [
        ("replace", "/l")
    ]


LINKS: dict[str, tuple[list[Change], Manifest, dict[str, Fate]]] = {
    "a new pair": (
        [change("/f", None, entry(group=1), blob="0"), change("/g", None, entry(group=1), blob="1")],
        {},
        {"/f": Fate("blob", "0"), "/g": Fate("same", "/f")},
    ),
    "the member that is staged comes first": (
        [change("/f", None, entry(group=1)), change("/g", None, entry(group=1), blob="1")],
        {},
        {"/f": Fate("same", "/g"), "/g": Fate("blob", "1")},
    ),
    "another name of a file": (
        [change("/f", entry(), entry(group=1), "links"), change("/g", None, entry(group=1), reference="/f")],
        {"/f": token()},
        {"/g": Fate("kept", "/f")},
    ),
    "a name that breaks off": (
        [
            change("/f", entry(group=1), entry(group=1), "links"),
            change("/g", entry(group=1), entry(), "links"),
            change("/h", entry(group=1), entry(group=1), "links"),
        ],
        {path: token(inode=7, links=3) for path in ("/f", "/g", "/h")},
        {"/g": Fate("copy", "/g")},
    ),
    "a name that breaks off from unchanged ones": (
        [change("/g", entry(group=1), entry(), "links")],
        {path: token(inode=7, links=3) for path in ("/f", "/g", "/h")},
        {"/g": Fate("copy", "/g")},
    ),
    "a pair that falls apart": (
        [change("/f", entry(group=1), entry(), "links"), change("/g", entry(group=1), entry(), "links")],
        {path: token(inode=7, links=2) for path in ("/f", "/g")},
        {"/g": Fate("copy", "/g")},
    ),
    "two files that become one": (
        [change("/f", entry(), entry(group=1), "links"), change("/g", entry(), entry(group=1), "links")],
        {"/f": token(inode=7), "/g": token(inode=8)},
        {"/g": Fate("kept", "/f")},
    ),
    "an added name of a group that is amended": (
        [change("/f", entry(), entry(mode="0600", group=1), "mode"), change("/g", None, entry(mode="0600", group=1))],
        {"/f": token()},
        {"/g": Fate("kept", "/f")},
    ),
    "written through": (
        [
            change("/f", entry(group=1), entry(content="b", group=1), "content", blob="0"),
            change("/g", entry(group=1), entry(content="b", group=1), "content", blob="1"),
        ],
        {path: token(inode=7, links=2) for path in ("/f", "/g")},
        {"/f": Fate("blob", "0"), "/g": Fate("same", "/f")},
    ),
    "a name of another group taken over": (
        [
            change("/f", entry(group=1), entry(group=1), "links"),
            change("/g", entry(group=1), entry(group=1), "links"),
            change("/h", entry(content="b", group=2), entry(group=1), "content", "links", reference="/f"),
            change("/i", entry(content="b", group=2), entry(content="b"), "links"),
        ],
        {
            "/f": token(inode=7, links=2),
            "/g": token(inode=7, links=2),
            "/h": token(inode=8, links=2),
            "/i": token(inode=8, links=2),
        },
        {"/h": Fate("kept", "/f")},
    ),
}


@pytest.mark.parametrize("name", LINKS)
def test_links(name: str) -> None:
    changes, base, expected = LINKS[name]
    assert {new.path: new.fate for new in make_plan(changes, base).new} == expected


def test_a_file_that_only_changes_its_name_moves() -> None:
    changes = [change("/a", entry(), None), change("/b", None, entry(), reference="/a")]
    assert fate_of(changes, {"/a": token()}, "/b") == Fate("move", "/a")
    assert make_plan(changes, {"/a": token()}).live == {"/a": "/b"}


@pytest.mark.parametrize(
    ("changes", "base"),
    [
        ([change("/a", entry(), None), change("/b", None, entry(mode="0600"), reference="/a")], {"/a": token()}),
        ([change("/a", entry(), None), change("/b", None, entry(), reference="/a")], {"/a": token(links=2)}),
        ([change("/b", None, entry(), reference="/a")], {"/a": token()}),
        (
            [change("/a", entry(), entry(mode="0600"), "mode"), change("/b", None, entry(), reference="/a")],
            {"/a": token()},
        ),
    ],
    ids=["another mode", "another name", "it stays", "it is amended"],
)
def test_any_other_reference_is_copied(changes: list[Change], base: Manifest) -> None:
    assert fate_of(changes, base, "/b") == Fate("copy", "/a")


def test_a_file_moves_once() -> None:
    changes = [
        change("/a", entry(), None),
        change("/b", None, entry(), reference="/a"),
        change("/c", None, entry(), reference="/a"),
    ]
    plan = make_plan(changes, {"/a": token()})
    assert [new.fate for new in plan.new] == [Fate("move", "/a"), Fate("copy", "/a")]


def test_a_displaced_name_of_a_living_inode_is_known() -> None:
    base = {path: token(inode=7, links=2) for path in ("/f", "/g")}
    assert make_plan([change("/g", entry(group=1), None)], base).live == {"/g": "/f"}
    both = [change("/f", entry(group=1), entry(), "links"), change("/g", entry(group=1), None)]
    assert make_plan(both, base).live == {"/g": "/f"}
    assert make_plan([change("/f", entry(group=1), None), change("/g", entry(group=1), None)], base).live == {}


REFUSED: dict[str, tuple[list[Change], Manifest, Code]] = {
    "an entry that would go unnamed": ([change("/d", entry(DIRECTORY), None)], {"/d/f": token()}, Code.INVALID),
    "an entry that would go with a type change": (
        [change("/d", entry(DIRECTORY), entry(), "type", blob="0")],
        {"/d/f": token()},
        Code.INVALID,
    ),
    "an entry that stays in a directory that goes": (
        [change("/d", entry(DIRECTORY), None), change("/d/f", entry(), entry(mode="0600"), "mode")],
        {"/d": token(DIRECTORY), "/d/f": token()},
        Code.INVALID,
    ),
    "an entry that goes from a directory that is new": (
        [change("/d", None, entry(DIRECTORY)), change("/d/f", entry(), None)],
        {},
        Code.INVALID,
    ),
    "the root replaced": ([change("/", entry(DIRECTORY), None)], {}, Code.INVALID),
    "content that is not staged": ([change("/f", None, entry())], {}, Code.NOT_APPLICABLE),
    "new content that is not staged": (
        [change("/f", entry(), entry(content="bb"), "content")],
        {"/f": token()},
        Code.NOT_APPLICABLE,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    changes, base, code = REFUSED[name]
    with pytest.raises(FluxError) as caught:
        make_plan(changes, base)
    assert caught.value.code is code


def test_an_empty_file_needs_no_content() -> None:
    assert fate_of([change("/f", None, entry(content=""))], {}, "/f") == Fate("made")


def test_what_is_kept_is_counted_once_for_each_inode() -> None:
    changes = [
        change("/a", entry(content="123"), None),
        change("/b", entry(content="12", group=1), None),
        change("/c", entry(content="12", group=1), None),
        change("/d", entry(content="1"), entry(DIRECTORY), "type"),
        change("/e", entry(content="9" * 50), entry(mode="0600"), "mode"),
        change("/f", None, entry(content="9" * 50)),
        change("/g", entry(content="1234"), entry(content="x"), "content"),
    ]
    assert kept_bytes(changes) == 3 + 2 + 1 + 4
    assert revertible(changes, 10, same_mount=True) == (True, None)
    assert revertible(changes, 9, same_mount=True) == (
        False,
        "it replaces 10 bytes of content, and at most 9 are kept (revert_max_mib)",
    )


def test_a_socket_is_kept_by_a_rename_only() -> None:
    changes = [change("/s", entry(EntryType.SOCKET), None)]
    assert revertible(changes, 0, same_mount=True) == (True, None)
    assert revertible(changes, 0, same_mount=False)[0] is False


def test_implied_directories_are_additions() -> None:
    made = implied_directories(["/a/b", "/a"], entry(DIRECTORY, mode="0755"))
    assert [(item.path, item.kind) for item in made] == [("/a", "added"), ("/a/b", "added")]
