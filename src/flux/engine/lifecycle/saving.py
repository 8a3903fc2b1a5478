"""Saving a generation's own layer, and laying out a new generation over saved ones (spec: generations, §6)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import msgspec

from flux.core import paths
from flux.core.errors import Code, FluxError
from flux.core.manifest import Manifest
from flux.core.sandbox import Sandbox
from flux.engine.context import Context
from flux.engine.lifecycle import generations, launch
from flux.engine.lifecycle.generations import STACK, Stack
from flux.failpoints import Point
from flux.ports.substrate import Instance
from flux.store.places import UPPER, WORK
from flux.store.state import DIRECTORY
from flux.trees import metadata
from flux.trees.engines.duplicate import Duplication
from flux.trees.journal import Attributes
from flux.trees.layers import merge
from flux.trees.layers.describe import Described, describe, look, normal, prefix_of, seal_of
from flux.trees.layers.names import complete_names
from flux.trees.layers.store import TREE
from flux.trees.privilege import is_privileged

#: In a generation's directory while its layer is, or may be, a saved one: that layer's id.
SAVED = "saved"


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What a capture came to: layers nearest first, bytes of all contents, bytes that are new."""

    layers: tuple[str, ...]
    size: int
    stored: int


def upper(context: Context, sandbox_id: str, generation: int) -> str:
    """Return the path of a generation's own layer."""
    return f"{context.stores.places.generation(sandbox_id, generation)}/{UPPER}"


def lay_out(context: Context, sandbox: Sandbox, generation: int, stack: Stack) -> None:
    """Complete a new generation's directory, durably: what it lies on, and a root like the one that was saved."""
    with _opened(context, sandbox.id, generation) as directory:
        if stack.layers:
            _settle_root(context, directory, stack.layers[0])
        if stack.layers or not sandbox.built_in:  # else the template is laid into it first, and that is a change
            root = _look_at_root(directory)
            stack = msgspec.structs.replace(stack, root=root)
        _write(context, directory, STACK, msgspec.json.encode(stack))
        context.files.sync_file(Point.SANDBOX_WRITE, directory)
    context.stores.places.sync_sandbox(sandbox.id)
    if sandbox.built_in:
        generations.overlay(context, sandbox, generation)
    if not sandbox.built_in and not os.path.isdir(sandbox.lower):
        raise FluxError(
            Code.UNAVAILABLE,
            f"cannot start the sandbox {sandbox.id}: its template {paths.printable(sandbox.lower)[:200]} is not on "
            "this machine; bring it back, or start the sandbox where it is",
            {"template": sandbox.template},
        )


def _settle_root(context: Context, directory: int, layer_id: str) -> None:
    held = os.open(context.layers.tree(layer_id), DIRECTORY)
    try:
        wanted = metadata.read((held, "."))[1]
    finally:
        os.close(held)
    wanted = Attributes(wanted.mode, wanted.uid, wanted.gid, wanted.mtime_ns, _own(wanted.xattrs))
    spot = (directory, UPPER)
    metadata.settle(context.files, Point.SANDBOX_WRITE, spot, metadata.read(spot)[1], wanted)


def _own(xattrs: dict[str, bytes]) -> dict[str, bytes]:
    """Return what a user may have set: a new layer's root hides nothing and stands for no other directory."""
    prefix = prefix_of(privileged=is_privileged())
    return {key: value for key, value in xattrs.items() if not key.startswith(prefix)}


def _look_at_root(directory: int) -> str:
    held = os.open(UPPER, DIRECTORY, dir_fd=directory)
    try:
        return normal({paths.ROOT: look(held)[paths.ROOT]}, prefix_of(privileged=is_privileged()))[paths.ROOT]
    finally:
        os.close(held)


def move_layer(context: Context, sandbox: Sandbox, generation: int) -> Saved:
    """Make the layer of a generation that stands still the nearest one of an artifact."""
    with _opened(context, sandbox.id, generation) as directory:
        stack = generations.read(context, sandbox.id, generation)
        found = _describe(context, sandbox, generation, directory)
        if _is_unchanged(found.layer.entries, stack):
            return _saved(context, stack.layers, 0)
        _write(context, directory, SAVED, found.layer_id.encode())
        context.files.sync_filesystem(Point.LAYER_WRITE, directory)
        new = not context.layers.has(found.layer_id)
        context.layers.adopt(found.layer, found.seal, directory, UPPER)
        stored = found.layer.size if new else 0
        return _saved(context, _stacked(context, found, stack), stored)


