"""Files over HTTP: read with ranges, written from forms and plain bodies, joined from parts (spec: e2b, §4)."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import AsyncIterator, Callable
from email.utils import formatdate
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, quote_from_bytes

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from flux.api.envd.errors import json_reply
from flux.api.envd.multipart import Form, Part
from flux.core import paths
from flux.core.errors import Code, FluxError
from flux.engine.filesystem.spool import MIB, Body, Spool

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from flux.api.envd.call import Call
    from flux.engine.filesystem.entries import FileEntry
    from flux.engine.filesystem.filesystem import Filesystem, ReadableFile

T = TypeVar("T")

CHUNK_BYTES = MIB
NOTE_HEADER = "x-metadata-"
_COMPOSE_BYTES_MAX = MIB
_FIELD = "file"
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
_GZIP_LEVEL = 1
#: The last second of the year 9999.
_SECONDS_MAX = 253_402_300_799
_GZIP_WINDOW = 31


async def act(call: Call, action: Callable[[Filesystem], T], user: str | None = None) -> T:
    """Do something to the sandbox's files in a thread; it is done to its end also when the caller leaves."""

    def in_thread() -> T:
        return action(call.plane.filesystem(call.actor, call.sandbox, user or call.as_user))

    return await call.threads.slow(in_thread)


async def serve(call: Call, request: Request) -> Response:
    """Answer ``/files``: GET and HEAD read a file, POST writes one or several."""
    if request.method in ("GET", "HEAD"):
        return await download(call, request)
    if request.method == "POST":
        return await upload(call, request)
    raise FluxError(Code.INVALID, f"cannot {request.method} files: it takes GET, HEAD, POST")


def query_of(request: Request) -> dict[str, str]:
    """Return the query, whose names and values are bytes; ``+`` is a space."""
    text = request.scope["query_string"].decode("latin-1")
    return dict(parse_qsl(text, keep_blank_values=True, encoding="utf-8", errors="surrogateescape"))


# Reading


class _Found(msgspec.Struct, frozen=True):
    """A file that was opened, and its content if that is little."""

    file: ReadableFile
    content: bytes | None


async def download(call: Call, request: Request) -> Response:
    """Return a file's content, or the part of it that was asked for."""
    query = query_of(request)
    found = await act(call, partial(_open, query.get("path", "")), query.get("username"))
    return FileReply(call, request, found)


def _open(path: str, files: Filesystem) -> _Found:
    file = files.open_file(path)
    if file.size > CHUNK_BYTES:
        return _Found(file, None)
    try:
        return _Found(file, os.pread(file.descriptor, file.size, 0))
    finally:
        os.close(file.descriptor)


