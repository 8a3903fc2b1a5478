"""The object store's contract on the fake, and what only the fake can do."""

from __future__ import annotations

import pytest

from flux.core.errors import Code, FluxError
from flux.testing.contracts.objects import ObjectStoreContract, refusal
from flux.testing.objects import FakeObjectStore, down, refusing


@pytest.fixture
def store() -> FakeObjectStore:
    return FakeObjectStore()


class TestFake(ObjectStoreContract):
    """In memory."""


def test_a_failing_store_does_nothing(store: FakeObjectStore) -> None:
    with store.failing(refusing, "put_new", "packs/"):
        assert refusal(lambda: store.put_new("packs/a", b"1")) is Code.EXHAUSTED
        assert store.put_new("layers/a", b"1") is True
    with store.failing(down):
        assert refusal(lambda: store.list("")) is Code.UNAVAILABLE
    assert sorted(store.objects) == ["layers/a"]


def test_a_lost_reply_hides_what_was_done(store: FakeObjectStore) -> None:
    store.lose_reply("packs/")
    with pytest.raises(FluxError, match="no answer in time"):
        store.put_new("packs/a", b"1")
    assert store.put_new("packs/a", b"1") is False


def test_damage_is_one_bit(store: FakeObjectStore) -> None:
    store.put_new("packs/a", b"\x00\x00\x00")
    store.damage("packs/a")
    assert store.get("packs/a") == b"\x00\x01\x00"