def copy_layer(context: Context, sandbox: Sandbox, generation: int) -> Saved:
    """Copy the layer of a generation that stands still; it stays in use. Extents are shared where that is possible."""
    with _opened(context, sandbox.id, generation) as directory:
        stack = generations.read(context, sandbox.id, generation)
        found = _describe(context, sandbox, generation, directory)
        if _is_unchanged(found.layer.entries, stack):
            return _saved(context, stack.layers, 0)
        stored = 0
        if not context.layers.has(found.layer_id):
            _copy(context, directory, found)
            stored = found.layer.size
        return _saved(context, _stacked(context, found, stack), stored)


def _stacked(context: Context, found: Described, stack: Stack) -> tuple[str, ...]:
    """Return the layers of an artifact. Only those that nobody writes to any more are merged."""
    return (found.layer_id, *merge.merged(context.layers, context.files, stack.layers))


def _is_unchanged(entries: Manifest, stack: Stack) -> bool:
    return bool(stack.root) and entries == {paths.ROOT: stack.root}


def _saved(context: Context, layers: tuple[str, ...], stored: int) -> Saved:
    return Saved(layers=layers, size=sum(context.layers.size(layer) for layer in layers), stored=stored)


def _describe(context: Context, sandbox: Sandbox, generation: int, directory: int) -> Described:
    prefix = prefix_of(privileged=is_privileged())
    held = os.open(UPPER, DIRECTORY, dir_fd=directory)
    try:
        index = f"{context.stores.places.generation(sandbox.id, generation)}/{WORK}/index"

        def mounted() -> AbstractContextManager[Instance]:
            return context.instances.live(
                sandbox.id, generation, lambda: launch.start_generation(context, sandbox, generation)
            )

        complete_names(held, index, prefix, context.files, mounted)
        return describe(held, prefix)
    finally:
        os.close(held)


def _copy(context: Context, directory: int, found: Described) -> None:
    source = os.open(UPPER, DIRECTORY, dir_fd=directory)
    draft = context.layers.draft()
    try:
        holder = os.open(draft, DIRECTORY)
        try:
            context.files.make_directory(Point.LAYER_WRITE, holder, TREE)
            target = os.open(TREE, DIRECTORY, dir_fd=holder)
        finally:
            os.close(holder)
        try:
            entries = {paths.from_portable(path): token for path, token in found.layer.entries.items()}
            Duplication(source, entries, target, context.files).run([])
            seal = seal_of(look(target))
        finally:
            os.close(target)
        context.layers.publish(draft, found.layer, seal)
    except BaseException:
        context.layers.discard(draft)
        raise
    finally:
        os.close(source)


def bring_back(context: Context, sandbox_id: str, generation: int) -> None:
    """Undo ``move_layer`` for a generation that is to run on; nothing happens if its layer is where it belongs.

    Another artifact may have come to need the same layer, if it holds the very same; that one gets a copy.
    """
    try:
        with _opened(context, sandbox_id, generation) as directory:
            noted = _read(directory, SAVED)
            if noted is None:
                return
            layer_id = noted.decode("ascii", "replace")
            if not _exists(directory, UPPER):
                _return(context, sandbox_id, generation, layer_id, directory)
            context.files.unlink(Point.SANDBOX_WRITE, directory, SAVED)
            context.files.sync_file(Point.SANDBOX_WRITE, directory)
    except FileNotFoundError:
        return


def _return(context: Context, sandbox_id: str, generation: int, layer_id: str, directory: int) -> None:
    with context.layers.alone():
        needed = False
        for artifact_id in context.layers.artifacts():
            artifact = context.layers.read_artifact(artifact_id)
            if (artifact.sandbox_id, artifact.generation, artifact.kind) == (sandbox_id, generation, "suspend"):
                context.layers.remove_artifact(artifact_id)  # it was never named
            else:
                needed |= layer_id in artifact.layers
        layer, seal = context.layers.read(layer_id), context.layers.seal(layer_id)
        context.layers.give_back(layer_id, directory, UPPER)
        if needed:
            _copy(context, directory, Described(layer=layer, seal=seal, layer_id=layer_id))


def _write(context: Context, directory: int, name: str, data: bytes) -> None:
    draft = f".{name}"
    if _exists(directory, draft):
        context.files.unlink(Point.SANDBOX_WRITE, directory, draft)
    descriptor = context.files.create(Point.SANDBOX_WRITE, directory, draft)
    try:
        context.files.write(Point.SANDBOX_WRITE, descriptor, data)
        context.files.sync_file(Point.SANDBOX_WRITE, descriptor)
    finally:
        os.close(descriptor)
    context.files.rename(Point.SANDBOX_WRITE, directory, draft, directory, name)


def _read(directory: int, name: str) -> bytes | None:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def _exists(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


@contextmanager
def _opened(context: Context, sandbox_id: str, generation: int) -> Iterator[int]:
    descriptor = os.open(context.stores.places.generation(sandbox_id, generation), DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
