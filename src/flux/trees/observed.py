"""What a run left behind, in the form that every copy engine gives it to the capture."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from flux.core.diff import Links, inode, links
from flux.core.manifest import Manifest

#: Where a file's content is: in the throwaway tree under the same path, which may be taken apart (``held``); in the
#: run's view of the workspace only (``seen``); or, unchanged, in the base (then ``Observed.origins`` says where).
Source: TypeAlias = Literal["held", "seen", "base"]


class Observed(msgspec.Struct, kw_only=True):
    """The touched entries on both sides.

    Args:
        before: the base, or at least the touched paths that were there.
        after: the touched paths that are there now, without digests.
        touched: every path that may have changed.
        before_links: the hard-link groups of the base.
        after_links: those of the touched paths now.
        origins: files whose content is, as it was, the content of a base path.
        seen: files whose content only the run's own view of the workspace has.
    """

    before: Manifest
    after: Manifest
    touched: set[str]
    before_links: Links
    after_links: Links
    origins: dict[str, str]
    seen: set[str]

    def source(self, path: str) -> Source:
        """Return where the content of a file that is there now is found."""
        if path in self.origins:
            return "base"
        return "seen" if path in self.seen else "held"


def links_by_inode(manifest: Manifest, linked: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return the hard-link groups among ``linked`` paths of a tree that lies on one file system."""
    return links((path, inode(manifest[path])) for path in linked if path in manifest)
