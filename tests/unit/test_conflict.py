"""When an entry is still what was reviewed: every row of the decision, and how a refusal reads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flux.core import conflict
from flux.core.changeset import Change, Entry
from flux.core.conflict import Difference, differs
from flux.core.errors import Code
from flux.core.manifest import EntryType, Fingerprint

EQUAL, CHANGED, NEEDS_CONTENT = Difference.EQUAL, Difference.CHANGED, Difference.NEEDS_CONTENT


def fingerprint(**changed: Any) -> Fingerprint:
    values: dict[str, Any] = {
        "type": EntryType.FILE, "mode": 0o644, "uid": 1, "gid": 2, "size": 3, "mtime_ns": 4, "ctime_ns": 5,
        "inode": 6, "links": 1, "digest": None,
    }  # fmt: skip
    return Fingerprint(**values | changed)


def token(**changed: Any) -> str:
    return fingerprint(**changed).token()


IDENTITY = [{"mtime_ns": 9}, {"ctime_ns": 9}, {"inode": 9}]
ATTRIBUTES = [
    {"mode": 0o600}, {"uid": 9}, {"gid": 9}, {"size": 9}, {"rdev": 9}, {"xattrs": (("user.a", b"1"),)},
    {"type": EntryType.DIRECTORY}, {"type": EntryType.SYMLINK, "target": "x"},
]  # fmt: skip


def test_an_equal_token_is_equal() -> None:
    assert differs(token(), token()) is EQUAL
    assert differs(token(digest="d"), token(digest="d")) is EQUAL


@pytest.mark.parametrize("changed", ATTRIBUTES, ids=str)
@pytest.mark.parametrize("digest", [None, "d"])
def test_attributes_count_even_with_equal_content(changed: dict[str, Any], digest: str | None) -> None:
    assert differs(token(digest=digest), token(digest=digest, **changed)) is CHANGED
    assert differs(token(digest=digest), token(digest=digest, **changed), by_content=True) is CHANGED


@pytest.mark.parametrize("changed", IDENTITY, ids=str)
def test_content_decides_where_the_times_do_not(changed: dict[str, Any]) -> None:
    assert differs(token(digest="d"), token(digest="d", **changed)) is EQUAL
    assert differs(token(digest="d"), token(digest="e", **changed)) is CHANGED
    assert differs(token(digest="d"), token(**changed)) is NEEDS_CONTENT
    assert differs(token(), token(**changed)) is NEEDS_CONTENT
    assert differs(token(), token(digest="d", **changed)) is NEEDS_CONTENT


def test_content_decides_even_where_the_times_are_equal() -> None:
    assert differs(token(digest="d"), token(digest="e")) is CHANGED


def test_a_touched_file_is_always_read() -> None:
    assert differs(token(digest="d"), token()) is EQUAL
    assert differs(token(digest="d"), token(), by_content=True) is NEEDS_CONTENT
    assert differs(token(), token(), by_content=True) is EQUAL, "there is nothing to compare with"
    assert differs(token(digest="d"), token(digest="d"), by_content=True) is EQUAL


def test_a_link_count_is_no_attribute() -> None:
    assert differs(token(), token(links=2)) is EQUAL


@pytest.mark.parametrize("kind", [kind for kind in EntryType if kind is not EntryType.FILE])
def test_other_types_go_by_their_attributes(kind: EntryType) -> None:
    one = {"type": kind, "target": "a" if kind is EntryType.SYMLINK else None}
    assert differs(token(**one), token(**one, size=9, mtime_ns=9, ctime_ns=9, inode=9)) is EQUAL
    assert differs(token(**one), token(**one, mode=0)) is CHANGED
    assert differs(token(**one), token(**one | {"target": "b"})) is CHANGED


entries = st.builds(
    token,
    mode=st.sampled_from([0o644, 0o600]),
    size=st.sampled_from([3, 4]),
    mtime_ns=st.sampled_from([4, 5]),
    inode=st.sampled_from([6, 7]),
    digest=st.sampled_from([None, "d", "e"]),
    xattrs=st.sampled_from([(), (("user.a", b"-"),)]),
)


@given(entries, entries, st.booleans())
def test_the_answer_is_the_same_from_both_sides(one: str, other: str, by_content: bool) -> None:
    there, back = differs(one, other, by_content=by_content), differs(other, one, by_content=by_content)
    if not by_content or (one[-1] == "-") == (other[-1] == "-"):
        assert there is back
    if there is EQUAL and by_content and not one.endswith(" -"):
        assert one.rpartition(" ")[2] == other.rpartition(" ")[2]


def test_looking_the_same_so_far() -> None:
    assert conflict.same_so_far(token(digest="d"), token())
    for changed in [*IDENTITY, {"mode": 0}, {"size": 9}]:
        assert not conflict.same_so_far(token(digest="d"), token(**changed)), changed
    unseen = token(digest="d", inode=0, ctime_ns=0)
    assert conflict.same_so_far(unseen, token())
    for changed in ({"mtime_ns": 9}, {"mode": 0}, {"size": 9}):
        assert not conflict.same_so_far(unseen, token(**changed)), changed


@pytest.mark.parametrize(
    ("expected", "found", "reason"),
    [
        (None, token(), "added"),
        (token(), None, "deleted"),
        (token(), token(type=EntryType.FIFO), "type"),
        (token(), token(size=9), "content"),
        (token(digest="d"), token(digest="e"), "content"),
        (token(), token(mtime_ns=9), "content_unknown"),
        (token(), token(mode=0), "attributes"),
        (token(digest="d"), token(mode=0, digest="d"), "attributes"),
        (token(type=EntryType.SYMLINK, target="a"), token(type=EntryType.SYMLINK, target="b"), "content"),
        (token(type=EntryType.DIRECTORY), token(type=EntryType.DIRECTORY, mode=0), "attributes"),
    ],
)
def test_reasons(expected: str | None, found: str | None, reason: str) -> None:
    assert conflict.reason(expected, found) == reason
    assert conflict.conflict("/f", expected, found).reason == reason


def test_phrases() -> None:
    assert conflict.describe(None) == "absent"
    assert conflict.describe(token(digest="sha256:ab")) == "file, mode 0644, owner 1:2, 3 bytes, sha256:ab"
    assert conflict.describe(token()).endswith("content not read")
    link = token(type=EntryType.SYMLINK, mode=0o777, target="a\x1b", xattrs=(("user.x", b""),))
    assert conflict.describe(link) == "symlink, mode 0777, owner 1:2, -> a\\x1b, xattrs user.x"


def test_a_refusal_names_ten_and_counts_all() -> None:
    found = [conflict.conflict(f"/f{number}\udcff", None, token()) for number in range(12)]
    error = conflict.refusal("cs1", found)
    assert error.code is Code.CONFLICT
    assert error.details["count"] == 12
    assert error.details["reason"] == "drift"
    assert [item["path_base64"] for item in error.details["conflicts"]] == [item.path_base64 for item in found[:10]]
    assert "12 paths changed" in error.message and "and 2 more" in error.message
    assert "\udcff" not in error.message
    assert "1 path changed" in conflict.refusal("cs1", found[:1]).message


def entry(kind: EntryType = EntryType.FILE) -> Entry:
    return Entry(type=kind, mode="0644", uid=0, gid=0, size=0, mtime_ns=0)


def test_what_is_touched() -> None:
    directory = entry(EntryType.DIRECTORY)
    changes = [
        Change(path="/a/b/f", after=entry()),
        Change(path="/gone", before=directory),
        Change(path="/gone/in", before=directory),
        Change(path="/typed", before=directory, after=entry()),
        Change(path="/made", before=entry(), after=directory),
        Change(path="/mode", before=directory, after=directory),
    ]
    touched = conflict.touched(changes)
    assert set(touched.entries) == {change.path for change in changes}
    assert set(touched.ancestors) == {"/", "/a", "/a/b"}
    assert list(touched.trees) == ["/gone", "/typed"]
    assert [conflict.becomes_directory(change) for change in changes] == [False, False, False, False, True, False]


def test_the_base_of_an_inverse() -> None:
    current = {"/": "r", "/d": "d2", "/d/f": "f2", "/d/theirs": "t", "/d/theirs/deep": "u", "/gone": "g", "/o": "o"}
    applied = {"/d": "d1", "/d/f": "f1", "/gone": None, "/m": "m1"}
    inverse = [Change(path="/d", before=entry(EntryType.DIRECTORY)), Change(path="/d/f", before=entry())]
    assert conflict.merge_applied(current, applied, inverse) == {
        "/": "r",
        "/d": "d1",
        "/d/f": "f1",
        "/m": "m1",
        "/o": "o",
    }
    assert conflict.merge_applied(current, {"/o": "x"}, []) == {**current, "/o": "x"}


def test_a_conflict_names_path_and_both_sides_exactly() -> None:
    found = conflict.conflict("/a\udcff", token(digest="sha256:d"), token(mode=0o600, size=7))
    assert (found.path, found.path_base64) == ("/a\\xff", "L2H/")
    assert found.expected == "file, mode 0644, owner 1:2, 3 bytes, sha256:d"
    assert found.found == "file, mode 0600, owner 1:2, 7 bytes, content not read"
    absent = conflict.conflict("/a", None, token())
    assert (absent.expected, absent.reason) == (conflict.ABSENT, "added")


def test_a_description_tells_type_target_and_attributes() -> None:
    assert conflict.describe(token(type=EntryType.CHARACTER_DEVICE)) == "character device, mode 0644, owner 1:2"
    link = token(type=EntryType.SYMLINK, target="x y")
    assert conflict.describe(link) == "symlink, mode 0644, owner 1:2, -> x y"
    marked = token(xattrs=(("user.a", b"1"), ("user.b", b"2")))
    assert conflict.describe(marked).endswith("xattrs user.a user.b")


@pytest.mark.parametrize(("count", "shown"), [(1, "1 path"), (2, "2 paths"), (10, "10 paths"), (11, "11 paths")])
def test_a_refusal_reads_the_same_for_people_and_programs(count: int, shown: str) -> None:
    places = ["/odd\udcff", *(f"/{number}" for number in range(1, count))]
    error = conflict.refusal("c1", [conflict.conflict(place, token(), None) for place in places])
    named = ", ".join(["/odd\\xff", *(f"/{number}" for number in range(1, min(count, 10)))])
    more = " and 1 more" if count == 11 else ""
    assert error.message == (
        f"cannot apply changeset c1: {shown} changed since it was made ({named}{more}): "
        "nothing was written; rerun it on what is there now, or reject it"
    )
    assert error.code is Code.CONFLICT
    assert {key: error.details[key] for key in ("reason", "changeset", "count")} == {
        "reason": "drift", "changeset": "approved", "count": count,
    }  # fmt: skip
    assert [item["expected"] for item in error.details["conflicts"]] == [conflict.describe(token())] * min(count, 10)


def test_a_token_whose_fields_differ_but_not_what_they_say_is_the_same_entry() -> None:
    """Two spellings of the same attributes: names in another order of escapes are parsed before they are compared."""
    one = token(xattrs=(("user.a", b"1"),), digest="d")
    other = one.replace("user.a=1", "user%2Ea=1")
    assert differs(one, other) is EQUAL


def test_what_appeared_below_a_leaving_directory_is_no_base_whatever_the_order() -> None:
    """Parents come before children, so all that lies below is found, in whatever order the manifest lists them."""
    leaving = Change(path="/d", before=Entry.of(fingerprint(type=EntryType.DIRECTORY)), after=None)
    current = {"/d/new/deep": "z", "/d/new": "y", "/d": "x", "/other": "o"}
    assert conflict.merge_applied(current, {"/d": "x2"}, [leaving]) == {"/other": "o", "/d": "x2"}
    assert list(conflict.merge_applied({"/b": "1", "/a": "2"}, {}, [])) == ["/b", "/a"]
