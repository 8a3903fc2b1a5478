"""Who a command runs as: the sandbox's own names and numbers, never the host's (spec: sandboxes)."""

from __future__ import annotations

import os

import msgspec

from flux.core.errors import Code, FluxError
from flux.core.paths import printable
from flux.ports.substrate import Command, Instance

_ID_MAX = 2**32 - 2
_PASSWD_BYTES_MAX = 1 << 20
_READ_SECONDS = 10.0


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A user inside a sandbox."""

    name: str
    uid: int
    gid: int


def resolve(instance: Instance, asked: str | None) -> User:
    """Return the user that a request names: a name, ``uid`` or ``uid:gid``; root by default, where Flux is root.

    Raises:
        FluxError: ``invalid`` if there is none, or if without privileges it is another one than the caller.
    """
    default = User(name="root" if os.geteuid() == 0 else "user", uid=os.geteuid(), gid=os.getegid())
    if asked is None:
        return default
    user = _numbered(asked) or (default if asked == default.name else _named(instance, asked))
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
    numbers = int(uid), int(gid or uid)
    if max(numbers) > _ID_MAX:
        raise _unknown(asked)
    return User(name=uid, uid=numbers[0], gid=numbers[1])


def _named(instance: Instance, asked: str) -> User:
    for line in _passwd(instance).split("\n"):
        fields = line.split(":")
        if len(fields) > 3 and fields[0] == asked and fields[2].isdecimal() and fields[3].isdecimal():
            return User(name=asked, uid=int(fields[2]), gid=int(fields[3]))
    raise _unknown(asked)


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
