"""Who may call, and where a call is done: one gate for users, one for what a control plane forwards to a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from flux.api.rates import RequestRates, request_rates
from flux.api.rest.access import admit, header
from flux.api.rest.routed import ACTOR_HEADER, Pass, read_actor, read_pass
from flux.core.access import Actor, Role, permit
from flux.core.errors import Code, FluxError

if TYPE_CHECKING:
    from starlette.types import Scope

    from flux.api.operations import Operation
    from flux.api.rest.forward import Forwarder
    from flux.control.platform import Platform
    from flux.control.routed import RoutedPlane
    from flux.core.control import Located


class Gate(Protocol):
    """What every request passes before it is done. Its methods ask a store; they are not for the event loop."""

    #: What answers.
    platform: Platform
    #: Carries requests to other nodes, if there may be any.
    forwarder: Forwarder | None
    #: How often each caller may ask.
    rates: RequestRates

    def admit(self, scope: Scope, operation: Operation, sandbox: str | None) -> Actor:
        """Return who calls. Raises ``FluxError`` ``unauthenticated``, ``denied``."""
        ...

    def elsewhere(self, actor: Actor, operation: Operation, sandbox: str | None) -> Located | None:
        """Return the node that an operation is done on, ``None`` if it is done here."""
        ...


class UserGate:
    """The gate of a control plane: keys, the admin token, the socket's owner.

    Args:
        platform: what answers.
        forwarder: carries requests to other nodes.
        rates: how often each caller may ask; not given: as often as it likes.
    """

    def __init__(
        self, platform: Platform, forwarder: Forwarder | None = None, rates: RequestRates | None = None
    ) -> None:
        self.platform = platform
        self.forwarder = forwarder
        self.rates = rates or request_rates()

    def admit(self, scope: Scope, operation: Operation, sandbox: str | None) -> Actor:
        """Return who calls."""
        return admit(self.platform, scope, operation, self.rates)

    def elsewhere(self, actor: Actor, operation: Operation, sandbox: str | None) -> Located | None:
        """Return the node where the sandbox runs, if that is another process."""
        if self.forwarder is None or not operation.data or sandbox is None:
            return None
        return self.platform.elsewhere(actor, sandbox)


class NodeGate:
    """The gate of a node: its control plane, by the credential of the very execution that a request is for (§6).

    Args:
        plane: the node's data plane.
    """

    forwarder: Forwarder | None = None

    def __init__(self, plane: RoutedPlane) -> None:
        # A node's routes are those of the data plane only, and of that it has everything that a platform has.
        self.platform: Platform = plane  # type: ignore[assignment]
        self._plane = plane
        # The control plane counts what users ask.
        self.rates = request_rates()

    def admit(self, scope: Scope, operation: Operation, sandbox: str | None) -> Actor:
        """Return who asked the control plane."""
        if operation.open:
            return Actor(name="anyone", role=Role.USER)
        given = read_pass(header(scope, b"authorization"))
        self._check(given, sandbox)
        actor = read_actor(header(scope, ACTOR_HEADER))
        permit(actor, operation.name)
        return actor

    def _check(self, given: Pass, sandbox: str | None) -> None:
        if sandbox != f"{given.sandbox_id}.{given.generation}":
            raise FluxError(Code.DENIED, "cannot serve this request: its credential is for another execution")
        self._plane.check_credential(given.sandbox_id, given.generation, given.credential)

    def elsewhere(self, actor: Actor, operation: Operation, sandbox: str | None) -> Located | None:
        """Return that everything is done here."""
        return None