class FileReply(Response):
    """A reply with a file's content; it closes the file, whatever becomes of the caller."""

    def __init__(self, call: Call, request: Request, found: _Found) -> None:
        self._call = call
        self._file = found.file
        self._content = found.content
        self._size = found.file.size if found.content is None else len(found.content)
        self.background = None
        headers = {
            "accept-ranges": "bytes",
            "content-type": "application/octet-stream",
            "content-disposition": f"inline; filename*=UTF-8''{_coded(paths.name(found.file.path))}",
            "last-modified": date_of(found.file.modified_ns),
            "vary": "accept-encoding",
            "x-content-type-options": "nosniff",
        }
        asked = _range(request.headers.get("range"), self._size)
        self._gzip = asked is None and _wants_gzip(request)
        self._start, self._end = (0, self._size) if asked is None else asked
        self.status_code = 200 if asked is None else 206
        if asked is not None:
            headers["content-range"] = f"bytes {self._start}-{self._end - 1}/{self._size}"
            if self._start >= self._end:
                self.status_code, headers["content-range"] = 416, f"bytes */{self._size}"
                self._start = self._end = 0
        if self._gzip:
            headers["content-encoding"] = "gzip"
        else:
            headers["content-length"] = str(self._end - self._start)
        self.raw_headers = [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the content as fast as the caller reads it."""
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if scope["method"] != "HEAD":
                pieces = self._zipped() if self._gzip else self._pieces()
                async for data in pieces:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if self._content is None:
                os.close(self._file.descriptor)

    async def _pieces(self) -> AsyncIterator[bytes]:
        if self._content is not None:
            if self._start < self._end:
                yield self._content[self._start : self._end]
            return
        position = self._start
        while position < self._end:
            count = min(CHUNK_BYTES, self._end - position)
            data = await self._call.threads.quick(os.pread, self._file.descriptor, count, position)
            if not data:
                raise ConnectionError("the file became shorter while it was sent")
            position += len(data)
            yield data

    async def _zipped(self) -> AsyncIterator[bytes]:
        packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
        async for data in self._pieces():
            packed = await self._call.threads.slow(packer.compress, data)
            if packed:
                yield packed
        yield packer.flush()


def date_of(nanoseconds: int) -> str:
    """Return a time since the epoch as HTTP has it; the ends of what can be written for what lies beyond them."""
    return formatdate(min(max(nanoseconds // 10**9, 0), _SECONDS_MAX), usegmt=True)


def _coded(name: str) -> str:
    return quote_from_bytes(paths.to_bytes(name), safe="")


def _wants_gzip(request: Request) -> bool:
    """Tell whether a reply is to be compressed: who lists other encodings too only says what it could read."""
    listed = request.headers.get("accept-encoding", "").partition(";")[0].strip().lower()
    return listed == "gzip"


def _range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return the part that one range asks for, empty if there is none; ``None`` for the whole."""
    found = _RANGE.fullmatch(header.strip()) if header else None
    if found is None or found.group(1) == found.group(2) == "":
        return None
    first, last = found.groups()
    if not first:
        return max(size - int(last), 0), size
    end = min(int(last) + 1, size) if last else size
    if last and int(last) < int(first):
        return None
    return (int(first), end) if int(first) < size else (size, size)


# Writing


class Upload:
    """What came of a request's content: little of it in memory, more in a file beside the sandboxes."""

    def __init__(self, call: Call, user: str | None) -> None:
        self.size = 0
        self._call = call
        self._user = user
        self._held = bytearray()
        self._spool: Spool | None = None

    async def add(self, data: bytes) -> None:
        """Take a piece in. Raises ``exhausted`` if the disk is full."""
        self._held += data
        self.size += len(data)
        if len(self._held) > CHUNK_BYTES:
            await self._flush()

    async def _flush(self) -> None:
        if self._spool is None:
            self._spool = await act(self._call, _spool, self._user)
        held, self._held = self._held, bytearray()
        await self._call.threads.slow(self._spool.add, held)

    async def whole(self) -> None:
        """Have all of it where ``body`` finds it."""
        if self._spool is not None and self._held:
            await self._flush()

    def body(self, start: int = 0, end: int | None = None) -> Body:
        """Return a part of it."""
        if self._spool is not None:
            return self._spool.body(start, end)
        data = memoryview(self._held)[start:end]
        return Body(size=len(data), data=data)

    async def close(self) -> None:
        """Let it go."""
        if self._spool is not None:
            await self._call.threads.last(self._spool.close)


def _spool(files: Filesystem) -> Spool:
    return files.spool()


class _Piece(msgspec.Struct):
    """One file of a request: its path, and where its content is in what came."""

    path: str
    start: int
    end: int


async def upload(call: Call, request: Request) -> Response:
    """Write the files of a request, when all of it has come."""
    query = query_of(request)
    user, path = query.get("username"), query.get("path")
    notes = {
        name.decode("latin-1")[len(NOTE_HEADER) :]: value.decode("latin-1")
        for name, value in request.headers.raw
        if name.lower().startswith(NOTE_HEADER.encode("ascii"))
    }
    kind = request.headers.get("content-type", "")
    plain = kind.partition(";")[0].strip().lower()
    if plain != "application/octet-stream" and not plain.startswith("multipart/"):
        raise FluxError(
            Code.INVALID,
            f"cannot take {plain[:80] or 'no content type'}: send multipart/form-data or application/octet-stream",
        )
    content = Upload(call, user)
    try:
        source = _content(call, request)
        if plain.startswith("multipart/"):
            pieces = await _form(source, Form(kind), content, path)
        else:
            pieces = await _raw(source, content, path)
        await content.whole()
        written = await act(call, partial(_put, pieces, content, notes), user)
    finally:
        await content.close()
    return json_reply(200, [told(entry) for entry in written])


def _put(pieces: list[_Piece], content: Upload, notes: dict[str, str], files: Filesystem) -> list[FileEntry]:
    return [files.put_file(piece.path, content.body(piece.start, piece.end), notes) for piece in pieces]


def told(entry: FileEntry) -> dict[str, Any]:
    """Return what a write is answered with."""
    reply: dict[str, Any] = {
        "name": paths.to_json(entry.name)[0],
        "path": paths.to_json(entry.path)[0],
        "type": "file",
    }
    if entry.metadata:
        reply["metadata"] = entry.metadata
    return reply


async def _raw(source: AsyncIterator[bytes], content: Upload, path: str | None) -> list[_Piece]:
    if path is None:
        raise FluxError(Code.INVALID, "cannot write a file without its path: give path in the query")
    async for data in source:
        await content.add(data)
    return [_Piece(path, 0, content.size)]


async def _form(source: AsyncIterator[bytes], form: Form, content: Upload, path: str | None) -> list[_Piece]:
    pieces: dict[str, _Piece] = {}
    current: _Piece | None = None
    async for data in source:
        for event in form.feed(data):
            if isinstance(event, Part):
                current = _begun(event, content, path, pieces)
            elif current is not None:
                await content.add(event)
                current.end = content.size
    form.finish()
    return list(pieces.values())


def _begun(part: Part, content: Upload, path: str | None, pieces: dict[str, _Piece]) -> _Piece | None:
    """Note the beginning of a file; other fields are let pass."""
    if part.name != _FIELD:
        return None
    place = part.filename if path is None else path
    if not place:
        raise FluxError(Code.INVALID, "cannot write a file without its path: give path in the query, or a file name")
    if place in pieces:
        raise FluxError(
            Code.INVALID,
            f"cannot write two files to {paths.printable(place)[:200]!r} at once: name each by the path of its own",
        )
    pieces[place] = piece = _Piece(place, content.size, content.size)
    return piece


async def _content(call: Call, request: Request) -> AsyncIterator[bytes]:
    """Yield the request's content as it was before it was compressed."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", ""):
        raise FluxError(Code.INVALID, f"cannot read the encoding {encoding[:80]!r}: send identity or gzip")
    try:
        if encoding == "gzip":
            async for data in _unzipped(call, request):
                yield data
            return
        async for data in request.stream():
            if data:
                yield data
    except ClientDisconnect:
        raise FluxError(Code.INVALID, "cannot write the file: the sender hung up before its end") from None


async def _unzipped(call: Call, request: Request) -> AsyncIterator[bytes]:
    """Yield what was compressed, never more than a chunk of it at once."""
    unpacker = zlib.decompressobj(_GZIP_WINDOW)
    begun = False
    async for data in request.stream():
        left = data
        while left:
            if unpacker.eof:  # another member follows
                unpacker = zlib.decompressobj(_GZIP_WINDOW)
            begun = True
            try:
                unpacked = await call.threads.slow(unpacker.decompress, left, CHUNK_BYTES)
            except zlib.error:
                raise FluxError(Code.INVALID, "cannot read the content: it is not gzip as its header says") from None
            if unpacked:
                yield unpacked
            left = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
            if not left and len(unpacked) == CHUNK_BYTES and not unpacker.eof:
                async for rest in _rest(call, unpacker):
                    yield rest
    if begun and not unpacker.eof:
        raise FluxError(Code.INVALID, "cannot read the content: its gzip ends too early")


async def _rest(call: Call, unpacker: Any) -> AsyncIterator[bytes]:
    """Yield what an unpacker still holds of input that it has taken whole."""
    while unpacked := await call.threads.slow(unpacker.decompress, b"", CHUNK_BYTES):
        yield unpacked


class Compose(msgspec.Struct, frozen=True):
    """Join files to one."""

    source_paths: tuple[str, ...] = ()
    destination: str = ""
    username: str | None = None


async def compose(call: Call, request: Request) -> Response:
    """Answer ``/files/compose``."""
    if request.method != "POST":
        raise FluxError(Code.INVALID, f"cannot {request.method} that route: it takes POST")
    body = bytearray()
    async for data in _content(call, request):
        body += data
        if len(body) > _COMPOSE_BYTES_MAX:
            raise FluxError(Code.TOO_LARGE, "cannot read the request: it is longer than 1 MiB")
    try:
        asked = msgspec.json.decode(body, type=Compose)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise FluxError(Code.INVALID, f"cannot read the request: {str(error)[:200]}") from None
    if not asked.destination:
        raise FluxError(Code.INVALID, "cannot join files to nothing: give destination")
    entry = await act(call, partial(_composed, asked), asked.username)
    return json_reply(200, told(entry))


def _composed(asked: Compose, files: Filesystem) -> FileEntry:
    return files.compose(asked.source_paths, asked.destination)
