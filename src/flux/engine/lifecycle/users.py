"""Who a command runs as: the sandbox's own names and numbers, never the host's (spec: sandboxes)."""

from __future__ import annotations

import os
import stat

import msgspec

from flux.core.errors import Code, FluxError
from flux.core.paths import printable
from flux.core.sandbox import HOME, Sandbox
from flux.ports.substrate import Command, Instance

_ID_MAX = 2**32 - 2
_ID_DIGITS_MAX = 10
_ROOT_HOME = "/root"
#: Links lead to where the sandbox sees them lead, nowhere outside of it, and over no mount that it made itself.
_RESOLVE_NO_XDEV = 0x01
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_IN_ROOT = 0x10
_PASSWD_BYTES_MAX = 1 << 20
_READ_SECONDS = 10.0


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A user inside a sandbox. ``home``: an absolute path inside, which need not be there."""

    name: str
    uid: int
    gid: int
    home: str = "/"


def resolve(sandbox: Sandbox, instance: Instance, asked: str | None) -> User:
    """Return the user that a request names: a name, ``uid`` or ``uid:gid``; root by default, where Flux is root.

    Raises:
        FluxError: ``invalid`` if there is none, or if without privileges it is another one than the caller.
    """
    root = os.geteuid() == 0
    home = _ROOT_HOME if root and sandbox.layout == "managed" else HOME
    default = User(name="root" if root else "user", uid=os.geteuid(), gid=os.getegid(), home=home)
    if asked is None or asked == default.name:
        return default
    user = _numbered(asked) or _named(sandbox, instance, asked)
    if os.geteuid() != 0 and user.uid != default.uid:
        raise FluxError(
            Code.INVALID,
            f"cannot run as {printable(asked)[:80]!r}: without privileges a sandbox has the one user {default.uid}",
            {"field": "user"},
        )
    return user


def _numbered(asked: str) -> User | None:
    uid, _, gid = asked.partition(":")
    if not uid.isdecimal() or not (gid or uid).isdecimal():
        return None
    numbers = number(uid), number(gid or uid)
    if numbers[0] is None or numbers[1] is None:
        raise _unknown(asked)
    return User(name=uid, uid=numbers[0], gid=numbers[1])


def number(text: str) -> int | None:
    """Return the number of a user or a group that is written so, ``None`` for what is none."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _ID_DIGITS_MAX):
        return None
    value = int(text)
    return value if value <= _ID_MAX else None


def _named(sandbox: Sandbox, instance: Instance, asked: str) -> User:
    content = passwd_of_tree(instance.tree_descriptor) if sandbox.layout == "managed" else _passwd(instance)
    for line in content.split("\n"):
        fields = line.split(":")
        if len(fields) > 3 and fields[0] == asked:
            home = fields[5] if len(fields) > 5 and fields[5].startswith("/") and "\0" not in fields[5] else "/"
            uid, gid = number(fields[2]), number(fields[3])
            if uid is not None and gid is not None:
                return User(name=asked, uid=uid, gid=gid, home=home)
    raise _unknown(asked)


def passwd_of_tree(tree: int) -> str:
    """Return the passwd below a managed sandbox's tree, at most a mebibyte of it; empty if there is none to read.

    Nothing that the sandbox puts there leads outside of it or keeps the reader waiting: only a regular file is opened.
    """
    try:
        handle = _handle(tree, "/etc/passwd")
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return ""
            descriptor = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            os.close(handle)
        with os.fdopen(descriptor, "rb") as stream:
            return stream.read(_PASSWD_BYTES_MAX).decode("utf-8", "surrogateescape")
    except OSError:
        return ""


def holds(tree: int, path: str) -> bool:
    """Tell whether a managed sandbox's tree has something at an absolute path, as the sandbox sees it."""
    try:
        os.close(_handle(tree, path))
    except (OSError, ValueError):
        return False
    return True


def _handle(tree: int, path: str) -> int:
    from flux.trees import _native

    flags = _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS | _RESOLVE_NO_XDEV
    return _native.openat2(tree, path.strip("/") or ".", os.O_PATH | os.O_CLOEXEC, 0, flags)


def _passwd(instance: Instance) -> str:
    """Read the sandbox's passwd as the sandbox sees it, by a command in it."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    command = Command(argv=("/bin/cat", "/etc/passwd"), environment={}, cwd="/", uid=os.geteuid(), gid=os.getegid())
    try:
        with os.fdopen(reader, "rb") as stream:
            try:
                process = instance.spawn(command, nowhere, writer, nowhere)
            finally:
                os.close(writer)
            content = stream.read(_PASSWD_BYTES_MAX)
            process.wait(_READ_SECONDS)
        return content.decode("utf-8", "surrogateescape")
    finally:
        os.close(nowhere)


def _unknown(asked: str) -> FluxError:
    return FluxError(
        Code.INVALID,
        f"cannot run as {printable(asked)[:80]!r}: the sandbox has no such user; name one of its /etc/passwd, or a uid",
        {"field": "user"},
    )
