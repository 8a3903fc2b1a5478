"""What a sandbox's record accepts."""

from __future__ import annotations

import pytest

from flux.core import paths
from flux.core.errors import Code, FluxError
from flux.core.sandbox import checked_environment, checked_name, checked_text
from tests.store import samples


@pytest.mark.parametrize("name", [None, "a", "my-box_1.2", "A" * 63])
def test_good_names(name: str | None) -> None:
    assert checked_name(name) == name


@pytest.mark.parametrize("name", ["", "-a", ".a", "a b", "a/b", "a\n", "\u00e4", "A" * 64])
def test_bad_names(name: str) -> None:
    with pytest.raises(FluxError) as caught:
        checked_name(name)
    assert caught.value.code is Code.INVALID


@pytest.mark.parametrize("environment", [{"A B": ""}, {"": "x"}, {"1A": "x"}, {"A=B": "x"}, {"A": "x\0y"}])
def test_bad_variables(environment: dict[str, str]) -> None:
    with pytest.raises(FluxError) as caught:
        checked_environment(environment)
    assert caught.value.code is Code.INVALID


def test_variables_of_any_other_value_pass_and_records_hold_utf8_only() -> None:
    odd = {"A": "\udcff", "_b1": ""}
    assert checked_environment(odd) == odd
    with pytest.raises(FluxError):
        checked_text(odd, "environment")
    assert checked_text({"k": "v"}, "metadata") == {"k": "v"}


def test_a_directory_of_any_bytes_is_kept_exactly() -> None:
    for path in ("/w", "/w\udcff", "/base64:x"):
        assert samples.sandbox(workspace=paths.portable(path)).directory == path


@pytest.mark.parametrize("text", ["", "/a", "base64:", "base64:YQ==", "\udcff\udcfe", "/a\udc80b", "\u00e4\n"])
def test_portable_text_comes_back_and_is_json(text: str) -> None:
    assert paths.is_utf8(paths.portable(text))
    assert paths.from_portable(paths.portable(text)) == text
