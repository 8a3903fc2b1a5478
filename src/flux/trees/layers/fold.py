"""Two layers, one on the other, as the one layer that shows the same over whatever lies below. Pure.

An overlay's layer hides by whiteouts and opaque directories, and shows a renamed directory's old contents by a redirect
to their old path. To fold two layers is to follow what the kernel would do with both: each directory of the upper one
shows a path of the lower one, which shows a path of what is below, or of nothing.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec

from flux.core import paths
from flux.core.artifact import Layer
from flux.core.manifest import Token, parse
from flux.trees.upper import is_whiteout, overlay_attributes

_SIZE, _INODE, _LINKS = 4, 7, 8
_OPAQUE, _REDIRECT = "opaque", "redirect"


class Unfoldable(Exception):
    """A layer holds what only the kernel understands; the text says where."""


def fold(upper: Layer, lower: Layer, prefix: str) -> Layer:
    """Return the layer that shows what ``upper`` on ``lower`` shows.

    Args:
        upper: the nearer layer.
        lower: the one below it.
        prefix: of what the overlay writes on entries.

    Raises:
        Unfoldable: if one of them cannot be folded.
    """
    work = _Fold(_Side(upper, prefix), _Side(lower, prefix), prefix)
    work.run()
    return work.layer()


class _Side:
    """One of the two layers, with what each of its directories shows of what is below it."""

    def __init__(self, layer: Layer, prefix: str) -> None:
        self.entries = {paths.from_portable(path): token for path, token in layer.entries.items()}
        self.children: defaultdict[str, list[str]] = defaultdict(list)
        for path in self.entries:
            if path != paths.ROOT:
                self.children[paths.parent(path)].append(paths.name(path))
        self._prefix = prefix
        self._shown: dict[str, tuple[bool, str | None]] = {paths.ROOT: (True, paths.ROOT)}
        self._contents = {paths.from_portable(path): blocks for path, blocks in layer.contents.items()}
        self._linked = {self._group(path): path for path in self._contents if self._group(path) != "0"}

    def _group(self, path: str) -> str:
        return self.entries[path].split(" ", _LINKS)[_INODE]

    def content(self, path: str) -> list[str] | None:
        """Return the blocks of the file at ``path``, whichever of its names lists them."""
        return self._contents.get(self._linked.get(self._group(path), path))

    def shows(self, path: str) -> tuple[bool, str | None]:
        """Tell whether there is a directory at ``path`` in this layer, and which path below it shows, if any."""
        pending = [path]
        while pending:
            at = pending[-1]
            if at in self._shown:
                pending.pop()
            elif paths.parent(at) not in self._shown:
                pending.append(paths.parent(at))
            else:
                self._shown[at] = self._look(at, self._shown[paths.parent(at)][1])
                pending.pop()
        return self._shown[path]

    def _look(self, path: str, above: str | None) -> tuple[bool, str | None]:
        token = self.entries.get(path)
        natural = None if above is None else paths.join(above, paths.name(path))
        if token is None:
            return False, natural
        if not token.startswith("d "):
            return False, None
        written = overlay_attributes(token, self._prefix)
        if written.keys() - {_OPAQUE, _REDIRECT} or written.get(_OPAQUE, b"y") != b"y":
            raise Unfoldable(paths.printable(path))
        if _OPAQUE in written:
            return True, None
        if _REDIRECT not in written:
            return True, natural
        redirect = paths.from_bytes(written[_REDIRECT])
        if redirect.startswith("/"):
            return True, redirect
        return True, None if above is None else paths.join(above, redirect)


class _Part(msgspec.Struct, frozen=True):
    """A directory of the result still to be filled: which directories of the two it shows, and what of below."""

    path: str
    upper: str | None
    lower: str | None
    below: str | None


class _Fold:
    def __init__(self, upper: _Side, lower: _Side, prefix: str) -> None:
        self._upper = upper
        self._lower = lower
        self._prefix = prefix
        self._found: dict[str, tuple[_Side, str, Token]] = {}
        self._pending: list[_Part] = []

    def run(self) -> None:
        """Find every entry of the result: from which layer, from which path, and what it says."""
        root = paths.ROOT
        self._found[root] = (self._upper, root, self._upper.entries[root])
        self._pending.append(_Part(root, root, root, root))
        while self._pending:
            part = self._pending.pop()
            upper = set() if part.upper is None else set(self._upper.children[part.upper])
            lower = set() if part.lower is None else set(self._lower.children[part.lower])
            for name in upper:
                assert part.upper is not None
                self._take_upper(part, paths.join(part.upper, name), paths.join(part.path, name))
            for name in lower - upper:
                assert part.lower is not None
                self._take(self._lower, part, paths.join(part.lower, name), paths.join(part.path, name))

    def _take_upper(self, part: _Part, source: str, path: str) -> None:
        token = self._upper.entries[source]
        if not token.startswith("d "):
            self._take(self._upper, part, source, path)
            return
        shown = self._upper.shows(source)[1]
        there, below = (False, None) if shown is None else self._lower.shows(shown)
        self._found[path] = (self._upper, source, self._marked(token, part.below, path, below))
        self._pending.append(_Part(path, source, shown if there else None, below))

    def _take(self, side: _Side, part: _Part, source: str, path: str) -> None:
        """Take an entry with which the other layer has nothing to do."""
        token = side.entries[source]
        if token.startswith("d "):
            below = side.shows(source)[1]
            self._found[path] = (side, source, self._marked(token, part.below, path, below))
            self._pending.append(_Part(path, None, source, below))
        elif not is_whiteout(token):
            if overlay_attributes(token, self._prefix):
                raise Unfoldable(paths.printable(source))
            self._found[path] = (side, source, token)
        elif part.below is not None:  # where nothing is below, there is nothing to hide
            self._found[path] = (side, source, token)

    def _marked(self, token: Token, above: str | None, path: str, below: str | None) -> Token:
        """Return a directory's token that makes it show ``below``; the one that holds it shows ``above``."""
        entry = parse(token)
        kept = [pair for pair in entry.xattrs if pair[0] not in (self._prefix + _OPAQUE, self._prefix + _REDIRECT)]
        if below is None and above is not None:
            kept.append((self._prefix + _OPAQUE, b"y"))
        elif below is not None and (above is None or below != paths.join(above, paths.name(path))):
            kept.append((self._prefix + _REDIRECT, paths.to_bytes(below)))
        kept.sort(key=lambda pair: paths.to_bytes(pair[0]))
        return msgspec.structs.replace(entry, xattrs=tuple(kept)).token()

    def layer(self) -> Layer:
        """Return the result, its groups of linked names numbered anew."""
        groups = self._groups()
        entries: dict[str, Token] = {}
        contents: dict[str, list[str]] = {}
        size = 0
        for path in sorted(self._found):
            side, source, token = self._found[path]
            number, names = groups.get(path, (0, (path,)))
            fields = token.split(" ")
            if fields[0] != "d":
                fields[_INODE], fields[_LINKS] = str(number), str(len(names))
            entries[paths.portable(path)] = " ".join(fields)
            if fields[0] == "f" and names[0] == path:
                contents[paths.portable(path)] = side.content(source) or []
                size += int(fields[_SIZE])
        return Layer(entries=entries, contents=contents, size=size)

    def _groups(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        names: defaultdict[tuple[bool, str], list[str]] = defaultdict(list)
        for path in sorted(self._found):
            side, _, token = self._found[path]
            fields = token.split(" ", _LINKS)
            if fields[0] != "d" and fields[_INODE] != "0":
                names[side is self._upper, fields[_INODE]].append(path)
        groups = [tuple(group) for group in names.values() if len(group) > 1]
        return {path: (number, group) for number, group in enumerate(groups, 1) for path in group}
