"""The file system service: look, make, move, list, remove, watch (spec: e2b, §4)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from flux.api.envd.files import act
from flux.api.envd.methods import Emit, Message, Method, ServerStream, Unary
from flux.api.envd.watches import ended, readable
from flux.core import paths

if TYPE_CHECKING:
    from flux.api.envd.call import Call
    from flux.engine.filesystem.entries import FileEntry
    from flux.engine.filesystem.filesystem import Filesystem
    from flux.engine.filesystem.watch import Watch, WatchEvent

_TYPES = MappingProxyType(
    {
        "file": "FILE_TYPE_FILE",
        "directory": "FILE_TYPE_DIRECTORY",
        "symlink": "FILE_TYPE_SYMLINK",
        "other": "FILE_TYPE_UNSPECIFIED",
    }
)
_NS = 1_000_000_000


# Messages


class Empty(Message, frozen=True):
    """A message without content."""


class EntryInfo(Message, frozen=True):
    """What is told of an entry; ``size`` is a number as text. A name that is no text is shown with escapes."""

    name: str
    type: str
    path: str
    size: str
    mode: int
    permissions: str
    owner: str
    group: str
    modified_time: str
    symlink_target: str | None = None
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    is_symlink: bool = False


class PathRequest(Message, frozen=True):
    """A request about one path."""

    path: str = ""


class EntryReply(Message, frozen=True):
    """An entry."""

    entry: EntryInfo


class MoveRequest(Message, frozen=True):
    """Rename an entry."""

    source: str = ""
    destination: str = ""


class ListRequest(Message, frozen=True):
    """List a directory. ``depth`` 0 is 1."""

    path: str = ""
    depth: int = 0


class ListReply(Message, frozen=True):
    """What a directory holds."""

    entries: tuple[EntryInfo, ...]


class WatchRequest(Message, frozen=True):
    """Watch a directory."""

    path: str = ""
    recursive: bool = False
    include_entry: bool = False


class FilesystemEvent(Message, frozen=True):
    """What happened to a name."""

    name: str
    type: str
    entry: EntryInfo | None = None


class WatchMessage(Message, frozen=True):
    """One message of the stream of a watch."""

    start: Empty | None = None
    filesystem: FilesystemEvent | None = None
    keepalive: Empty | None = None


class WatcherRequest(Message, frozen=True):
    """A request about a watcher."""

    watcher_id: str = ""


class WatcherReply(Message, frozen=True):
    """A new watcher."""

    watcher_id: str


class EventsReply(Message, frozen=True):
    """What happened since the last time."""

    events: tuple[FilesystemEvent, ...]


def entry_info(entry: FileEntry) -> EntryInfo:
    """Return an entry as it is told."""
    return EntryInfo(
        name=_text(entry.name),
        type=_TYPES[entry.kind],
        path=_text(entry.path),
        size=str(entry.size),
        mode=entry.mode,
        permissions=entry.permissions,
        owner=_text(entry.owner),
        group=_text(entry.group),
        modified_time=time_of(entry.modified_ns),
        symlink_target=None if entry.target is None else _text(entry.target),
        metadata=entry.metadata,
        is_symlink=entry.kind == "symlink",
    )


def time_of(nanoseconds: int) -> str:
    """Return a time since the epoch as RFC 3339 has it; the ends of its calendar for what lies beyond them."""
    seconds, rest = divmod(nanoseconds, _NS)
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        moment, rest = datetime.max if seconds > 0 else datetime.min, 0
    return f"{moment.strftime('%Y-%m-%dT%H:%M:%S').rjust(19, '0')}.{rest:09d}Z"


def _text(text: str) -> str:
    return paths.to_json(text)[0]


# Methods


async def stat(call: Call, request: PathRequest) -> EntryReply:
    """Look at an entry."""
    return EntryReply(entry=entry_info(await act(call, lambda files: files.stat(request.path))))


async def make_dir(call: Call, request: PathRequest) -> EntryReply:
    """Make a directory and those above it."""
    return EntryReply(entry=entry_info(await act(call, lambda files: files.make_directory(request.path))))


async def move(call: Call, request: MoveRequest) -> EntryReply:
    """Rename an entry."""
    moved = await act(call, lambda files: files.move(request.source, request.destination))
    return EntryReply(entry=entry_info(moved))


async def list_dir(call: Call, request: ListRequest) -> ListReply:
    """List a directory."""
    return await act(call, partial(_listed, request))


def _listed(request: ListRequest, files: Filesystem) -> ListReply:
    return ListReply(entries=tuple(entry_info(entry) for entry in files.entries(request.path, request.depth)))


async def remove(call: Call, request: PathRequest) -> Empty:
    """Remove an entry and all below it."""
    await act(call, lambda files: files.remove(request.path))
    return Empty()


async def watch_dir(call: Call, request: WatchRequest, emit: Emit) -> None:
    """Send what happens in a directory, until the caller hangs up or the execution ends."""
    with call.tables.watches.counted(call.sandbox):
        watch = await act(call, partial(_watched, request))
        try:
            await emit(WatchMessage(start=Empty()))
            while await readable(watch):
                for event in await call.threads.slow(partial(watch.read, entries=request.include_entry)):
                    await emit(WatchMessage(filesystem=_event(event)))
            raise ended()
        finally:
            watch.close()


def _watched(request: WatchRequest, files: Filesystem) -> Watch:
    return files.watch(request.path, request.recursive)


def _event(event: WatchEvent) -> FilesystemEvent:
    return FilesystemEvent(
        name=_text(event.name),
        type=f"EVENT_TYPE_{event.type.upper()}",
        entry=None if event.entry is None else entry_info(event.entry),
    )


def keepalive() -> Message:
    """Return what a silent stream sends now and then."""
    return WatchMessage(keepalive=Empty())


async def create_watcher(call: Call, request: WatchRequest) -> WatcherReply:
    """Watch a directory for somebody who will ask what happened."""
    with call.tables.watches.counted(call.sandbox) as keep:
        watch = await act(call, partial(_watched, request))
        watcher_id = call.tables.watches.keep(call, watch, entries=request.include_entry)
        keep()
    return WatcherReply(watcher_id=watcher_id)


async def get_watcher_events(call: Call, request: WatcherRequest) -> EventsReply:
    """Return what happened since the last time."""
    events = await call.tables.watches.find(call.sandbox, request.watcher_id).taken()
    return EventsReply(events=tuple(map(_event, events)))


async def remove_watcher(call: Call, request: WatcherRequest) -> Empty:
    """End a watcher."""
    await call.tables.watches.remove(call.sandbox, request.watcher_id)
    return Empty()


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "Stat": Unary(PathRequest, stat),
        "MakeDir": Unary(PathRequest, make_dir),
        "Move": Unary(MoveRequest, move),
        "ListDir": Unary(ListRequest, list_dir),
        "Remove": Unary(PathRequest, remove),
        "WatchDir": ServerStream(WatchRequest, watch_dir, keepalive),
        "CreateWatcher": Unary(WatchRequest, create_watcher),
        "GetWatcherEvents": Unary(WatcherRequest, get_watcher_events),
        "RemoveWatcher": Unary(WatcherRequest, remove_watcher),
    }
)
