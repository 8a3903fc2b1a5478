"""A changeset's digest changes with each of the things that it covers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from flux.core.changeset import Change, Entry, Staged, Unstaged
from flux.core.digest import changeset_digest
from flux.core.manifest import EntryType

ENTRY = Entry(type=EntryType.FILE, mode="0644", uid=0, gid=0, size=2, mtime_ns=5, digest="sha256:aa")
CHANGE = Change(path="/a", after=ENTRY, staged=Staged(blob="000000"))
WHOLE: dict[str, Any] = {
    "sandbox_id": "sb1",
    "root": (1, 2),
    "paths": ["/"],
    "scope": "all",
    "base": b"{}",
    "changes": [CHANGE],
    "unstaged": [],
}


def test_it_is_the_same_for_the_same() -> None:
    assert changeset_digest(**WHOLE) == changeset_digest(**WHOLE)
    assert changeset_digest(**WHOLE).startswith("sha256:")


@pytest.mark.parametrize(
    "differently",
    [
        {"sandbox_id": "sb2"},
        {"root": (1, 3)},
        {"root": (2, 2)},
        {"paths": ["/a"]},
        {"paths": []},
        {"scope": "touched"},
        {"base": b"{ }"},
        {"changes": []},
        {"changes": [CHANGE, CHANGE]},
        {"changes": [msgspec.structs.replace(CHANGE, path="/b")]},
        {"changes": [msgspec.structs.replace(CHANGE, before=ENTRY)]},
        {"changes": [msgspec.structs.replace(CHANGE, staged=Staged(blob="000001"))]},
        {"changes": [msgspec.structs.replace(CHANGE, staged=None)]},
        {"changes": [msgspec.structs.replace(CHANGE, after=msgspec.structs.replace(ENTRY, digest="sha256:ab"))]},
        {"changes": [msgspec.structs.replace(CHANGE, after=msgspec.structs.replace(ENTRY, mode="4644"))]},
        {"changes": [msgspec.structs.replace(CHANGE, after=msgspec.structs.replace(ENTRY, mtime_ns=6))]},
        {"unstaged": [Unstaged(path="/a", reason="too large")]},
    ],
    ids=str,
)
def test_it_is_another_for_anything_else(differently: dict[str, Any]) -> None:
    assert changeset_digest(**{**WHOLE, **differently}) != changeset_digest(**WHOLE)


def test_parts_cannot_be_moved_from_one_to_the_next() -> None:
    one = changeset_digest(**{**WHOLE, "sandbox_id": "sb1", "paths": ["/a", "/b"]})
    other = changeset_digest(**{**WHOLE, "sandbox_id": "sb1", "paths": ["/a,/b"]})
    assert one != other
