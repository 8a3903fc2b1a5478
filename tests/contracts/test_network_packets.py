"""Packets of a sandbox without network: what is recorded, and what the refusal looks like, byte by byte."""

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flux.network import dns
from flux.network.flows import RefusedFlows
from flux.network.packets import Attempt, parse_packet, refusal
from flux.ports.network import NAMESERVER, SINK_ADDRESS_V4, SINK_ADDRESS_V6

HERE_V4, HERE_V6 = socket.inet_aton(SINK_ADDRESS_V4), socket.inet_pton(socket.AF_INET6, SINK_ADDRESS_V6)
FIN, SYN, RST, ACK = 1, 2, 4, 16
MLD_REPORT = bytes([143, 0, 0, 0, 0, 0, 0, 0])
ROUTER_SOLICITATION = bytes([133, 0, 0, 0, 0, 0, 0, 0])


def v4(body: bytes, protocol: int, target: str = "192.0.2.1", *, fragment: int = 0, source: bytes = HERE_V4) -> bytes:
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 7, fragment, 64, protocol, 0)
    return header + source + socket.inet_aton(target) + body


def v6(body: bytes, protocol: int, target: str = "2001:db8::1", *, source: bytes = HERE_V6) -> bytes:
    return (
        struct.pack("!IHBB", 6 << 28, len(body), protocol, 64)
        + source
        + socket.inet_pton(socket.AF_INET6, target)
        + body
    )


def tcp(flags: int, payload: bytes = b"", *, sequence: int = 1000, acknowledged: int = 0, port: int = 443) -> bytes:
    return struct.pack("!HHIIBBHHH", 5000, port, sequence, acknowledged, 0x50, flags, 100, 0, 0) + payload


def udp(port: int, payload: bytes = b"hello") -> bytes:
    return struct.pack("!HHHH", 5000, port, 8 + len(payload), 0) + payload


def echo(kind: int) -> bytes:
    return struct.pack("!BBHHH", kind, 0, 0, 1, 1)


