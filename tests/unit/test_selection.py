"""Partial approval: what is kept can stand alone."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flux.core import paths
from flux.core.changeset import Change, Changes, Entry, Staged, Unstaged
from flux.core.errors import Code, FluxError
from flux.core.manifest import EntryType
from flux.core.selection import close, close_unstaged

LETTERS = {
    "f": EntryType.FILE,
    "d": EntryType.DIRECTORY,
    "l": EntryType.SYMLINK,
}


def entry(text: str) -> Entry | None:
    """``-`` none, else a type's letter and perhaps a hard-link group's digit."""
    if text == "-":
        return None
    return Entry(
        type=LETTERS[text[0]], mode="0644", uid=0, gid=0, size=0, mtime_ns=0, link_group=int(text[1:] or 0) or None
    )


def change(path: str, before: str, after: str, staged: Staged | None = None) -> Change:
    text, encoded = paths.to_json(path)
    return Change(path=text, path_base64=encoded, before=entry(before), after=entry(after), staged=staged)


def changes(*lines: str, unchanged: int = 5) -> Changes:
    """Each line: path, before, after."""
    return Changes.of([change(*line.split()) for line in lines], unchanged=unchanged)


def kept(result: Changes) -> list[str]:
    return [each.location for each in result.every()]


CASES = [
    ("one of two", ["/a - f", "/b - f"], ["/a"], ["/a"]),
    ("the root is everything", ["/a - f", "/b/c f -"], ["/"], ["/a", "/b/c"]),
    ("an added file needs its added parents", ["/d - d", "/d/e - d", "/d/e/f - f", "/d/g - f"], ["/d/e/f"],
     ["/d", "/d/e", "/d/e/f"]),
    ("a parent that is only modified stays out", ["/d d d", "/d/f - f"], ["/d/f"], ["/d/f"]),
    ("a directory brings everything below", ["/d - d", "/d/f - f", "/d/e - d", "/d.x - f"], ["/d"],
     ["/d", "/d/e", "/d/f"]),
    ("an unchanged directory stands for what changed below", ["/s/a f f", "/s/b - f", "/t - f"], ["/s"],
     ["/s/a", "/s/b"]),
    ("a deleted directory brings all deletions below", ["/d d -", "/d/e d -", "/d/e/f f -", "/x f -"], ["/d"],
     ["/d", "/d/e", "/d/e/f"]),
    ("a deletion below does not bring the directory", ["/d d -", "/d/f f -"], ["/d/f"], ["/d/f"]),
    ("directory to file pulls the deletions", ["/d d f", "/d/a f -", "/d/b d -", "/d/b/c f -"], ["/d"],
     ["/d", "/d/a", "/d/b", "/d/b/c"]),
    ("file to directory is pulled by what is below", ["/d f d", "/d/a - f", "/d/b - f"], ["/d/a"], ["/d", "/d/a"]),
    ("link to directory likewise, at depth", ["/d l d", "/d/e - d", "/d/e/a - f"], ["/d/e/a"],
     ["/d", "/d/e", "/d/e/a"]),
    ("hard links stay together", ["/a - f1", "/b - f1", "/c - f2"], ["/a"], ["/a", "/b"]),
    ("hard links bring their own parents", ["/a - f1", "/d - d", "/d/b - f1", "/d/c - f"], ["/a"],
     ["/a", "/d", "/d/b"]),
    ("a broken hard link stays together with its old names", ["/a f1 f", "/b f1 f1", "/c - f1"], ["/a"],
     ["/a", "/b", "/c"]),
    ("groups before and after are numbered apart", ["/a f1 f", "/b - f1"], ["/a"], ["/a"]),
    ("names sort by component", ["/a - d", "/a-b - f", "/a/b - f", "/a.c - f"], ["/a"], ["/a", "/a/b"]),
    ("trailing slashes are harmless", ["/d - d", "/d/f - f"], ["//d/"], ["/d", "/d/f"]),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "only", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_closure(lines: list[str], only: list[str], expected: list[str]) -> None:
    assert kept(close(changes(*lines), only)) == expected


def test_a_reference_needs_nothing_more() -> None:
    moved = change("/t", "-", "f", Staged(reference="/s"))
    whole = Changes.of([moved, change("/s", "f", "-")], unchanged=0)
    assert close(whole, ["/t"]).added == [moved]
    assert kept(close(whole, ["/t"])) == ["/t"]


def test_what_is_left_out_counts_as_unchanged() -> None:
    whole = changes("/a - f", "/b f f", "/c f -", "/d f d", "/e f f", unchanged=10)
    part = close(whole, ["/e"])
    assert part.unchanged == 13
    assert close(whole, ["/"]) == whole


def test_names_that_are_not_utf8_can_be_selected() -> None:
    name = paths.from_bytes(b"/\xff\xfe")
    assert kept(close(Changes.of([change(name, "-", "f"), change("/b", "-", "f")], unchanged=0), [name])) == [name]


@pytest.mark.parametrize("only", [["/no"], ["/a", "/no"], ["/a/no"], ["/aa"]])
def test_unknown_paths_are_named(only: list[str]) -> None:
    with pytest.raises(FluxError) as caught:
        close(changes("/a - f", "/ab - f"), only)
    assert caught.value.code is Code.INVALID
    assert caught.value.details["paths"] == only[-1:]
    assert only[-1] in caught.value.message


def test_nothing_named_is_refused() -> None:
    with pytest.raises(FluxError, match="at least one"):
        close(changes("/a - f"), [])


def test_unstaged_entries_follow_the_selection() -> None:
    unstaged = [
        Unstaged(path="/d/big", reason="too large"),
        Unstaged(path="/a", reason="too large"),
        Unstaged(path="/loose", reason="unreadable"),
    ]
    whole = changes("/a f1 f1", "/b f1 f1", "/d/big f f", "/d/s - f")
    part = close(whole, ["/d/s"], unstaged)
    assert close_unstaged(unstaged, ["/d/s"], part) == []
    linked = close(whole, ["/b"], unstaged)
    assert close_unstaged(unstaged, ["/b"], linked) == [unstaged[1]]
    assert close_unstaged(unstaged, ["/d"], close(whole, ["/d"], unstaged)) == [unstaged[0]]
    only_unstaged = close(whole, ["/loose"], unstaged)
    assert kept(only_unstaged) == []
    assert close_unstaged(unstaged, ["/loose"], only_unstaged) == [unstaged[2]]


@st.composite
def trees(draw: st.DrawFn) -> Changes:
    """A changeset that a real run could have made: every after-entry's parent is a directory, likewise before."""
    found: list[Change] = []

    def grow(path: str, before: bool, after: bool, depth: int) -> None:
        for name in draw(st.lists(st.sampled_from("abc"), unique=True, max_size=3)):
            kinds = ["f", "f1", "f2", "l", "d", "d"]
            old = draw(st.sampled_from(["-", *kinds])) if before else "-"
            new = draw(st.sampled_from(["-", *kinds])) if after else "-"
            if old == new == "-":
                continue
            place = paths.join(path, name)
            if old != new or draw(st.booleans()):
                found.append(change(place, old, new))
            if depth:
                grow(place, old == "d", new == "d", depth - 1)

    grow("/", True, True, 2)
    return Changes.of(found, unchanged=3)


def stands_alone(part: Changes, whole: Changes) -> bool:
    """Tell whether applying ``part`` to the base leaves every kept entry in a directory and no name behind."""
    chosen = {each.location for each in part.every()}
    for each in whole.every():
        for above in (other for other in whole.every() if each.location.startswith(other.location + "/")):
            gone = above.location in chosen and (above.after is None or above.after.type is not EntryType.DIRECTORY)
            if gone and each.location not in chosen:
                return False
            absent = above.before is None or above.before.type is not EntryType.DIRECTORY
            if each.location in chosen and each.after is not None and absent and above.location not in chosen:
                return False
    return True


@given(trees(), st.data())
def test_any_selection_stands_alone(whole: Changes, data: st.DataObject) -> None:
    every = kept(whole)
    if not every:
        return
    only: Sequence[str] = data.draw(st.lists(st.sampled_from(every), min_size=1, unique=True))
    part = close(whole, only)
    assert set(only) <= set(kept(part)) <= set(every)
    assert stands_alone(part, whole)
