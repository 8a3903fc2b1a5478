"""What the writable layer of an overlay says about the tree, found by looking at the layer alone: O(changes).

The kernel leaves in the layer: copies of what was changed, whiteouts (character devices 0:0) for what is gone, and
extended attributes on directories. An *opaque* directory hides what lies below it; a *redirected* one shows what lies
below another path of the lower tree, because it was renamed. Both are written as ``trusted.overlay.…``, by unprivileged
mounts as ``user.overlay.…``.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

import msgspec

from flux.core import paths
from flux.core.manifest import Manifest, Token, parse

_FIELD = 11  # of a token: the extended attributes
TRUSTED = "trusted.overlay."
USER = "user.overlay."


class Layer(msgspec.Struct, kw_only=True):
    """A layer, read against the tree below it.

    ``touched``: every path that it may have changed. ``after``: what is there now of them. ``held``: the paths whose
    own entry is in the layer and is no directory. ``origins``: for a path that shows an entry of the lower tree from
    elsewhere, that entry's path. ``incomplete``: files whose content stayed below (``metacopy``).
    """

    touched: set[str]
    after: Manifest
    held: set[str]
    origins: dict[str, str]
    incomplete: set[str]


class Subtrees:
    """A manifest that can tell what lies below a path."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._sorted: list[str] | None = None

    def below(self, path: str) -> Iterator[str]:
        """Yield the paths below ``path``, parents before children."""
        if self._sorted is None:
            self._sorted = sorted(self.manifest)
        prefix = path if path == paths.ROOT else path + "/"
        index = bisect.bisect_right(self._sorted, prefix)
        while index < len(self._sorted) and self._sorted[index].startswith(prefix):
            yield self._sorted[index]
            index += 1

    def is_directory(self, path: str) -> bool:
        """Tell whether a directory stands at ``path``."""
        return self.manifest.get(path, "").startswith("d ")


def read_layer(entries: Manifest, lower: Subtrees, prefix: str) -> Layer:
    """Read a layer.

    Args:
        entries: a scan of the layer's own directory.
        lower: the tree that it lies on.
        prefix: ``TRUSTED`` or ``USER``, whichever the mount uses.
    """
    reader = _Reader(entries, lower, prefix)
    for path in sorted(entries):  # parents come before their children
        reader.read(path, entries[path])
    return reader.layer


def is_whiteout(token: Token) -> bool:
    """Tell whether an entry of a layer says that nothing is there."""
    return token.startswith("c ") and token.split(" ", 10)[9] == "0"


def overlay_attributes(token: Token, prefix: str) -> dict[str, bytes]:
    """Return what the overlay itself wrote on an entry: name without prefix → value."""
    if prefix not in token:
        return {}
    return {key[len(prefix) :]: value for key, value in parse(token).xattrs if key.startswith(prefix)}


def clean(token: Token, prefix: str) -> Token:
    """Return a token as the mounted overlay shows it: without what the overlay itself wrote."""
    if prefix not in token:
        return token
    fields = token.split(" ")
    kept = [pair for pair in fields[_FIELD].split(",") if not pair.startswith(prefix)]
    fields[_FIELD] = ",".join(kept) or "-"
    return " ".join(fields)


class _Reader:
    def __init__(self, entries: Manifest, lower: Subtrees, prefix: str) -> None:
        self._entries = entries
        self._lower = lower
        self._prefix = prefix
        self._shown: dict[str, str | None] = {}  # directory of the layer → lower directory that it shows
        self.layer = Layer(touched=set(), after={}, held=set(), origins={}, incomplete=set())

    def read(self, path: str, token: Token) -> None:
        self.layer.touched.add(path)
        if token.startswith("d "):
            self._read_directory(path, token)
            return
        if self._lower.is_directory(path):
            self.layer.touched.update(self._lower.below(path))
        if is_whiteout(token):
            return
        self.layer.after[path] = clean(token, self._prefix)
        self.layer.held.add(path)
        if "metacopy" in overlay_attributes(token, self._prefix):
            self.layer.incomplete.add(path)

    def _read_directory(self, path: str, token: Token) -> None:
        self.layer.after[path] = clean(token, self._prefix)
        shown = self._shown[path] = self._shows(path, token)
        if shown == path:
            return
        self.layer.touched.update(self._lower.below(path))
        if shown is not None:
            self._show(path, shown)

    def _shows(self, path: str, token: Token) -> str | None:
        if path == paths.ROOT:
            return path
        written = overlay_attributes(token, self._prefix)
        if written.get("opaque") == b"y":
            return None
        above = self._shown.get(paths.parent(path))
        redirect = paths.from_bytes(written["redirect"]) if "redirect" in written else paths.name(path)
        if redirect.startswith("/"):
            shown = redirect
        elif above is None:
            return None
        else:
            shown = paths.join(above, redirect)
        return shown if self._lower.is_directory(shown) else None

    def _show(self, path: str, shown: str) -> None:
        """Add what the layer does not replace of the lower directory ``shown``, as it appears below ``path``."""
        replaced: set[str] = set()
        skip = len(shown) if shown != paths.ROOT else 0
        for source in self._lower.below(shown):
            target = path + source[skip:]
            if target in self._entries or paths.parent(target) in replaced:
                replaced.add(target)
                continue
            self.layer.touched.add(target)
            self.layer.after[target] = self._lower.manifest[source]
            if not self._lower.manifest[source].startswith("d "):
                self.layer.origins[target] = source


def unsuitable(manifest: Manifest) -> str | None:
    """Return why a tree cannot be the lower layer of an overlay and look the same, or ``None``."""
    text = "\n".join(manifest.values())  # one pass for the usual case, in which there is nothing to find
    if "overlay." not in text and "\nc " not in text:
        return None
    for path, token in manifest.items():
        if USER in token or TRUSTED in token:
            return f"{paths.printable(path)} carries extended attributes of an overlay"
        if token.startswith("c ") and is_whiteout(token):
            return f"{paths.printable(path)} is a character device 0:0, which an overlay takes for a deletion"
    return None


def foreign(manifest: Manifest, uid: int, gid: int) -> str | None:
    """Return the first path that does not belong to ``uid`` and ``gid``, or ``None``."""
    own = (str(uid), str(gid))
    for path, token in manifest.items():
        fields = token.split(" ", 4)
        if (fields[2], fields[3]) != own:
            return path
    return None
