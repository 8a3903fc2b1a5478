"""Workspace paths: no byte is lost, nothing unsafe is shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flux.core import paths
from flux.core.errors import Code, FluxError

names = st.binary(min_size=1, max_size=40).filter(lambda raw: b"/" not in raw and b"\0" not in raw)


@given(names)
def test_every_file_name_survives_json(raw: bytes) -> None:
    name = paths.from_bytes(raw)
    text, encoded = paths.to_json(name)
    text.encode("utf-8")
    assert paths.to_bytes(paths.from_json(text, encoded)) == raw
    assert (encoded is None) == paths.is_utf8(name)


@given(names)
def test_nothing_printable_moves_the_cursor(raw: bytes) -> None:
    shown = paths.printable(paths.from_bytes(raw))
    shown.encode("utf-8")
    assert all(char.isprintable() or char == " " for char in shown)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("plain name", "plain name"),
        ("é", "é"),
        ("a\nb", "a\\x0ab"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\u202egpj.exe", "\\u202egpj.exe"),
        ("back\\slash", "back\\\\slash"),
        (paths.from_bytes(b"\xff\xfe"), "\\xff\\xfe"),
        ("\u2028", "\\u2028"),
        ("\U000e0001", "\\U000e0001"),
    ],
)
def test_printable_escapes(name: str, shown: str) -> None:
    assert paths.printable(name) == shown


@pytest.mark.parametrize(("given_path", "normal"), [("/", "/"), ("//a///b/", "/a/b"), ("/a b/*", "/a b/*")])
def test_normalise(given_path: str, normal: str) -> None:
    assert paths.normalise(given_path) == normal


@pytest.mark.parametrize("bad", ["a", "", "./a", "/a/../b", "/a/./b", "/a\0b", "/" + "x" * 4096])
def test_normalise_refuses(bad: str) -> None:
    with pytest.raises(FluxError) as caught:
        paths.normalise(bad)
    assert caught.value.code is Code.INVALID


def test_relations() -> None:
    assert paths.parent("/a/b") == "/a"
    assert paths.parent("/a") == "/" == paths.parent("/")
    assert (paths.name("/a/b"), paths.name("/")) == ("b", "")
    assert (paths.join("/", "a"), paths.join("/a", "b")) == ("/a", "/a/b")
    assert paths.ancestors("/a/b/c") == ["/a/b", "/a", "/"]
    assert paths.is_within("/a/b", "/a")
    assert paths.is_within("/a", "/a")
    assert not paths.is_within("/ab", "/a")
    assert (paths.relative("/"), paths.relative("/a/b")) == (".", "a/b")
