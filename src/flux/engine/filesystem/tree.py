"""The files of one running sandbox, opened for one call: every path of it, walked by descriptors."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from flux.core import paths
from flux.core.errors import Code, FluxError
from flux.core.paths import printable
from flux.core.sandbox import HOME, TEMPORARY, WORK, Sandbox
from flux.engine.context import Context
from flux.engine.filesystem import names
from flux.engine.filesystem.names import Owners
from flux.engine.lifecycle import launch, spots, users
from flux.engine.lifecycle.roots import Root
from flux.engine.lifecycle.spots import DIRECTORY, HANDLE, Spot
from flux.engine.lifecycle.users import User
from flux.failpoints import Point
from flux.ports.substrate import Instance

PARENT = HANDLE | os.O_DIRECTORY
_LINKS_MAX = 40
_STEP = Point.FILE_WRITE


class Tree:
    """A sandbox's files while a call has them.

    ``user``: whose paths they are. ``owners``: the sandbox's names of owners. ``instance``: the execution.
    """

    def __init__(self, context: Context, sandbox: Sandbox, root: int, instance: Instance, user: str) -> None:
        self.sandbox = sandbox
        self.instance = instance
        self.root = root
        self.files = context.files
        self.whole = sandbox.layout == "managed"
        self.owners = Owners(root if self.whole else None)
        self.user: User = users.resolve(sandbox, instance, user)
        self._context = context

    def absolute(self, asked: str) -> str:
        """Return the path inside the sandbox that the user means."""
        return names.absolute(asked, self.user.home)

    @contextmanager
    def spot(self, path: str) -> Iterator[Spot]:
        """Hold open where an absolute path lies."""
        if self.whole:
            yield Spot(self.root, path, whole=True)
            return
        with spots.opened(self._context, self.sandbox, path) as found:
            yield found

    def handle(self, path: str, flags: int = HANDLE) -> int:
        """Open what is at a path, following links; by default only to know what it is."""
        with self.spot(path) as spot:
            return spots.resolve(spot, flags)

    def entry(self, path: str) -> int:
        """Open what is at a path itself (``O_PATH``), also if it is a link."""
        if path == paths.ROOT:
            return self.handle(path)
        directory = self.handle(paths.parent(path), PARENT)
        try:
            return os.open(paths.name(path), HANDLE | os.O_NOFOLLOW, dir_fd=directory)
        finally:
            os.close(directory)

    def is_plain(self, descriptor: int) -> bool:
        """Tell whether an entry is the sandbox's own, and not made up by the kernel."""
        return not self.whole or spots.is_plain(self.root, descriptor)

    def refuse_made_up(self, descriptor: int, path: str) -> None:
        """Let an entry pass that Flux may read or change for the sandbox. Raises ``denied``."""
        spots.refuse_made_up(Spot(self.root, path, whole=self.whole), descriptor)

    def parent(self, path: str) -> tuple[int, str]:
        """Open the directory that holds a path, to change it; return it and the entry's name.

        Raises:
            FluxError: ``invalid`` for the root, ``denied`` for what the kernel makes up.
            OSError: it is not there.
        """
        self._refuse_root(path)
        directory = self.handle(paths.parent(path), PARENT)
        try:
            self.refuse_made_up(directory, path)
        except BaseException:
            os.close(directory)
            raise
        return directory, paths.name(path)

    def _refuse_root(self, path: str) -> None:
        if path == paths.ROOT or (not self.whole and path in (WORK, HOME, TEMPORARY)):
            raise FluxError(
                Code.INVALID, f"cannot change the path {printable(path)} of the sandbox: it is where a tree begins"
            )

    def make_parents(self, path: str) -> tuple[int, str]:
        """Do what ``parent`` does, after the directories that are missing were made; they are the user's."""
        try:
            return self.parent(path)
        except FileNotFoundError:
            self._make(paths.parent(path))
            return self.parent(path)

    def _make(self, path: str) -> None:
        """Make a directory and what is missing above it."""
        missing = [path]
        while not self._is_there(paths.parent(missing[-1])):
            missing.append(paths.parent(missing[-1]))
        for place in reversed(missing):
            directory, name = self.parent(place)
            try:
                self.make_one(directory, name)
            except FileExistsError:  # somebody was faster, or a link leads nowhere: opening it tells
                continue
            finally:
                os.close(directory)

    def _is_there(self, path: str) -> bool:
        try:
            os.close(self.handle(path))
        except FileNotFoundError:
            return path == paths.ROOT
        return True

    def make_one(self, directory: int, name: str) -> None:
        """Make one directory, the user's."""
        self.files.make_directory(_STEP, directory, name, 0o755)
        made = os.open(name, DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
        try:
            self.give(made)
            if stat.S_IMODE(os.fstat(made).st_mode) & 0o777 != 0o755:
                os.fchmod(made, 0o755)
        finally:
            os.close(made)

    def give(self, descriptor: int) -> None:
        """Make the user the owner of something new."""
        if os.geteuid() == 0:
            os.fchown(descriptor, self.user.uid, self.user.gid)

    def through_links(self, path: str) -> str:
        """Return where a link at a path leads that leads to nothing yet, as the sandbox sees it."""
        for _ in range(_LINKS_MAX):
            handle = self.entry(path)
            try:
                if not stat.S_ISLNK(os.fstat(handle).st_mode):
                    return path
                target = os.readlink("", dir_fd=handle)
            finally:
                os.close(handle)
            # Not normalised: what ``..`` means is for the kernel to say, as there may be links on the way.
            path = target if target.startswith("/") else paths.join(paths.parent(path), target)
            if not self._entry_is_there(path):
                return path
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))

    def _entry_is_there(self, path: str) -> bool:
        try:
            os.close(self.entry(path))
        except FileNotFoundError:
            return False
        return True


@contextmanager
def opened(context: Context, sandbox: Sandbox, root: Root, user: str) -> Iterator[Tree]:
    """Hold a sandbox's files open for its user; the sandbox's own locks are held already."""
    if root.instance is not None:
        yield Tree(context, sandbox, root.descriptor, root.instance, user)
        return
    with context.instances.live(sandbox.id, sandbox.generation, lambda: launch.start(context, sandbox)) as instance:
        yield Tree(context, sandbox, root.descriptor, instance, user)
