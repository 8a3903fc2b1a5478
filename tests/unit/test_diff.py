"""The comparison of two states of a tree: complete, minimal, and blind to what is no change."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from flux.core import diff, manifest, paths
from flux.core.changeset import Change, Entry
from flux.core.diff import Links
from flux.core.manifest import EntryType, Fingerprint, Manifest

NAMES = ("a", "b", "c")
PATHS = ["/" + "/".join(parts) for parts in ([x] for x in NAMES)] + [f"/{x}/{y}" for x in NAMES for y in NAMES]


def fingerprint(**changes: Any) -> Fingerprint:
    plain = Fingerprint(
        type=EntryType.FILE, mode=0o644, uid=0, gid=0, size=3, mtime_ns=1, ctime_ns=1, inode=1, links=1,
        digest="sha256:a",
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


@st.composite
def fingerprints(draw: st.DrawFn) -> Fingerprint:
    kind = draw(st.sampled_from(EntryType))
    file, link = kind is EntryType.FILE, kind is EntryType.SYMLINK
    return Fingerprint(
        type=kind,
        mode=0o777 if link else draw(st.sampled_from((0o600, 0o755, 0o4711))),
        uid=draw(st.sampled_from((0, 1))),
        gid=0,
        size=draw(st.sampled_from((0, 5))) if file else 0,
        mtime_ns=draw(st.integers(0, 3)),
        ctime_ns=draw(st.integers(0, 3)),
        inode=draw(st.integers(1, 6)),
        links=0 if kind is EntryType.DIRECTORY else 2,
        rdev=draw(st.integers(0, 1)) if kind in (EntryType.CHARACTER_DEVICE, EntryType.BLOCK_DEVICE) else 0,
        target=draw(st.sampled_from(("x", "y"))) if link else None,
        xattrs=draw(st.sampled_from(((), (("user.a", b"1"),)))),
        digest=draw(st.sampled_from(("sha256:a", "sha256:b"))) if file else None,
    )


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Fingerprint]:
    """A tree in which names of one inode agree on everything."""
    found: dict[str, Fingerprint] = {"/": fingerprint(type=EntryType.DIRECTORY, size=0, links=0, digest=None)}
    inodes: dict[int, Fingerprint] = {}
    for path in PATHS:
        above = found.get(paths.parent(path))
        if above is None or above.type is not EntryType.DIRECTORY or draw(st.booleans()):
            continue
        entry = draw(fingerprints())
        found[path] = entry if entry.type is EntryType.DIRECTORY else inodes.setdefault(entry.inode, entry)
    return found


def tokens(tree: dict[str, Fingerprint]) -> Manifest:
    return {path: entry.token() for path, entry in tree.items()}


def links(tree: dict[str, Fingerprint]) -> Links:
    return diff.links((path, entry.inode) for path, entry in tree.items() if entry.type is not EntryType.DIRECTORY)


def changes(before: dict[str, Fingerprint], after: dict[str, Fingerprint]) -> list[Change]:
    return compared(before, after).changes


def compared(before: dict[str, Fingerprint], after: dict[str, Fingerprint]) -> diff.Difference:
    touched = before.keys() | after.keys()
    return diff.compare(tokens(before), tokens(after), touched, before_links=links(before), after_links=links(after))


def what(entry: Fingerprint) -> Entry:
    """Return what of an entry counts."""
    plain = Entry.of(entry)
    size = plain.size if entry.type is EntryType.FILE else 0
    return msgspec.structs.replace(plain, mtime_ns=0, size=size)


def is_new_socket(path: str, before: dict[str, Fingerprint], after: dict[str, Fingerprint]) -> bool:
    old, new = before.get(path), after.get(path)
    return new is not None and new.type is EntryType.SOCKET and (old is None or old.type is not EntryType.SOCKET)


@given(trees(), trees())
def test_the_changes_turn_one_tree_into_the_other(
    before: dict[str, Fingerprint], after: dict[str, Fingerprint]
) -> None:
    result = {path: what(entry) for path, entry in before.items()}
    for change in changes(before, after):
        assert (change.before is None) == (change.location not in before)
        if change.after is None:
            del result[change.location]
        else:
            plain = msgspec.structs.replace(change.after, mtime_ns=0, link_group=None)
            result[change.location] = msgspec.structs.replace(
                plain, size=plain.size if plain.type is EntryType.FILE else 0
            )
    expected = {path: what(entry) for path, entry in after.items() if not is_new_socket(path, before, after)}
    assert result == expected


@given(trees(), trees())
def test_the_links_after_can_be_told_from_the_changes(
    before: dict[str, Fingerprint], after: dict[str, Fingerprint]
) -> None:
    kept = {path: entry for path, entry in after.items() if not is_new_socket(path, before, after)}
    groups: dict[str, object] = {path: ("old", min(group)) for path, group in links(before).items()}
    for change in changes(before, after):
        groups.pop(change.location, None)
        if change.after is not None and change.after.link_group is not None:
            groups[change.location] = change.after.link_group
    names: dict[object, set[str]] = {}
    for path, group in groups.items():
        names.setdefault(group, set()).add(path)
    told = {frozenset(group) for group in names.values() if len(group) > 1}
    assert told == set(links(kept).values())


@given(trees(), st.data())
def test_times_inodes_and_sizes_of_directories_are_no_change(tree: dict[str, Fingerprint], data: st.DataObject) -> None:
    shift = data.draw(st.integers(1, 9))
    moved = {
        path: msgspec.structs.replace(
            entry,
            mtime_ns=entry.mtime_ns + shift,
            ctime_ns=entry.ctime_ns + shift,
            inode=entry.inode + 100 * shift,
        )
        for path, entry in tree.items()
    }
    assert not changes(tree, moved)


@given(trees(), trees())
def test_changes_are_sorted_and_each_says_what_differs(
    before: dict[str, Fingerprint], after: dict[str, Fingerprint]
) -> None:
    found = compared(before, after)
    locations = [change.location for change in found.changes]
    assert locations == sorted(locations)
    assert found.skipped == sorted(path for path in after if is_new_socket(path, before, after))
    for change in found.changes:
        assert bool(change.attributes) == (change.before is not None and change.after is not None)
        assert change.kind == "type_changed" or "type" not in change.attributes


def test_an_unknown_content_counts_as_another() -> None:
    known, unknown = fingerprint(), fingerprint(digest=None, inode=2)
    for before, after in ((known, unknown), (unknown, known), (unknown, fingerprint(digest=None, inode=3))):
        (change,) = changes({"/f": before}, {"/f": after})
        assert change.attributes == ("content",)


def test_each_attribute_has_its_name() -> None:
    cases: dict[str, tuple[Fingerprint, Fingerprint]] = {
        "content": (fingerprint(), fingerprint(digest="sha256:b")),
        "mode": (fingerprint(), fingerprint(mode=0o600)),
        "owner": (fingerprint(), fingerprint(gid=5)),
        "xattrs": (fingerprint(), fingerprint(xattrs=(("user.a", b""),))),
        "target": (fingerprint(type=EntryType.SYMLINK, target="a"), fingerprint(type=EntryType.SYMLINK, target="b")),
        "rdev": (fingerprint(type=EntryType.BLOCK_DEVICE, rdev=1), fingerprint(type=EntryType.BLOCK_DEVICE, rdev=2)),
        "type": (fingerprint(), fingerprint(type=EntryType.FIFO, size=0, digest=None)),
    }
    for name, (before, after) in cases.items():
        (change,) = changes({"/f": before}, {"/f": after})
        assert change.attributes == (name,), name


def test_a_deleted_name_leaves_the_others_alone() -> None:
    pair = {path: fingerprint(links=3) for path in ("/a", "/b", "/c")}
    found = changes(pair, {"/a": fingerprint(links=2), "/b": fingerprint(links=2)})
    assert [(change.location, change.kind) for change in found] == [("/c", "deleted")]


def test_a_new_name_brings_the_old_one_in() -> None:
    found = changes({"/a": fingerprint()}, {path: fingerprint(links=2) for path in ("/a", "/b")})
    assert [(change.location, change.kind, change.attributes) for change in found] == [
        ("/a", "modified", ("links",)),
        ("/b", "added", ()),
    ]
    assert {change.after.link_group for change in found if change.after is not None} == {1}


def test_sizes_and_inodes_are_read_from_tokens() -> None:
    token = fingerprint(size=77, inode=99).token()
    assert (diff.size(token), diff.inode(token)) == (77, "99")
    assert diff.may_match(token, fingerprint(size=77).token())
    assert not diff.may_match(token, fingerprint(size=78).token()) and not diff.may_match(token, None)
    assert manifest.parse(token).size == 77
