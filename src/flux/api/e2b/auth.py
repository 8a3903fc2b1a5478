"""Who calls an E2B route: the holder of the key in ``X-API-KEY``, or in ``Authorization: Bearer`` (spec: e2b, §1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flux.api.rest.access import Peer, actor_of, address_of, header
from flux.core.access import Actor
from flux.core.errors import Code, FluxError

if TYPE_CHECKING:
    from starlette.types import Scope

    from flux.api.rest.gate import Gate

_KEY = b"x-api-key"


def caller(gate: Gate, scope: Scope) -> Actor:
    """Return who calls. Asks the store; not for the event loop.

    Raises:
        FluxError: ``unauthenticated``; ``exhausted`` with ``details.rate`` for one who asks too often.
    """
    peer: Peer = scope["state"]["peer"]
    key = header(scope, _KEY)
    if key is not None and peer.uid is None:
        actor = gate.rates.guesses.authenticate(address_of(scope), key.strip(), gate.platform.authenticate)
        gate.rates.check_actor(actor)
        return actor
    if peer.uid is None and header(scope, b"authorization") is None:
        raise FluxError(
            Code.UNAUTHENTICATED,
            "cannot tell who is calling: send a key in the header X-API-KEY; the SDK takes it from E2B_API_KEY, and "
            "fluxctl keys create makes one",
        )
    return actor_of(gate.platform, scope, gate.rates)