def query(name: str, flags: int = 0x0100, questions: int = 1) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode("latin-1") for label in name.split("."))
    return struct.pack("!HHHHHH", 77, flags, questions, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", 1, 1)


def extension(following: int, body: bytes, length: int = 0) -> bytes:
    return bytes([following, length, 0, 0, 0, 0, 0, 0]) + b"\0" * 8 * length + body


def checksum_holds(data: bytes) -> bool:
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total == 0xFFFF


def check_answer(packet: bytes, answer: bytes) -> tuple[int, bytes]:
    """Check addresses, lengths and checksums of an answer; return its protocol and body."""
    if packet[0] >> 4 == 4:
        assert checksum_holds(answer[:20])
        assert (answer[12:16], answer[16:20]) == (packet[16:20], packet[12:16])
        assert struct.unpack_from("!H", answer, 2) == (len(answer),)
        protocol, body, addresses = answer[9], answer[20:], answer[12:20]
    else:
        assert (answer[8:24], answer[24:40]) == (packet[24:40], packet[8:24])
        assert struct.unpack_from("!H", answer, 4) == (len(answer) - 40,)
        protocol, body, addresses = answer[6], answer[40:], answer[8:40]
    pseudo = b"" if protocol == 1 else addresses + struct.pack("!II", len(body), protocol)
    assert checksum_holds(pseudo + body)
    return protocol, body


V4, V6 = "192.0.2.1", "2001:db8::1"
OPTIONS_V6 = extension(43, extension(60, extension(6, tcp(SYN)), 1))

ATTEMPTS = [
    (v4(tcp(SYN), 6), Attempt("tcp", V4, 443)),
    (v6(tcp(SYN), 6), Attempt("tcp", V6, 443)),
    (v4(udp(53), 17), Attempt("udp", V4, 53)),
    (v6(udp(123), 17), Attempt("udp", V6, 123)),
    (v4(echo(8), 1), Attempt("icmp", V4)),
    (v6(echo(128), 58), Attempt("icmpv6", V6)),
    (v4(udp(9), 132), Attempt("sctp", V4, 9)),
    (v4(b"", 47), Attempt("ip-47", V4)),
    (v4(b"", 255), Attempt("ip-255", V4)),
    (v6(OPTIONS_V6, 0), Attempt("tcp", V6, 443)),
    (v6(extension(6, tcp(SYN), 0)[:1] + b"\x01" + b"\0" * 10 + tcp(SYN), 51), Attempt("tcp", V6, 443)),
    (v4(udp(53, query("api.github.com")), 17, NAMESERVER), Attempt("udp", NAMESERVER, 53, "api.github.com")),
    (v4(udp(53, query("a\x1b[2J\xff.b")), 17, NAMESERVER), Attempt("udp", NAMESERVER, 53, "a\\x1b[2J\\xff.b")),
    (v4(udp(53, query("a.b")), 17, V4), Attempt("udp", V4, 53)),
    (v4(udp(53, b"junk"), 17, NAMESERVER), Attempt("udp", NAMESERVER, 53)),
    (v4(udp(5353), 17, "224.0.0.251"), Attempt("udp", "224.0.0.251", 5353)),
    (v4(udp(9), 17, "255.255.255.255"), Attempt("udp", "255.255.255.255", 9)),
    (v4(udp(9), 17, fragment=0x2000), Attempt("udp", V4, 9)),
    (v4(b"\0", 6), Attempt("tcp", V4)),
]


@pytest.mark.parametrize(("packet", "attempt"), ATTEMPTS)
def test_attempts(packet: bytes, attempt: Attempt) -> None:
    assert parse_packet(packet) == attempt
    assert parse_packet(packet + b"padding") == attempt


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"\x45",
        b"\x60" + b"\0" * 10,
        b"\x15" + b"\0" * 50,
        v4(tcp(RST), 6),
        v4(tcp(RST | ACK), 6),
        v4(echo(0), 1),
        v4(echo(3), 1),
        v4(echo(11), 1),
        v4(b"", 1),
        v6(echo(129), 58),
        v6(echo(1), 58),
        v6(ROUTER_SOLICITATION, 58, "ff02::2"),
        v6(echo(135), 58, "ff02::1:ff00:1"),
        v6(extension(58, MLD_REPORT), 0, "ff02::16"),
        v4(b"\x22" + b"\0" * 7, 2, "224.0.0.22"),
        v4(udp(9), 17, fragment=0x2001),
        v4(udp(9), 17, fragment=0x0001),
        v6(bytes([17, 0, 0, 8, 0, 0, 0, 1]) + udp(9), 44),
        v4(udp(9), 17)[:-1],
        v6(udp(9), 17)[:-1],
        v6(extension(17, b"", 0)[:1] + b"\xff" + b"\0" * 6, 60),
        v6(b"\0\0\0\0\0\0\0\0" * 40, 0),
        b"\x4f" + v4(tcp(SYN), 6)[1:20],
    ],
)
def test_noise_and_nonsense_is_neither_recorded_nor_answered(packet: bytes) -> None:
    assert parse_packet(packet) is None
    assert refusal(packet) is None


@pytest.mark.parametrize(
    "packet",
    [
        v4(udp(9), 17, fragment=0x2000),
        v6(bytes([17, 0, 0, 1, 0, 0, 0, 1]) + udp(9), 44),
        v4(tcp(SYN), 6, fragment=0x2000),
        v4(udp(5353), 17, "224.0.0.251"),
        v4(udp(9), 17, "255.255.255.255"),
        v4(udp(9), 17, "169.254.77.255"),
        v4(udp(9), 17, "0.0.0.0"),
        v6(udp(5353), 17, "ff02::fb"),
        v4(udp(9), 17, source=b"\0\0\0\0"),
        v4(udp(9), 17, source=bytes([224, 0, 0, 1])),
        v6(udp(9), 17, source=b"\0" * 16),
        v4(tcp(SYN)[:19], 6),
        v4(tcp(SYN)[:12] + b"\x10" + tcp(SYN)[13:], 6),
        v4(tcp(SYN)[:12] + b"\xf0" + tcp(SYN)[13:], 6),
    ],
)
def test_what_must_not_be_answered_is_recorded_all_the_same(packet: bytes) -> None:
    assert parse_packet(packet) is not None
    assert refusal(packet) is None


