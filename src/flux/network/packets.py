"""IP packets of a sandbox without network: what each one asks for, and the answer that refuses it.

Nothing is trusted: a packet may be any bytes. What must not be answered (RFC 1122 §3.2.2, RFC 4443 §2.4) is not:
resets, ICMP errors, fragments, and what goes to or comes from addresses that are not one host's.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

from flux.network import dns
from flux.ports.network import NAMESERVER

TCP, UDP, ICMP, ICMP_V6, IGMP = 6, 17, 1, 58, 2

_NAMES = {TCP: "tcp", UDP: "udp", ICMP: "icmp", ICMP_V6: "icmpv6", 132: "sctp"}
_NAMESERVER = socket.inet_aton(NAMESERVER)
_DNS_PORT = 53
_TTL = 64
_FIN, _SYN, _RST, _ACK = 0x01, 0x02, 0x04, 0x10
#: Echo, timestamp, information and address mask requests: the ICMP messages that ask for something.
_QUERIES = frozenset({8, 13, 15, 17})
#: Echo request and node information query. The rest is errors, or the kernel's own talk with routers and neighbours.
_QUERIES_V6 = frozenset({128, 139})
_FRAGMENT, _AUTHENTICATION = 44, 51
_EXTENSIONS = frozenset({0, 43, _FRAGMENT, _AUTHENTICATION, 60})
_EXTENSIONS_MAX = 8
#: How much of a refused packet an ICMP error returns: all that fits the smallest packet that every host takes.
_QUOTED_V4, _QUOTED_V6 = 576 - 28, 1280 - 48


class Attempt(NamedTuple):
    """What a packet tried to reach. ``name``: the host that a DNS query asked for."""

    proto: str
    dst: str
    port: int | None = None
    name: str | None = None


class _Packet(NamedTuple):
    version: int
    source: bytes
    target: bytes
    protocol: int
    body: bytes
    fragment: bool


def parse_packet(raw: bytes) -> Attempt | None:
    """Return what ``raw`` tries to reach; ``None`` for no valid packet, answers, errors and the kernel's own noise."""
    packet = _read(raw)
    if packet is None or _is_noise(packet):
        return None
    target = _address(packet.target)
    proto = _NAMES.get(packet.protocol, f"ip-{packet.protocol}")
    if packet.protocol not in (TCP, UDP, 132) or len(packet.body) < 4:
        return Attempt(proto, target)
    port = int(struct.unpack_from("!H", packet.body, 2)[0])
    question = _question(packet)
    return Attempt(proto, target, port, None if question is None else question.name)


def refusal(raw: bytes) -> bytes | None:
    """Return the packet that makes the sender of ``raw`` give up at once; ``None`` where no answer may be sent."""
    packet = _read(raw)
    if packet is None or packet.fragment or not (_is_host(packet.source) and _is_host(packet.target)):
        return None
    if packet.protocol == TCP:
        return _reset(packet)
    if _is_noise(packet):
        return None
    question = _question(packet)
    return _prohibited(packet, raw) if question is None else _no_such_name(packet, question)


def _read(raw: bytes) -> _Packet | None:
    version = raw[0] >> 4 if raw else 0
    if version == 4:
        return _read_v4(raw)
    return _read_v6(raw) if version == 6 else None


def _read_v4(raw: bytes) -> _Packet | None:
    start = (raw[0] & 0x0F) * 4
    if start < 20 or len(raw) < start:
        return None
    total, _, fragment = struct.unpack_from("!HHH", raw, 2)
    if not start <= total <= len(raw) or fragment & 0x1FFF:
        return None
    return _Packet(4, raw[12:16], raw[16:20], raw[9], raw[start:total], bool(fragment & 0x2000))


