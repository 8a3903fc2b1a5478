"""What listens in a sandbox for the tests of its ports; run there by the system's Python, with its library only."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

MIB = 1 << 20
MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
gone = threading.Event()


class Handler(BaseHTTPRequestHandler):
    """Answers by path."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer whatever is asked."""
        path = urlsplit(self.path).path
        getattr(self, "on_" + path.strip("/").replace("/", "_"), self.on_seen)()

    do_POST = do_PUT = do_DELETE = do_OPTIONS = do_HEAD = do_GET  # noqa: N815 - the names are the library's

    def on_seen(self) -> None:
        """Tell what came."""
        body = b"".join(self.pieces())
        told = {"method": self.command, "path": self.path, "headers": self.headers.items(), "body": body.decode()}
        self.reply(200, json.dumps(told).encode())

    def on_none(self) -> None:
        """Tell that there is nothing."""
        self.reply(404, b"nothing here")

    def on_forged(self) -> None:
        """Pretend to be Flux."""
        self.reply(
            200, b"", ("X-Request-Id", "forged"), ("Flux-Actor", "forged"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")
        )

    def on_large(self) -> None:
        """Send 16 MiB."""
        self.reply(200, bytes(range(256)) * (16 * MIB // 256))

    def on_echo(self) -> None:
        """Send back what comes, as it comes."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in self.pieces():
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def on_endless(self) -> None:
        """Send until nobody listens."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            while True:
                self.wfile.write(b"10000\r\n" + bytes(65536) + b"\r\n")
        except OSError:
            gone.set()
        self.close_connection = True

    def on_gone(self) -> None:
        """Tell when somebody stopped listening."""
        self.reply(200, str(gone.wait(30)).encode())

    def on_broken(self) -> None:
        """Send less than was said."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
        self.close_connection = True

    def on_junk(self) -> None:
        """Answer with what is no HTTP."""
        self.wfile.write(b"no such protocol\r\n\r\n")
        self.close_connection = True

    def on_wide(self) -> None:
        """Answer with headers that are too large."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"X-Wide: %s\r\n" % (b"a" * 60000) * 3 + b"\r\n")
        self.close_connection = True

    def on_ws(self) -> None:
        """Echo messages; ``close`` closes with a code."""
        self.close_connection = True
        if "Upgrade" not in self.headers:
            self.reply(426, b"upgrade")
            return
        key = self.headers["Sec-WebSocket-Key"].encode()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key + MAGIC).digest()).decode())
        if "Sec-WebSocket-Protocol" in self.headers:
            self.send_header("Sec-WebSocket-Protocol", self.headers["Sec-WebSocket-Protocol"].split(",")[-1].strip())
        self.end_headers()
        self.frame(1, json.dumps(dict(self.headers.items())).encode())
        for opcode, data in self.frames():
            if data == b"close":
                self.frame(8, struct.pack(">H", 4001) + b"enough")
            else:
                self.frame(opcode, data)
            if opcode == 8:
                gone.set()
                return

    def on_wsno(self) -> None:
        """Refuse an upgrade."""
        self.reply(403, b"no sockets for you")

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Yield the messages of the caller, whole."""
        whole, opcode = b"", 0
        while head := self.rfile.read(2):
            length = head[1] & 127
            if length >= 126:
                length = int.from_bytes(self.rfile.read(2 if length == 126 else 8), "big")
            mask = self.rfile.read(4)
            data = self.rfile.read(length)
            repeated = (mask * (length // 4 + 1))[:length]
            whole += (int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")).to_bytes(length, "big")
            opcode = head[0] & 15 or opcode
            if head[0] & 128:
                yield opcode, whole
                whole = b""

    def frame(self, opcode: int, data: bytes) -> None:
        """Send a message."""
        length = len(data)
        size = (
            bytes([length])
            if length < 126
            else b"\x7e" + struct.pack(">H", length)
            if length < 65536
            else b"\x7f" + struct.pack(">Q", length)
        )
        self.wfile.write(bytes([128 | opcode]) + size + data)

    def pieces(self) -> Iterator[bytes]:
        """Yield the body as it comes."""
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get("Content-Length", 0))
        while left:
            piece = self.rfile.read1(min(left, 65536))
            if not piece:
                gone.set()
                return
            left -= len(piece)
            yield piece

    def reply(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        """Send a reply with a body."""
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """Listens at one loopback."""

    request_queue_size = 64
    daemon_threads = True


if __name__ == "__main__":
    Server.address_family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
    server = Server((sys.argv[1], int(sys.argv[2])), Handler)
    print("up", flush=True)
    server.serve_forever()
