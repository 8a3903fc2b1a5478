"""As much of rtnetlink as links of sandboxes take: the kernel is asked directly, a program for each step costs more.

Names of constants are the kernel's, from ``linux/rtnetlink.h`` and what it includes.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Sequence
from ipaddress import ip_address
from types import TracebackType

from flux.core.errors import Code, FluxError

_HEADER = struct.Struct("=IHHII")
_LINK, _ADDRESS, _ROUTE = struct.Struct("=BxHiII"), struct.Struct("=BBBBI"), struct.Struct("=BBBBBBBBI")
_ERROR = struct.Struct("=i")
_ATTRIBUTE = struct.Struct("=HH")
_NUMBER = struct.Struct("=I")
_REPLY_BYTES = 65536

_NLMSG_ERROR = 2
_NEW_LINK, _DELETE_LINK, _NEW_ADDRESS, _NEW_ROUTE = 16, 17, 20, 24
_REQUEST, _ACKNOWLEDGE, _REPLACE, _EXCLUSIVE, _CREATE = 0x1, 0x4, 0x100, 0x200, 0x400
_UP = 0x1
_IFLA_IFNAME, _IFLA_LINKINFO, _IFLA_GROUP, _IFLA_NET_NS_FD, _INFO_KIND, _INFO_DATA, _PEER = 3, 18, 27, 28, 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL, _NO_DUPLICATE_DETECTION = 1, 2, 0x02
_RTA_DST, _RTA_OIF, _RTA_GATEWAY = 1, 4, 5
_MAIN_TABLE, _BOOT, _UNICAST = 254, 3, 1
_ANYWHERE, _ON_LINK = 0, 253


class Netlink:
    """A socket to the kernel about the network namespace of the thread that opened it; close it after use.

    Raises:
        FluxError: ``unavailable``, from every method, with what the kernel answered.
    """

    def __init__(self) -> None:
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        except OSError as error:
            raise _failure("netlink", error.errno or 0) from error

    def __enter__(self) -> Netlink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def add_pair(self, name: str, peer: str, namespace: int) -> None:
        """Make a pair of links, both down: ``name`` here, ``peer`` in the namespace of a descriptor."""
        inner = _link() + _text(_IFLA_IFNAME, peer) + _attribute(_IFLA_NET_NS_FD, _NUMBER.pack(namespace))
        kind = _text(_INFO_KIND, "veth") + _attribute(_INFO_DATA, _attribute(_PEER, inner))
        body = _link() + _text(_IFLA_IFNAME, name) + _attribute(_IFLA_LINKINFO, kind)
        self._ask(f"make the link {name}", _NEW_LINK, _CREATE | _EXCLUSIVE, body)

    def delete(self, names: Sequence[str]) -> None:
        """Remove links, and the other ends of pairs with them; those that are not there are left out.

        The kernel waits a while for the last user of a link, and for several at once it does so once.
        """
        group = _attribute(_IFLA_GROUP, os.urandom(_NUMBER.size))
        for name in names:
            body = _link() + _text(_IFLA_IFNAME, name) + group
            self._ask(f"remove the link {name}", _NEW_LINK, 0, body, (errno.ENODEV,))
        self._ask("remove links", _DELETE_LINK, 0, _link() + group, (errno.ENODEV,))

    def up(self, name: str) -> None:
        """Bring a link up."""
        self._ask(f"bring {name} up", _NEW_LINK, 0, _link(_index(name), _UP, _UP))

    def down(self, name: str) -> None:
        """Bring a link down: nothing passes it any more."""
        self._ask(f"bring {name} down", _NEW_LINK, 0, _link(_index(name), 0, _UP))

    def add_address(self, name: str, address: str, prefix: int, *, on_link: bool = False) -> None:
        """Give a link an address. ``on_link``: it means something on this link only."""
        raw = ip_address(address).packed
        family = _family(raw)
        flags = _NO_DUPLICATE_DETECTION if family == socket.AF_INET6 else 0
        fixed = _ADDRESS.pack(family, prefix, flags, _ON_LINK if on_link else _ANYWHERE, _index(name))
        body = fixed + _attribute(_IFA_LOCAL, raw) + _attribute(_IFA_ADDRESS, raw)
        self._ask(f"give {name} the address {address}", _NEW_ADDRESS, _CREATE | _EXCLUSIVE, body)

    def add_route(self, name: str, address: str) -> None:
        """Send what is for one address through a link."""
        self._route(name, ip_address(address).packed, None)

    def add_default(self, name: str, gateway: str | None) -> None:
        """Send everything through a link: IPv4 to its ``gateway``, or IPv6 if there is none."""
        self._route(name, None, None if gateway is None else ip_address(gateway).packed)

    def _route(self, name: str, destination: bytes | None, gateway: bytes | None) -> None:
        raw = destination or gateway
        family = socket.AF_INET6 if raw is None else _family(raw)
        scope = _ON_LINK if family == socket.AF_INET and gateway is None else _ANYWHERE
        length = 8 * len(destination or b"")
        body = _ROUTE.pack(family, length, 0, 0, _MAIN_TABLE, _BOOT, scope, _UNICAST, 0)
        body += _attribute(_RTA_OIF, _NUMBER.pack(_index(name)))
        body += b"" if destination is None else _attribute(_RTA_DST, destination)
        body += b"" if gateway is None else _attribute(_RTA_GATEWAY, gateway)
        self._ask(f"route through {name}", _NEW_ROUTE, _CREATE | _REPLACE, body)

    def _ask(self, what: str, kind: int, flags: int, body: bytes, harmless: tuple[int, ...] = ()) -> None:
        size = _HEADER.size + len(body)
        try:
            self._socket.send(_HEADER.pack(size, kind, flags | _REQUEST | _ACKNOWLEDGE, 1, 0) + body)
            reply = self._socket.recv(_REPLY_BYTES)
        except OSError as error:
            raise _failure(what, error.errno or 0) from error
        (number,) = _ERROR.unpack_from(reply, _HEADER.size)
        if _HEADER.unpack_from(reply)[1] != _NLMSG_ERROR or (number and -number not in harmless):
            raise _failure(what, -number)


def _link(index: int = 0, flags: int = 0, changed: int = 0) -> bytes:
    return _LINK.pack(0, 0, index, flags, changed)


def _index(name: str) -> int:
    try:
        return socket.if_nametoindex(name)
    except OSError as error:
        raise _failure(f"find the link {name}", error.errno or 0) from error


def _family(raw: bytes) -> int:
    return socket.AF_INET if len(raw) == 4 else socket.AF_INET6


def _attribute(kind: int, content: bytes) -> bytes:
    size = _ATTRIBUTE.size + len(content)
    return _ATTRIBUTE.pack(size, kind) + content + bytes(-size % 4)


def _text(kind: int, text: str) -> bytes:
    return _attribute(kind, text.encode("ascii") + b"\0")


def _failure(what: str, number: int) -> FluxError:
    return FluxError(Code.UNAVAILABLE, f"cannot set up a sandbox's network: {what}: {os.strerror(number)}")
