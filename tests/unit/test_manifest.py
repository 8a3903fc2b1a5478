"""Fingerprints and manifests: what is written is what is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flux.core import manifest, paths
from flux.core.errors import Code, FluxError
from flux.core.manifest import EntryType, Fingerprint

raw_names = st.binary(min_size=1, max_size=30).filter(lambda raw: b"\0" not in raw)
counts = st.integers(min_value=0, max_value=2**63 - 1)
xattrs = st.dictionaries(raw_names.map(paths.from_bytes), st.binary(max_size=30), max_size=3)
fingerprints = st.builds(
    Fingerprint,
    type=st.sampled_from(EntryType),
    mode=st.integers(min_value=0, max_value=0o7777),
    uid=counts,
    gid=counts,
    size=counts,
    mtime_ns=st.integers(min_value=-(2**62), max_value=2**62),
    ctime_ns=counts,
    inode=counts,
    links=counts,
    rdev=counts,
    target=st.none() | raw_names.map(paths.from_bytes),
    xattrs=xattrs.map(lambda pairs: tuple(sorted(pairs.items()))),
    digest=st.none() | st.just("sha256:" + "0" * 64),
)


@given(fingerprints)
def test_a_token_is_read_back_exactly(fingerprint: Fingerprint) -> None:
    token = fingerprint.token()
    assert token.count(" ") == 12
    assert manifest.parse(token) == fingerprint


@given(st.dictionaries(raw_names.map(lambda raw: "/" + paths.from_bytes(raw)), fingerprints.map(Fingerprint.token)))
def test_a_manifest_is_read_back_exactly(tree: dict[str, str]) -> None:
    assert manifest.decode(manifest.encode(tree)) == tree


def test_the_documented_token() -> None:
    fingerprint = Fingerprint(
        type=EntryType.SYMLINK, mode=0o777, uid=1, gid=2, size=0, mtime_ns=3, ctime_ns=4, inode=5, links=1,
        target="-", xattrs=(("user.a b", b"=,"),),
    )  # fmt: skip
    assert fingerprint.token() == "l 777 1 2 0 3 4 5 1 0 %2D user.a%20b=%3D%2C -"


def test_with_digest_replaces_only_the_digest() -> None:
    token = "f 644 0 0 1 2 3 4 1 0 - - -"
    assert manifest.with_digest(token, "sha256:aa") == "f 644 0 0 1 2 3 4 1 0 - - sha256:aa"


@pytest.mark.parametrize("damaged", ["", "f 644", "x 644 0 0 1 2 3 4 1 0 - - -", "f 9 0 0 1 2 3 4 1 0 - - -"])
def test_a_damaged_token_is_refused(damaged: str) -> None:
    with pytest.raises(FluxError) as caught:
        manifest.parse(damaged)
    assert caught.value.code is Code.INTERNAL


@pytest.mark.parametrize("damaged", [b"", b"[]", b'{"/a": 1}', b'{"/a": "x"'])
def test_a_damaged_manifest_is_refused(damaged: bytes) -> None:
    with pytest.raises(FluxError) as caught:
        manifest.decode(damaged)
    assert caught.value.code is Code.INTERNAL
