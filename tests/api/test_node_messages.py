"""The gRPC contract carries every value of ``core.node`` exactly, and refuses everything else."""

from __future__ import annotations

import runpy

import msgspec
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from flux.api.node.messages import MESSAGES, checked, decode, encode
from flux.api.node.service import CALLS, DESCRIPTOR
from flux.core import node
from flux.core.errors import Code, FluxError
from flux.core.route import Route
from flux.core.sandbox import Sandbox
from tests.style import house

texts = st.text(st.characters(exclude_categories=["Cs"]))
st.register_type_strategy(str, texts)
st.register_type_strategy(int, st.integers(0, 2**63 - 1))
st.register_type_strategy(float, st.floats(0, 1e12))
st.register_type_strategy(
    Sandbox,
    st.builds(
        Sandbox,
        environment=st.dictionaries(texts, texts, max_size=3),
        metadata=st.dictionaries(texts, texts, max_size=3),
    ),
)
values = st.one_of([st.from_type(shape) for shape in MESSAGES])


@settings(max_examples=300, deadline=None)
@given(values)
def test_what_is_sent_is_what_arrives(value: msgspec.Struct) -> None:
    raw = encode(value).SerializeToString()
    message = MESSAGES[type(value)]()
    message.ParseFromString(raw)
    assert decode(message, type(value)) == value


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(MESSAGES, key=lambda shape: shape.__name__)), st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(shape: type[msgspec.Struct], raw: bytes) -> None:
    message = MESSAGES[shape]()
    try:
        message.ParseFromString(raw)
        checked(decode(message, shape))
    except DecodeError:
        return
    except FluxError as error:
        assert error.code is Code.INVALID


@settings(max_examples=200, deadline=None)
@given(values, st.data())
def test_a_damaged_message_is_a_message_or_refused(value: msgspec.Struct, data: st.DataObject) -> None:
    raw = bytearray(encode(value).SerializeToString())
    if raw:
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    message = MESSAGES[type(value)]()
    try:
        message.ParseFromString(bytes(raw))
        checked(decode(message, type(value)))
    except DecodeError:
        return
    except FluxError as error:
        assert error.code is Code.INVALID


def test_the_table_has_every_call_of_the_contract_with_its_own_messages() -> None:
    assert set(CALLS) == set(DESCRIPTOR.methods_by_name)
    for name, call in CALLS.items():
        method = DESCRIPTOR.methods_by_name[name]
        for shape, found in ((call.request, method.input_type), (call.reply, method.output_type)):
            if shape in MESSAGES:
                assert MESSAGES[shape].DESCRIPTOR.full_name == found.full_name
            else:
                assert not found.fields, f"{name} would lose the fields of {found.full_name}"


def test_every_field_of_every_value_is_in_the_contract() -> None:
    for shape, message in MESSAGES.items():
        assert [field.name for field in message.DESCRIPTOR.fields] == list(shape.__struct_fields__)


@pytest.mark.parametrize(
    "request_",
    [
        node.Destroy(sandbox_id="UPPER", node_store_id="n1"),
        node.Destroy(sandbox_id="", node_store_id="n1"),
        node.Destroy(sandbox_id="s1", node_store_id=""),
        node.Stop(sandbox_id="s1", node_store_id="n1", execution=node.Execution(generation=0, pod_uid="p")),
        node.Stop(sandbox_id="s1", node_store_id="n1", execution=node.Execution(generation=1, pod_uid="")),
    ],
)
def test_an_id_that_is_none_is_refused(request_: msgspec.Struct) -> None:
    with pytest.raises(FluxError) as caught:
        checked(request_)
    assert caught.value.code is Code.INVALID


def test_a_text_that_is_no_text_is_refused_before_it_is_sent() -> None:
    with pytest.raises(FluxError) as caught:
        encode(node.Activated(route=Route(generation=1, attempt_id="\udcff", pod_uid="p"), credential="c"))
    assert caught.value.code is Code.INVALID


def test_the_generated_code_is_fresh() -> None:
    assert runpy.run_path(str(house.ROOT / "scripts/proto.py"))["stale"]() == []
