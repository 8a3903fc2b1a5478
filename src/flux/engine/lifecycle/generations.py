"""What a generation of a managed sandbox is made of, on disk: its own layer, the saved ones, the template (§6).

Nearest first: ``g<generation>/upper``, what this generation writes; the layers of the artifact that it was restored
from (``stack.json``); the template. The built-in template is laid into the first generation's own layer. Later ones
have it below the saved layers, as an overlay of its own over the host's system (``mask``, ``mask-work``): the kernel
takes no layer that lies within another one, and the saved layers lie within the host's ``/``.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from flux.core.errors import Code, FluxError
from flux.core.sandbox import Sandbox
from flux.engine.context import Context
from flux.engine.lifecycle.kinds import substrate
from flux.ports.substrate import Overlay
from flux.store.places import MASK, MASK_WORK, UPPER, WORK

STACK = "stack.json"


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """What a generation lies on. ``artifact_id``: what it was restored from; ``layers``: of it, nearest first.

    ``root``: the manifest token that its own layer's root began with, so that a generation which changed nothing is
    known for one.
    """

    artifact_id: str | None = None
    layers: tuple[str, ...] = ()
    root: str = ""


def read(context: Context, sandbox_id: str, generation: int) -> Stack:
    """Return what a generation lies on; nothing but the template, if nothing else was recorded.

    Raises:
        FluxError: ``internal`` if what was recorded cannot be read.
    """
    path = f"{context.stores.places.generation(sandbox_id, generation)}/{STACK}"
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Stack)
    except FileNotFoundError:
        return Stack()
    except msgspec.MsgspecError as error:
        raise FluxError(
            Code.INTERNAL,
            f"cannot start the sandbox {sandbox_id}: what generation {generation} lies on cannot be read; "
            "its last artifact is intact: pause or stop it, and connect again",
            {"reason": "StackDamaged"},
        ) from error


def overlay(context: Context, sandbox: Sandbox, generation: int) -> Overlay:
    """Return the tree of a generation of a managed sandbox, to be mounted."""
    place = context.stores.places.generation(sandbox.id, generation)
    layers = tuple(context.layers.tree(layer) for layer in read(context, sandbox.id, generation).layers)
    tree = Overlay(lower=layers, upper=f"{place}/{UPPER}", work=f"{place}/{WORK}")
    if not sandbox.built_in:
        return msgspec.structs.replace(tree, lower=(*layers, sandbox.lower))
    if not layers:
        return msgspec.structs.replace(tree, lower=substrate(context, sandbox.kind).base_template(tree.upper))
    return msgspec.structs.replace(tree, below=base_below(context, sandbox, f"{place}/{MASK}", f"{place}/{MASK_WORK}"))


def base_below(context: Context, sandbox: Sandbox, mask: str, work: str, *, throwaway: bool = False) -> Overlay:
    """Return the built-in template as an overlay for others to lie on; it is laid into the directory ``mask``."""
    lower = substrate(context, sandbox.kind).base_template(mask, saved=True)
    return Overlay(lower=lower, upper=mask, work=work, throwaway=throwaway)
