"""What a decision is bound to (spec: speculation): the sandbox, its tree, the scope, the base, the changes, the bytes.

Staged bytes are bound through the digests in the changes' entries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from flux.core.changeset import Change, ConflictScope, Unstaged

_DOMAIN = b"flux changeset 1"


def changeset_digest(
    *,
    sandbox_id: str,
    root: tuple[int, int],
    paths: Sequence[str],
    scope: ConflictScope,
    base: bytes,
    changes: Iterable[Change],
    unstaged: Sequence[Unstaged],
) -> str:
    """Return ``sha256:…`` of everything that an approval approves.

    Args:
        sandbox_id: whose changeset it is.
        root: device and inode of the workspace's directory.
        paths: what the changeset covers.
        scope: what the drift check will look at.
        base: the encoded manifest, as it is stored.
        changes: the changes that are to be applied, sorted by path.
        unstaged: what they lack.
    """
    encoder = msgspec.json.Encoder(order="deterministic")
    whole = hashlib.sha256(_DOMAIN)
    for part in (
        sandbox_id.encode(),
        encoder.encode(root),
        encoder.encode(list(paths)),
        scope.encode(),
        hashlib.sha256(base).digest(),
        encoder.encode(list(changes)),
        encoder.encode(list(unstaged)),
    ):
        whole.update(len(part).to_bytes(8, "big"))
        whole.update(part)
    return f"sha256:{whole.hexdigest()}"
