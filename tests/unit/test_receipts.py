"""Receipts have one reader each, and what it cannot read gives no authority (spec: generations, §4)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flux.core import receipts
from flux.core.lifecycle import DORMANT, NodeState
from flux.core.receipts import DeleteReceipt, ReceiptKind, RollbackReceipt, TransitionReceipt
from flux.core.route import GENERATION_MAX

S = NodeState
GOOD = RollbackReceipt(
    generation=2, attempt_id="a2", pod_uid="p2", restored_state=S.SUSPENDED, artifact_id="x", reason="no space", at=1.5
)
OTHER = TransitionReceipt(generation=2, attempt_id="a2", pod_uid="p2", artifact_id=None, at=1.5)


def stored(**changed: Any) -> str:
    payload = msgspec.to_builtins(GOOD) | changed
    return json.dumps({"kind": "rolled_back", "payload": payload})


def test_a_rollback_receipt_is_read_as_it_was_written() -> None:
    assert receipts.read_rollback(receipts.write(ReceiptKind.ROLLED_BACK, GOOD)) == GOOD
    assert receipts.read_rollback(stored()) == GOOD


@pytest.mark.parametrize("kind", [kind for kind in ReceiptKind if kind is not ReceiptKind.ROLLED_BACK])
@pytest.mark.parametrize("payload", [GOOD, OTHER], ids=["rollback", "transition"])
def test_another_kind_is_no_rollback(kind: ReceiptKind, payload: RollbackReceipt | TransitionReceipt) -> None:
    assert receipts.read_rollback(receipts.write(kind, payload)) is None


@pytest.mark.parametrize(
    ("state", "artifact_id", "possible"),
    [
        ("suspended", "x", True),
        ("suspended", None, False),
        ("created", None, True),
        ("created", "x", False),
        ("stopped", None, True),
        ("stopped", "x", True),
        *[(state.value, artifact, False) for state in sorted(set(S) - DORMANT) for artifact in ("x", None)],
    ],
)
def test_a_receipt_is_decoded_against_the_state_that_it_names(
    state: str, artifact_id: str | None, possible: bool
) -> None:
    found = receipts.read_rollback(stored(restored_state=state, artifact_id=artifact_id))
    assert (found is not None) is possible
    assert found is None or (found.restored_state.value, found.artifact_id) == (state, artifact_id)


@pytest.mark.parametrize(
    ("generation", "possible"),
    [(0, False), (1, True), (GENERATION_MAX, True), (GENERATION_MAX + 1, False), (-1, False)],
)
def test_a_generation_is_in_its_range(generation: int, possible: bool) -> None:
    assert (receipts.read_rollback(stored(generation=generation)) is not None) is possible
    text = json.dumps({"sandbox_id": "s1", "covers_generation": generation, "reason": "evicted", "at": 1.0})
    assert (receipts.read_delete(text, "s1") is not None) is possible


BROKEN = [
    None, "", "{", "null", "[]", "1", "{}", '{"kind":"rolled_back"}', '{"kind":"rolled_back","payload":{}}',
    '{"kind":"rolled_back","payload":null}', '{"kind":"other","payload":{}}', "\udcff", stored(extra=1),
    stored(at="soon"), stored(restored_state="asleep"), stored(attempt_id=None),
    json.dumps({**json.loads(stored()), "more": 1}),
]  # fmt: skip


@pytest.mark.parametrize("text", BROKEN, ids=repr)
def test_what_cannot_be_read_gives_no_authority(text: str | None) -> None:
    assert receipts.read_rollback(text) is None
    assert receipts.read_delete(text, "s1") is None


@given(st.text())
def test_no_text_breaks_the_readers(text: str) -> None:
    assert receipts.read_rollback(text) is None
    assert receipts.read_delete(text, "s1") is None


def test_a_delete_receipt_is_for_its_own_sandbox() -> None:
    receipt = DeleteReceipt(sandbox_id="s1", covers_generation=3, reason="destroyed", at=2.0)
    text = receipts.write_delete(receipt)
    assert receipts.read_delete(text, "s1") == receipt
    assert receipts.read_delete(text, "s2") is None


@pytest.mark.parametrize("state", list(S))
def test_a_receipt_is_current_while_the_row_is_what_it_restored(state: NodeState) -> None:
    assert receipts.is_current(GOOD, state) is (state is S.SUSPENDED)


def test_the_stored_forms_are_stable() -> None:
    """Rows written by one version are read by the next."""
    assert receipts.write(ReceiptKind.ROLLED_BACK, GOOD) == (
        '{"kind":"rolled_back","payload":{"generation":2,"attempt_id":"a2","pod_uid":"p2",'
        '"restored_state":"suspended","artifact_id":"x","reason":"no space","at":1.5}}'
    )
    assert receipts.write_delete(DeleteReceipt(sandbox_id="s1", covers_generation=3, reason="stale", at=2.0)) == (
        '{"sandbox_id":"s1","covers_generation":3,"reason":"stale","at":2.0}'
    )
