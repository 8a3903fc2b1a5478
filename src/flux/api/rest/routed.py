"""How forwarded requests name the execution that they are for, and who asks (spec: generations, §6).

``Authorization: Flux-Route <sandbox>.<generation>.<credential>``: the credential is one execution's own, and ends with
it.
``Flux-Actor``: who asks, as JSON; believed because whoever has the credential has it from the node itself.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec

from flux.core.access import Actor
from flux.core.errors import Code, FluxError
from flux.core.route import GENERATION_MAX

if TYPE_CHECKING:
    from flux.core.control import Located

SCHEME = "flux-route"
ACTOR_HEADER = b"flux-actor"
_GENERATION_DIGITS = len(str(GENERATION_MAX))


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """What a forwarded request carries: the execution that it is for, and what proves that it comes from its owner."""

    sandbox_id: str
    generation: int
    credential: str


def headers_of(located: Located, actor: Actor) -> dict[str, str]:
    """Return the headers of a request that is forwarded to a sandbox's node."""
    # Python's own encoder escapes what a header cannot hold.
    told = json.dumps(msgspec.to_builtins(actor))
    return {
        "authorization": f"Flux-Route {located.sandbox_id}.{located.generation}.{located.credential}",
        ACTOR_HEADER.decode(): told,
    }


def read_pass(header: str | None) -> Pass:
    """Return what an ``Authorization`` header carries.

    Raises:
        FluxError: ``unauthenticated`` if it is none of a forwarded request.
    """
    scheme, _, token = (header or "").partition(" ")
    parts = token.strip().split(".")
    if scheme.lower() != SCHEME or len(parts) != 3 or not _is_generation(parts[1]):
        raise FluxError(
            Code.UNAUTHENTICATED,
            "cannot serve this request: a node serves only what its control plane forwards; ask the control plane",
        )
    return Pass(sandbox_id=parts[0], generation=int(parts[1]), credential=parts[2])


def _is_generation(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _GENERATION_DIGITS


def read_actor(header: str | None) -> Actor:
    """Return who asks. Raises ``FluxError`` ``invalid``."""
    try:
        return msgspec.json.decode(header or "", type=Actor)
    except (msgspec.DecodeError, RecursionError):
        raise FluxError(Code.INVALID, "cannot tell who asks: the header Flux-Actor is not an actor's JSON") from None
