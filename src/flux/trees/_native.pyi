"""The native half of ``trees``: system calls that Python lacks, and the scanner.

Names are file-system paths (``str`` with surrogateescape, or ``bytes``). Errors are ``OSError`` with the errno.
"""

RENAME_NOREPLACE: int
RENAME_EXCHANGE: int
RESOLVE_BENEATH: int
RESOLVE_NO_SYMLINKS: int
RESOLVE_NO_XDEV: int

def openat2(directory: int, path: str | bytes, flags: int, mode: int, resolve: int) -> int: ...
def renameat2(source_directory: int, source: str | bytes, directory: int, name: str | bytes, flags: int) -> None: ...
def set_mode(directory: int, name: str | bytes, mode: int) -> None: ...
def syncfs(descriptor: int) -> None: ...
def mount_id(descriptor: int) -> int: ...
def scan(
    directory: int, prefix: str, skip: list[str], base: dict[str, str] | None
) -> tuple[dict[str, str], list[str], list[tuple[str, str]], int, list[str], list[str]]:
    """Scan the tree under ``directory`` without the GIL, never following links or crossing mounts.

    ``prefix`` is the workspace path of ``directory`` (``/`` for the root). ``skip`` lists workspace paths to leave
    out. Returns ``(manifest, nested mounts, unreadable (path, reason), total bytes of regular files, racy files,
    linked entries)``; with ``base`` the manifest holds only entries whose token differs from the base's (digests aside)
    or that the base lacks, and each base entry below ``prefix`` that is gone is present with the empty token. Racy
    files changed so shortly before the scan that a rewrite in the same tick of the clock could leave their token as
    it is. Linked entries are those, directories aside, that have more names than one; the others need not be here.
    """

def lookup(root: int, paths: list[str]) -> list[str]:
    """Return the tokens of single entries below ``root``, in order; empty for what is not there or on another mount.

    No link is followed. Fastest when ``paths`` is sorted.
    """

def filesystem(descriptor: int) -> int:
    """Return the magic number of the file system that a descriptor lies on (``statfs``)."""

def has_handles(descriptor: int) -> bool:
    """Tell whether the files of a directory's file system can be found again by handle (``name_to_handle_at``)."""

def next_tick() -> None:
    """Wait until the clock that file times are taken from has moved on: a few milliseconds."""