@pytest.mark.parametrize("wrap", [v4, v6])
@pytest.mark.parametrize(
    ("segment", "sequence", "acknowledged", "flags"),
    [
        (tcp(SYN), 0, 1001, RST | ACK),
        (tcp(SYN, sequence=0xFFFFFFFF), 0, 0, RST | ACK),
        (tcp(SYN, b"fast open"), 0, 1010, RST | ACK),
        (tcp(FIN, b"xy"), 0, 1003, RST | ACK),
        (tcp(ACK, b"data", acknowledged=4321), 4321, 0, RST),
        (tcp(SYN | ACK, acknowledged=7), 7, 0, RST),
    ],
)
def test_tcp_is_reset(wrap, segment: bytes, sequence: int, acknowledged: int, flags: int) -> None:  # type: ignore[no-untyped-def]
    packet = wrap(segment, 6)
    answer = refusal(packet)
    assert answer is not None
    protocol, body = check_answer(packet, answer)
    assert protocol == 6 and len(body) == 20
    assert struct.unpack_from("!HHIIBB", body) == (443, 5000, sequence, acknowledged, 0x50, flags)


@pytest.mark.parametrize("body", [(udp(9), 17), (echo(8), 1), (b"", 47), (udp(9, b"x" * 1400), 17)])
def test_the_rest_is_prohibited_v4(body: tuple[bytes, int]) -> None:
    packet = v4(*body)
    answer = refusal(packet)
    assert answer is not None and len(answer) <= 576
    protocol, message = check_answer(packet, answer)
    assert (protocol, message[:2], message[8:]) == (1, bytes([3, 13]), packet[: 576 - 28])


@pytest.mark.parametrize("body", [(udp(9), 17), (echo(128), 58), (udp(9, b"x" * 1400), 17)])
def test_the_rest_is_prohibited_v6(body: tuple[bytes, int]) -> None:
    packet = v6(*body)
    answer = refusal(packet)
    assert answer is not None and len(answer) <= 1280
    protocol, message = check_answer(packet, answer)
    assert (protocol, message[:2], message[8:]) == (58, bytes([1, 1]), packet[: 1280 - 48])


def test_names_are_refused_for_good() -> None:
    packet = v4(udp(53, query("api.github.com")), 17, NAMESERVER)
    answer = refusal(packet)
    assert answer is not None
    protocol, body = check_answer(packet, answer)
    assert (protocol, body[:4]) == (17, struct.pack("!HH", 53, 5000))
    assert struct.unpack_from("!HHHHHH", body, 8) == (77, 0x8183, 1, 0, 0, 0)
    assert body[20:] == query("api.github.com")[12:]


@pytest.mark.parametrize(
    "message",
    [
        query("a.b", flags=0x8100),
        query("a.b", flags=0x2800),
        query("a.b", questions=0),
        query("a.b")[:-1],
        query("a.b")[:13],
        query("a" * 64 + ".b"),
        query(".".join(["a" * 60] * 5)),
        query("a.b")[:12] + b"\xc0\x0c\0\x01\0\x01",
    ],
)
def test_what_is_no_plain_query(message: bytes) -> None:
    assert dns.question(message) is None


def test_the_root_can_be_asked_for() -> None:
    asked = dns.question(struct.pack("!HHHHHH", 1, 0, 1, 0, 0, 0) + b"\0" + struct.pack("!HH", 2, 1))
    assert asked is not None and asked.name == "."


raw_packets = st.one_of(
    st.binary(max_size=120),
    st.builds(
        lambda raw, version: bytes([version]) + raw, st.binary(max_size=120), st.sampled_from([0x45, 0x46, 0x4F, 0x60])
    ),
    st.builds(v4, st.binary(max_size=60), st.integers(0, 255), fragment=st.sampled_from([0, 0x2000, 0x4000, 1])),
    st.builds(v4, st.binary(max_size=60).map(lambda raw: udp(53, raw)), st.just(17), st.just(NAMESERVER)),
    st.builds(v6, st.binary(max_size=60), st.integers(0, 255)),
)


@given(raw_packets)
def test_any_bytes_are_survived_and_no_answer_is_answered(raw: bytes) -> None:
    parse_packet(raw)
    answer = refusal(raw)
    if answer is not None:
        check_answer(raw, answer)
        assert parse_packet(answer) is None or answer[9] == 17
        assert refusal(answer) is None or answer[9] == 17


def test_flows_are_counted_and_bounded() -> None:
    record = RefusedFlows(limit=2)
    for port in (1, 2, 1, 3, 4, 3):
        record.add(Attempt("tcp", "192.0.2.1", port))
    first, second, others = record.flows()
    assert (first.port, first.connections, first.verdict) == (1, 2, "refused")
    assert (second.port, second.connections) == (2, 1)
    assert (others.connections, others.verdict) == (3, "refused")
    assert others.name is not None and "other destinations" in others.name
    record.lost()
    assert "unrecorded" in (record.flows()[-1].name or "")
