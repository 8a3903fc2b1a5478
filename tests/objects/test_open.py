"""Which object store a URL names."""

from __future__ import annotations

from pathlib import Path

import pytest

from flux.core.errors import Code, FluxError
from flux.objects.directory import DirectoryStore
from flux.objects.open import open_store
from flux.objects.s3 import S3Store
from flux.trees.files import SystemFiles


@pytest.mark.parametrize("url", [None, "none"])
def test_none_is_none(url: str | None) -> None:
    assert open_store(url, SystemFiles()) is None


def test_a_directory(tmp_path: Path) -> None:
    place = tmp_path / "with space"
    store = open_store(f"file://{tmp_path}/with%20space", SystemFiles())
    assert isinstance(store, DirectoryStore)
    assert store.put_new("packs/a", b"1")
    assert (place / "packs/a").read_bytes() == b"1"


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/a/b?endpoint=http://127.0.0.1:1&region=eu-west-1"])
def test_s3(url: str) -> None:
    assert isinstance(open_store(url, SystemFiles()), S3Store)


@pytest.mark.parametrize(
    "url",
    ["", "file://", "file:///", "file://host/dir", "s3://", "s3:///prefix", "s3://b?token=x", "http://h/", "/dir"],
)
def test_anything_else_is_refused(url: str) -> None:
    with pytest.raises(FluxError, match="cannot use the object store") as raised:
        open_store(url, SystemFiles())
    assert raised.value.code is Code.INVALID
