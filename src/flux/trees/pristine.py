"""Whether an installed entry is still what the apply installed, or somebody has worked on it since."""

from __future__ import annotations

from collections.abc import Sequence

from flux.core import manifest, paths
from flux.core.manifest import LETTERS, EntryType, Token
from flux.trees.journal import Fresh
from flux.trees.scan import entry, scan, with_content


def is_pristine(root: int, path: str, fresh: Sequence[Fresh]) -> bool:
    """Tell whether the entry at ``path``, and all below it, has the content that the journal says was installed.

    An entry that is missing does not matter, nor one that may not be read: there is nothing of anybody's to lose.
    """
    expected = {paths.from_bytes(item.path): item for item in fresh}
    top = entry(root, path)
    if top is None:
        return True
    present = scan(root, [path]).manifest if top.startswith("d ") else {path: top}
    return all(_as_installed(root, at, token, expected.get(at)) for at, token in present.items())


def _as_installed(root: int, path: str, token: Token, item: Fresh | None) -> bool:
    if item is None:
        return False
    found = manifest.parse(token)
    if LETTERS[found.type] != item.letter:
        return False
    if found.type is EntryType.SYMLINK:
        return paths.to_bytes(found.target or "") == item.content
    if found.type is not EntryType.FILE:
        return True
    if found.size != item.size:
        return False
    digest = manifest.parse(with_content(root, path, token)).digest
    return digest is None or not item.content or digest.encode() == item.content
