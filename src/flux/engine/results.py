"""What the engine's methods return. Everything is a value; descriptors are said to be the caller's to close."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

import msgspec

from flux.core.access import Key
from flux.core.changeset import ChangeKind, Changes, Changeset, Discarded, Entry, Noted, Output, SideEffects, Unstaged

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A part of a list; ``next_cursor`` asks for the part after it and is ``None`` at the end."""

    items: list[T]
    next_cursor: str | None = None


class ExecResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended, with its output. Exactly one of ``exit_code`` and ``signal`` is set."""

    exit_code: int | None
    signal: int | None
    timed_out: bool
    stdout: Output
    stderr: Output
    duration_ms: int


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a streamed command ended. Exactly one of ``exit_code`` and ``signal`` is set."""

    exit_code: int | None
    signal: int | None
    timed_out: bool
    duration_ms: int


class TerminalSize(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a terminal in characters."""

    rows: int
    columns: int


class OpenFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to read: an open descriptor (the caller closes it), its size in bytes and permission bits."""

    descriptor: int
    size: int
    mode: int = 0o644


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was written: where, and how many bytes."""

    path: str
    size: int


class DirectoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a directory, named in the lossless text form of ``core.paths``."""

    name: str
    entry: Entry


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """A remembered manifest: when (wall-clock seconds) and how many entries and bytes."""

    sandbox_id: str
    created_at: float
    entries: int
    size: int
    not_captured: list[Noted]


class DryRunResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a command did in a throwaway copy of which nothing was kept."""

    sandbox_id: str
    command: str
    copy_engine: str
    copy_engine_reason: str
    exit_code: int | None
    signal: int | None
    timed_out: bool
    duration_ms: int
    stdout: Output
    stderr: Output
    counts: dict[str, int]
    changes: Changes
    unstaged: list[Unstaged]
    skipped: list[Noted]
    not_captured: list[Noted]
    discarded: list[Discarded]
    side_effects: SideEffects
    base_changed_during_run: bool
    base_changes: list[str]


class ChangesetDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A changeset's record with its changes; after a partial approval only the approved ones."""

    changeset: Changeset
    changes: Changes


class FileDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The difference of one changed entry.

    ``text`` is a unified diff for text files, ``None`` where there is none to show; ``note`` then says why ("binary",
    "not a regular file", "no pre-image").
    """

    path: str
    path_base64: str | None
    kind: ChangeKind
    before: Entry | None
    after: Entry | None
    text: str | None
    note: str | None


class ComparedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What each of the compared changesets (by id) makes of one path; one that leaves it alone is absent."""

    path: str
    path_base64: str | None
    kinds: dict[str, ChangeKind]
    after: dict[str, Entry | None]
    same: bool


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Changesets of one sandbox side by side; ``entries`` sorted by path."""

    changesets: list[Changeset]
    entries: list[ComparedEntry]


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key just made, with its ``secret``, which is shown nowhere else and never again."""

    key: Key
    secret: str


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """What opening the state directory had to put right."""

    rolled_back: list[str] = []
    completed: list[str] = []
    discarded: list[str] = []
    deleted_sandboxes: list[str] = []
    problems: list[str] = []


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """That the engine answers, and how much it holds."""

    status: Literal["ok"]
    sandboxes: int
    running: int