def _read_v6(raw: bytes) -> _Packet | None:
    if len(raw) < 40:
        return None
    end = 40 + int(struct.unpack_from("!H", raw, 4)[0])
    if end > len(raw):
        return None
    protocol, at, fragment = raw[6], 40, False
    for _ in range(_EXTENSIONS_MAX):
        if protocol not in _EXTENSIONS:
            return _Packet(6, raw[8:24], raw[24:40], protocol, raw[at:end], fragment)
        if at + 8 > end:
            return None
        length = (raw[at + 1] + 1) * 8
        if protocol == _FRAGMENT:
            fragment, length = True, 8
            if int(struct.unpack_from("!H", raw, at + 2)[0]) & 0xFFF8:
                return None
        elif protocol == _AUTHENTICATION:
            length = (raw[at + 1] + 2) * 4
        protocol, at = raw[at], at + length
        if at > end:
            return None
    return None


def _is_noise(packet: _Packet) -> bool:
    """Tell whether a packet asks for nothing: a reset, an ICMP error or answer, or the kernel's own housekeeping."""
    if packet.protocol == TCP:
        return len(packet.body) > 13 and bool(packet.body[13] & _RST)
    if packet.protocol == ICMP:
        return not packet.body or packet.body[0] not in _QUERIES
    if packet.protocol == ICMP_V6:
        return not packet.body or packet.body[0] not in _QUERIES_V6
    return packet.protocol == IGMP


def _is_host(address: bytes) -> bool:
    """Tell whether an address is one host's, not a group's, everyone's or no one's."""
    if not any(address):
        return False
    if len(address) == 16:
        return address[0] != 0xFF
    return address[0] < 224 and address[0] != 0 and address != _NAMESERVER[:3] + b"\xff"


def _address(raw: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


def _question(packet: _Packet) -> dns.Question | None:
    is_query = packet.protocol == UDP and packet.target == _NAMESERVER and len(packet.body) > 8
    if not is_query or packet.body[2:4] != _DNS_PORT.to_bytes(2, "big"):
        return None
    return dns.question(packet.body[8:])


def _reset(packet: _Packet) -> bytes | None:
    """Answer a TCP segment as a closed port does (RFC 9293 §3.10.7.1)."""
    body = packet.body
    if len(body) < 20:
        return None
    source, target, sequence, acknowledged, offset, flags = struct.unpack_from("!HHIIBB", body)
    start = (offset >> 4) * 4
    if flags & _RST or not 20 <= start <= len(body):
        return None
    if flags & _ACK:
        ours, theirs, answer = acknowledged, 0, _RST
    else:
        length = len(body) - start + bool(flags & _SYN) + bool(flags & _FIN)
        ours, theirs, answer = 0, (sequence + length) & 0xFFFFFFFF, _RST | _ACK
    return _reply(packet, TCP, struct.pack("!HHIIBBHHH", target, source, ours, theirs, 0x50, answer, 0, 0, 0), 16)


def _prohibited(packet: _Packet, raw: bytes) -> bytes:
    """Return "communication administratively prohibited", which ends a program's wait at once."""
    if packet.version == 4:
        return _reply(packet, ICMP, struct.pack("!BBHI", 3, 13, 0, 0) + raw[:_QUOTED_V4], 2)
    return _reply(packet, ICMP_V6, struct.pack("!BBHI", 1, 1, 0, 0) + raw[:_QUOTED_V6], 2)


def _no_such_name(packet: _Packet, question: dns.Question) -> bytes:
    answer = dns.no_such_name(question)
    ports = packet.body[2:4] + packet.body[0:2]
    return _reply(packet, UDP, ports + struct.pack("!HH", len(answer) + 8, 0) + answer, 6)


def _reply(packet: _Packet, protocol: int, body: bytes, checksum_at: int) -> bytes:
    """Send ``body`` back to where ``packet`` came from, its checksum filled in at an offset."""
    source, target = packet.target, packet.source
    pseudo = b"" if protocol == ICMP else source + target + struct.pack("!II", len(body), protocol)
    checksum = _checksum(pseudo + body) or 0xFFFF
    body = body[:checksum_at] + checksum.to_bytes(2, "big") + body[checksum_at + 2 :]
    if packet.version == 6:
        return struct.pack("!IHBB", 6 << 28, len(body), protocol, _TTL) + source + target + body
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 0, 0x4000, _TTL, protocol, 0) + source + target
    return header[:10] + _checksum(header).to_bytes(2, "big") + header[12:] + body


def _checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071)."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
