"""The state table of changesets, pair by pair (spec: speculation)."""

import itertools

import msgspec
import pytest

from flux.core.changeset import FINAL, LIFE, Change, Changes, Entry, Event, State
from flux.core.errors import Code, FluxError
from flux.core.manifest import EntryType, Fingerprint

ALLOWED = {
    ("pending", "approve"): "approved",
    ("pending", "reject"): "rejected",
    ("pending", "expire"): "expired",
    ("approved", "apply"): "applied",
    ("approved", "reject"): "rejected",
    ("approved", "expire"): "expired",
    ("approved", "fail"): "failed",
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_pair(state: State, event: Event) -> None:
    expected = ALLOWED.get((state.value, event.value))
    if expected is not None:
        assert LIFE.next(state, event).value == expected
        return
    with pytest.raises(FluxError) as caught:
        LIFE.next(state, event)
    assert caught.value.code is Code.ILLEGAL_STATE
    assert state.value in caught.value.message
    assert event.value in caught.value.message


def test_a_refusal_names_the_step_that_is_missing() -> None:
    with pytest.raises(FluxError) as caught:
        LIFE.next(State.PENDING, Event.APPLY)
    assert caught.value.message == "cannot apply a changeset that is pending: approve it first"


@pytest.mark.parametrize("state", sorted(FINAL))
def test_final_states_lead_nowhere(state: State) -> None:
    assert not any(LIFE.allows(state, event) for event in Event)


def _entry(kind: EntryType) -> Entry:
    return Entry(type=kind, mode="0644", uid=0, gid=0, size=0, mtime_ns=0)


def test_changes_are_sorted_into_their_lists() -> None:
    file, directory = _entry(EntryType.FILE), _entry(EntryType.DIRECTORY)
    changes = Changes.of(
        [
            Change(path="/z", after=file),
            Change(path="/a", after=file),
            Change(path="/m", before=file, after=file),
            Change(path="/d", before=file),
            Change(path="/t", before=file, after=directory),
        ],
        unchanged=4,
    )
    assert [change.path for change in changes.added] == ["/a", "/z"]
    assert [change.path for change in changes.modified] == ["/m"]
    assert [change.path for change in changes.deleted] == ["/d"]
    assert [change.path for change in changes.type_changed] == ["/t"]
    assert [change.path for change in changes.every()] == ["/a", "/d", "/m", "/t", "/z"]


def test_an_entry_shows_everything_that_a_fingerprint_knows() -> None:
    seen = Fingerprint(
        type=EntryType.SYMLINK, mode=0o644, uid=1, gid=2, size=3, mtime_ns=4, ctime_ns=5, inode=6, links=1, rdev=7,
        target="to\udcff", xattrs=(("user.\udcff", b"\xff"),), digest="sha256:d",
    )  # fmt: skip
    shown = Entry.of(seen, link_group=8)
    assert shown == Entry(
        type=EntryType.SYMLINK, mode="0644", uid=1, gid=2, size=3, mtime_ns=4, digest="sha256:d", target="to\\xff",
        target_base64="dG//", link_group=8, xattrs={"user.\\xff": "/w=="}, rdev=7,
    )  # fmt: skip
    assert (shown.mode_bits, shown.link_target) == (0o644, "to\udcff")
    assert Entry.of(msgspec.structs.replace(seen, target=None)).target is None


def test_changes_keep_how_much_did_not_change() -> None:
    assert Changes.of([], unchanged=7).unchanged == 7
