"""Text diffs: exact, bounded, and as patches taken by git itself."""

import hashlib
import os
import random
import stat
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flux.core import linediff, paths
from flux.core.changeset import Entry
from flux.core.manifest import EntryType
from flux.core.patch import Side, patch, quoted
from flux.core.textdiff import DIFF_BYTES_MAX, lines, undiffed, unified

few_lines = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n", b"d\r\n", b"tail"]), max_size=30).map(b"".join)


def patched(old: list[bytes], blocks: list[linediff.Block], new: list[bytes]) -> list[bytes]:
    result, at = [], 0
    for start, end, new_start, new_end in blocks:
        result += old[at:start] + new[new_start:new_end]
        at = end
    return result + old[at:]


def digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


@given(few_lines, few_lines, st.sampled_from([0, 1, 20, linediff.BUDGET_STEPS]))
def test_blocks_turn_one_into_the_other_at_any_budget(before: bytes, after: bytes, budget: int) -> None:
    old, new = lines(before), lines(after)
    blocks = linediff.blocks(old, new, budget)
    assert patched(old, blocks, new) == new
    for (_, end, _, new_end), (start, _, new_start, _) in pairwise(blocks):
        assert start > end and new_start > new_end


@given(few_lines, few_lines)
def test_small_files_get_the_shortest_or_anchored_edit(before: bytes, after: bytes) -> None:
    old, new = lines(before), lines(after)
    edits = sum(block[1] - block[0] + block[3] - block[2] for block in linediff.blocks(old, new))
    kept = len(old) + len(new) - edits
    assert kept % 2 == 0
    if not set(old) & set(new):
        assert kept == 0
    if old and new and (old[0] == new[0] or old[-1] == new[-1]):
        assert kept > 0


PATHOLOGICAL = [
    ([b"x\n", b"y\n"] * 20_000, [b"y\n", b"x\n", b"z\n"] * 20_000),
    ([b"%d\n" % number for number in range(50_000)], [b"%d\n" % number for number in reversed(range(50_000))]),
    ([b"\n"] * 100_000 + [b"1\n"] + [b"\n"] * 100_000, [b"2\n"] + [b"\n"] * 150_000),
    (random.Random(1).choices([b"a\n", b"b\n"], k=50_000), random.Random(2).choices([b"a\n", b"b\n"], k=50_000)),
]


@pytest.mark.parametrize("sides", PATHOLOGICAL)
def test_pathological_input_stays_within_its_budget(sides: tuple[list[bytes], list[bytes]]) -> None:
    """The searching parts stop when the budget is spent; all else is linear."""
    old, new = sides
    search = linediff._Search([hash(line) for line in old], [hash(line) for line in new], linediff.BUDGET_STEPS)
    search.run()
    largest_overdraft = len(old) + len(new) + 2 * linediff._EDITS_MAX * (linediff._EDITS_MAX + len(old))
    assert search.budget > -largest_overdraft
    assert patched(old, linediff.blocks(old, new), new) == new


def test_a_large_file_with_many_small_edits_gets_small_hunks() -> None:
    old = [b"line %d\n" % number for number in range(30_000)]
    new = [b"edited\n" if number % 100 == 0 else line for number, line in enumerate(old)]
    blocks = linediff.blocks(old, new)
    assert len(blocks) == 300 and all(block[1] - block[0] == 1 == block[3] - block[2] for block in blocks)


@pytest.mark.parametrize(
    ("before", "after", "hunks", "added", "deleted"),
    [
        (b"a\n", b"a\n", "", 0, 0),
        (None, b"", "", 0, 0),
        (None, b"a\nb\n", "@@ -0,0 +1,2 @@\n+a\n+b\n", 2, 0),
        (b"a\n", None, "@@ -1 +0,0 @@\n-a\n", 0, 1),
        (b"a\n", b"a", "@@ -1 +1 @@\n-a\n+a\n\\ No newline at end of file\n", 1, 1),
        (
            b"a",
            b"a\nb",
            "@@ -1 +1,2 @@\n-a\n\\ No newline at end of file\n+a\n+b\n\\ No newline at end of file\n",
            2,
            1,
        ),
        (b"a\r\nb", b"a\r\nb\r\n", "@@ -1,2 +1,2 @@\n a\r\n-b\n\\ No newline at end of file\n+b\r\n", 1, 1),
        (b"caf\xe9\n", b"caf\xc3\xa9\n", "@@ -1 +1 @@\n-caf\\xe9\n+café\n", 1, 1),
        (
            b"1\n2\n3\n4\n5\n6\n7\n8\n9\n",
            b"1\n2\n3\n4\nfive\n6\n7\n8\n9\n",
            "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n",
            1,
            1,
        ),
    ],
)
def test_hunks(before: bytes | None, after: bytes | None, hunks: str, added: int, deleted: int) -> None:
    diff = unified(before, after, "/f")
    assert (diff.kind, diff.hunks, diff.added_lines, diff.deleted_lines) == ("text", hunks, added, deleted)


@pytest.mark.parametrize(("gap", "count"), [(6, 1), (7, 2)])
def test_hunks_join_when_their_context_touches(gap: int, count: int) -> None:
    old = [b"%d\n" % number for number in range(gap + 2)]
    new = [b"x\n", *old[1:-1], b"y\n"]
    assert unified(b"".join(old), b"".join(new), "/f").hunks.count("@@ -") == count


