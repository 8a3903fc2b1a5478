"""The directories of changesets: written aside, made durable, renamed into place (spec: speculation).

``<id>/meta.json`` is the truth about a changeset's state and is replaced as a whole; ``changes.json`` and ``base.json``
are written once. ``blobs/`` holds one file per staged file, ``preimages/`` what text diffs need of the base.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import msgspec

from flux.core.changeset import Changes, Changeset
from flux.core.errors import Code, FluxError
from flux.failpoints import Point
from flux.ports.files import Files
from flux.store import whole
from flux.store.errors import from_os
from flux.store.removal import remove_tree
from flux.store.state import DIRECTORY, StateDirectory, names_in

T = TypeVar("T")

META = "meta.json"
CHANGES = "changes.json"
BASE = "base.json"
REQUEST = "request.json"
BLOBS = "blobs"
PREIMAGES = "preimages"

_record = msgspec.json.Decoder(Changeset)
_changes = msgspec.json.Decoder(Changes)


class Draft:
    """A changeset that is being written, under a name that no reader looks at.

    ``directory``, ``blobs`` and ``preimages`` are open directories; ``close`` closes them and removes what was not
    published.
    """

    def __init__(self, changeset_id: str, parent: int, files: Files) -> None:
        self.id = changeset_id
        self.name = f".{changeset_id}.new"
        self._parent = parent
        self._files = files
        self._published = False
        self._descriptors: list[int] = []
        files.make_directory(Point.CHANGESET_WRITE, parent, self.name, 0o700)
        try:
            self.directory = self._open(parent, self.name)
            for name in (BLOBS, PREIMAGES):
                files.make_directory(Point.CHANGESET_WRITE, self.directory, name, 0o700)
            self.blobs = self._open(self.directory, BLOBS)
            self.preimages = self._open(self.directory, PREIMAGES)
        except BaseException:
            self.close()
            raise

    def _open(self, parent: int, name: str) -> int:
        descriptor = os.open(name, DIRECTORY, dir_fd=parent)
        self._descriptors.append(descriptor)
        return descriptor

    def publish(self, record: Changeset, changes: Changes, base: bytes, request: bytes | None) -> None:
        """Write the descriptions, make all of it durable and let readers see it. Raises ``OSError``."""
        step = Point.CHANGESET_WRITE
        parts = {CHANGES: msgspec.json.encode(changes), BASE: base, META: msgspec.json.encode(record)}
        if request is not None:
            parts[REQUEST] = request
        for name, data in parts.items():
            whole.write_new(self._files, step, self.directory, name, data, durable=False)
        self._files.sync_filesystem(step, self.directory)
        self._files.rename_new(Point.CHANGESET_PUBLISH, self._parent, self.name, self._parent, self.id)
        self._published = True
        self._files.sync_file(Point.CHANGESET_PUBLISH, self._parent)

    def close(self) -> None:
        """Close the descriptors, and remove what was not published. Idempotent."""
        while self._descriptors:
            os.close(self._descriptors.pop())
        if not self._published:
            self._published = True
            remove_tree(self._files, Point.CHANGESET_DELETE, self._parent, self.name)


class Changesets:
    """All changesets of a state directory, by id."""

    def __init__(self, state: StateDirectory, files: Files) -> None:
        self._directory = state.changesets
        self._files = files

    @contextmanager
    def draft(self, changeset_id: str) -> Iterator[Draft]:
        """Begin a changeset; leaving the block without ``publish`` removes it."""
        try:
            draft = Draft(changeset_id, self._directory, self._files)
        except OSError as error:
            raise from_os(error, "begin a changeset") from error
        try:
            yield draft
        finally:
            draft.close()

    def publish(
        self, draft: Draft, record: Changeset, changes: Changes, base: bytes, request: bytes | None = None
    ) -> None:
        """Publish a draft, with the encoded request that it comes from if there was one.

        Raises:
            FluxError: ``exhausted`` or ``unavailable``; recovery or the draft's end removes what was written.
        """
        try:
            draft.publish(record, changes, base, request)
        except OSError as error:
            raise from_os(error, f"write the changeset {record.id}") from error

    def exists(self, changeset_id: str) -> bool:
        """Tell whether a changeset was published and not deleted."""
        try:
            os.stat(f"{changeset_id}/{META}", dir_fd=self._directory, follow_symlinks=False)
        except OSError:
            return False
        return True

    @contextmanager
    def opened(self, changeset_id: str) -> Iterator[int]:
        """Hold a changeset's directory open.

        Raises:
            FluxError: ``not_found``.
        """
        try:
            descriptor = os.open(changeset_id, DIRECTORY, dir_fd=self._directory)
        except OSError as error:
            raise _lost(changeset_id, error) from error
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def read(self, changeset_id: str) -> Changeset:
        """Return a changeset's record."""
        return _decoded(_record, changeset_id, META, self._read(changeset_id, META))

    def read_changes(self, changeset_id: str) -> Changes:
        """Return all that the speculation changed."""
        return _decoded(_changes, changeset_id, CHANGES, self._read(changeset_id, CHANGES))

    def read_base(self, changeset_id: str) -> bytes:
        """Return the encoded manifest that the speculation started from."""
        return self._read(changeset_id, BASE)

    def read_request(self, changeset_id: str) -> bytes | None:
        """Return the encoded request that a changeset comes from, ``None`` if it comes from none."""
        with self.opened(changeset_id) as directory:
            try:
                return whole.read(directory, REQUEST)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise _lost(changeset_id, error) from error

    def _read(self, changeset_id: str, name: str) -> bytes:
        with self.opened(changeset_id) as directory:
            try:
                return whole.read(directory, name)
            except OSError as error:
                raise _lost(changeset_id, error) from error

    def replace(self, record: Changeset, step: Point = Point.CHANGESET_STATE) -> None:
        """Replace a changeset's record durably.

        Raises:
            FluxError: ``exhausted`` or ``unavailable``; which record counts is then what ``read`` returns.
        """
        with self.opened(record.id) as directory:
            try:
                whole.replace(self._files, step, directory, META, msgspec.json.encode(record))
            except OSError as error:
                raise from_os(error, f"record the changeset {record.id} as {record.state}") from error

    def drop(self, changeset_id: str, *names: str) -> None:
        """Remove parts of a changeset's directory, such as its blobs; absent ones are no error."""
        with self.opened(changeset_id) as directory:
            try:
                for name in names:
                    remove_tree(self._files, Point.CHANGESET_DROP, directory, name)
            except OSError as error:
                raise from_os(error, f"drop {', '.join(names)} of the changeset {changeset_id}") from error

    def delete(self, changeset_id: str) -> None:
        """Remove a changeset, published or not."""
        try:
            for name in (changeset_id, f".{changeset_id}.new"):
                remove_tree(self._files, Point.CHANGESET_DELETE, self._directory, name)
            self._files.sync_file(Point.CHANGESET_DELETE, self._directory)
        except OSError as error:
            raise from_os(error, f"delete the changeset {changeset_id}") from error

    def ids(self) -> list[str]:
        """Return the ids of all published changesets, sorted."""
        names = names_in(self._directory)
        return sorted(name for name in names if not name.startswith("."))

    def drafts(self) -> list[str]:
        """Return the ids of changesets whose writing was never finished."""
        names = names_in(self._directory)
        return sorted(name[1 : -len(".new")] for name in names if name.startswith(".") and name.endswith(".new"))

    def open_blob(self, changeset_id: str, name: str, part: str = BLOBS) -> int | None:
        """Open a staged file (or a pre-image) for reading; ``None`` if it was dropped."""
        with self.opened(changeset_id) as directory, suppress(FileNotFoundError):
            holder = os.open(part, DIRECTORY, dir_fd=directory)
            try:
                return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=holder)
            finally:
                os.close(holder)
        return None


def _lost(changeset_id: str, error: OSError) -> FluxError:
    if isinstance(error, FileNotFoundError):
        return FluxError(Code.NOT_FOUND, f"cannot find the changeset {changeset_id}: there is none with that id")
    return from_os(error, f"read the changeset {changeset_id}")


def _decoded(decoder: msgspec.json.Decoder[T], changeset_id: str, name: str, data: bytes) -> T:
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        raise FluxError(
            Code.INTERNAL, f"cannot read the changeset {changeset_id}: its file {name} is damaged ({error})"
        ) from error
