"""What every object store must do; one suite for the directory, S3 and the fake (``ports.artifacts.ObjectStore``)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from flux.core.errors import Code, FluxError
from flux.ports.artifacts import ObjectStore

_KEY = "packs/" + "ab" * 32 + "-0123"


def refusal(action: Callable[[], object]) -> Code:
    """Return the code of the error that a call ends with."""
    with pytest.raises(FluxError) as raised:
        action()
    return raised.value.code


class ObjectStoreContract:
    """Subclass it beside a fixture ``store``, which gives each test an empty one."""

    def test_what_was_put_is_got(self, store: ObjectStore) -> None:
        data = bytes(range(256)) * 300
        assert store.put_new(_KEY, data) is True
        assert store.get(_KEY) == data
        assert store.head(_KEY) == len(data)

    def test_an_empty_object_is_an_object(self, store: ObjectStore) -> None:
        assert store.put_new("intents/a/b", b"") is True
        assert (store.get("intents/a/b"), store.head("intents/a/b")) == (b"", 0)

    def test_a_taken_key_stays_what_it_is(self, store: ObjectStore) -> None:
        assert store.put_new(_KEY, b"first") is True
        assert store.put_new(_KEY, b"second") is False
        assert store.put_new(_KEY, b"first") is False
        assert store.get(_KEY) == b"first"

    def test_of_many_who_put_at_once_one_creates(self, store: ObjectStore) -> None:
        barrier = threading.Barrier(8)

        def put(number: int) -> bool:
            barrier.wait()
            return store.put_new("artifacts/a.json", b"%d" % number)

        with ThreadPoolExecutor(8) as pool:
            created = list(pool.map(put, range(8)))
        assert created.count(True) == 1
        assert store.get("artifacts/a.json") == b"%d" % created.index(True)

    def test_a_part_is_got(self, store: ObjectStore) -> None:
        store.put_new(_KEY, b"0123456789")
        assert store.get_range(_KEY, 0, 3) == b"012"
        assert store.get_range(_KEY, 4, 5) == b"45678"
        assert store.get_range(_KEY, 8, 10) == b"89", "what there is of it"
        assert store.get_range(_KEY, 10, 4) == b""
        assert store.get_range(_KEY, 3, 0) == b""

    def test_what_is_not_there_is_not_found(self, store: ObjectStore) -> None:
        assert store.head(_KEY) is None
        assert refusal(lambda: store.get(_KEY)) is Code.NOT_FOUND
        assert refusal(lambda: store.get_range(_KEY, 0, 1)) is Code.NOT_FOUND

    def test_a_listing_is_complete_and_sorted(self, store: ObjectStore) -> None:
        assert store.list("layers/") == []
        keys = [f"layers/b/{number:03}.json" for number in range(3)] + ["layers/bc/0.json", "artifacts/b.json"]
        for key in reversed(keys):
            store.put_new(key, key.encode())
        assert [(key, size) for key, size, _ in store.list("layers/b/")] == [(key, len(key)) for key in keys[:3]]
        assert [key for key, _, _ in store.list("layers/")] == keys[:4]
        assert [key for key, _, _ in store.list("")] == sorted(keys)
        assert store.list("packs/") == []

    def test_a_name_may_be_another_ones_beginning(self, store: ObjectStore) -> None:
        store.put_new("tombstones/packs/a", b"1")
        store.put_new("tombstones/packs/ab", b"2")
        assert [key for key, _, _ in store.list("tombstones/packs/")] == ["tombstones/packs/a", "tombstones/packs/ab"]
        assert store.list("tombstones/packs/a/") == []

    def test_what_is_deleted_is_gone_and_its_key_is_free(self, store: ObjectStore) -> None:
        store.put_new("intents/a/b/c", b"1")
        store.put_new("intents/a/d", b"2")
        store.delete("intents/a/b/c")
        store.delete("intents/a/b/c")
        store.delete("intents/never/was")
        assert store.head("intents/a/b/c") is None
        assert [key for key, _, _ in store.list("intents/")] == ["intents/a/d"]
        assert store.put_new("intents/a/b/c", b"3") is True
        assert store.get("intents/a/b/c") == b"3"

    @pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/../b", ".a", "a/.b", "ä", "a b"])
    def test_what_is_no_key_is_refused(self, store: ObjectStore, key: str) -> None:
        assert refusal(lambda: store.put_new(key, b"")) is Code.INVALID
        assert refusal(lambda: store.get(key)) is Code.INVALID
        assert refusal(lambda: store.head(key)) is Code.INVALID
        assert refusal(lambda: store.delete(key)) is Code.INVALID
        assert store.list("") == []