def test_binary_files_have_sizes_and_digests() -> None:
    content = b"text\0" * 80_000
    diff = unified(None, content, paths.from_bytes(b"/\xff"))
    assert (diff.kind, diff.hunks, diff.path_base64) == ("binary", "", "L/8=")
    assert (diff.before_size, diff.before_digest) == (None, None)
    assert (diff.after_size, diff.after_digest) == (400_000, digest(content))


@pytest.mark.parametrize(("size", "kind"), [(DIFF_BYTES_MAX, "text"), (DIFF_BYTES_MAX + 1, "too_large")])
def test_the_limit_is_exact(size: int, kind: str) -> None:
    diff = unified(b"x" * size, b"", "/f")
    assert (diff.kind, diff.before_size, diff.after_size) == (kind, size, 0)
    assert (diff.reason is None) == (kind == "text")


def test_contents_that_were_not_read() -> None:
    after = Entry(type=EntryType.FILE, mode="0644", uid=0, gid=0, size=7, mtime_ns=0, digest="sha256:00")
    diff = undiffed("/f", "unavailable", "its pre-image was over the budget", None, after)
    assert (diff.kind, diff.before_size, diff.after_size, diff.after_digest) == ("unavailable", None, 7, "sha256:00")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a/plain name", "a/plain name"),
        ("a/$(id);*", "a/$(id);*"),
        ('a/"', '"a/\\""'),
        ("a/b\\c", '"a/b\\\\c"'),
        ("a/\n\t\r\a\b\v\f", '"a/\\n\\t\\r\\a\\b\\v\\f"'),
        ("a/é", '"a/\\303\\251"'),
        ("a/\x1b\x7f", '"a/\\033\\177"'),
        (paths.from_bytes(b"a/\xff"), '"a/\\377"'),
    ],
)
def test_names_are_quoted_as_git_does(name: str, expected: str) -> None:
    assert quoted(name) == expected


def put(root: Path, path: str, side: Side | None) -> None:
    place = root / path[1:]
    if side is None:
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    if side.mode == "120000":
        place.symlink_to(os.fsdecode(side.content))
        return
    place.write_bytes(side.content)
    place.chmod(0o755 if side.mode == "100755" else 0o644)


def held(root: Path, path: str) -> Side | None:
    place = root / path[1:]
    if not os.path.lexists(place):
        return None
    mode = place.lstat().st_mode
    if stat.S_ISLNK(mode):
        return Side("120000", os.fsencode(os.readlink(place)))
    return Side("100755" if mode & 0o100 else "100644", place.read_bytes())


def check_with_git(root: Path, path: str, before: Side | None, after: Side | None) -> None:
    put(root, path, before)
    text = patch(path, before, after)
    if text:
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(root.parent), "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(
            ["git", "apply", "--whitespace=nowarn", "-"], input=text, cwd=root, env=environment, capture_output=True
        )
        assert done.returncode == 0, (done.stderr, text[:500])
    assert held(root, path) == after


TEXT, MORE, TOOL = Side("100644", b"a\nb\n"), Side("100644", b"a\nc\r\n\xff\nd"), Side("100755", b"#!x\n")
BLOB, BLOB2 = Side("100644", bytes(range(256)) * 3), Side("100755", b"\0" + os.urandom(3000))
EMPTY, LINK, LINK2 = Side("100644", b""), Side("120000", b"../a b"), Side("120000", b"else\nwhere")
LARGE = Side("100644", b"0123456789abcde\n" * (DIFF_BYTES_MAX // 16 + 1))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, TEXT),
        (TEXT, None),
        (TEXT, MORE),
        (MORE, TOOL),
        (TEXT, Side("100755", TEXT.content)),
        (None, EMPTY),
        (EMPTY, None),
        (EMPTY, TEXT),
        (TEXT, EMPTY),
        (EMPTY, Side("100755", b"")),
        (None, TOOL),
        (None, BLOB),
        (BLOB, BLOB2),
        (BLOB2, None),
        (TEXT, BLOB),
        (BLOB, EMPTY),
        (None, LINK),
        (LINK, LINK2),
        (LINK2, None),
        (TEXT, LINK),
        (LINK, TOOL),
        (TEXT, TEXT),
        (TEXT, LARGE),
        (LARGE, MORE),
    ],
)
def test_git_applies_the_patch(tmp_path: Path, before: Side | None, after: Side | None) -> None:
    check_with_git(tmp_path, "/f", before, after)


@pytest.mark.parametrize(
    "name",
    [b"plain", b"two  spaces", b" lead", b"trail ", b"-rf", b"*", b"$(id);", b"new\nline", b"tab\t", b'quo"te',
     b"back\\", b"\x1b\x07\r", b"\xff\xfe", "é".encode(), "e\u0301".encode(), b"x" * 255, b"d/e/f g/h",
     b"a => b", b"{a,b}"],
)  # fmt: skip
def test_git_takes_every_name(tmp_path: Path, name: bytes) -> None:
    path = "/" + paths.from_bytes(name)
    for count, (before, after) in enumerate([(None, TEXT), (TEXT, MORE), (TEXT, None), (BLOB, BLOB2), (TEXT, TOOL)]):
        root = tmp_path / str(count)
        root.mkdir()
        check_with_git(root, path, before, after)


@settings(max_examples=30, deadline=None)
@given(few_lines, few_lines)
def test_git_applies_any_text(tmp_path_factory: pytest.TempPathFactory, before: bytes, after: bytes) -> None:
    check_with_git(tmp_path_factory.mktemp("git"), "/f", Side("100644", before), Side("100644", after))
