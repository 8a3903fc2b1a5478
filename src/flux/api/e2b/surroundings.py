"""E2B's routes of what is around a sandbox: its network, and what its template's name means (spec: e2b, §3)."""

from __future__ import annotations

from flux.api.e2b import shapes
from flux.api.e2b.creation import denies_all, refuse_rules
from flux.api.e2b.endpoint import Answer, Call, Row
from flux.api.e2b.errors import Unsupported
from flux.core.errors import Code, FluxError
from flux.core.paths import printable


def set_network(call: Call) -> Answer:
    """Take the rules that a sandbox's network has already; there is no way to change it while it lives."""
    status = call.platform.get_sandbox(call.actor, call.sandbox)
    refuse_rules(call.body)
    if call.body.allow_public_traffic not in (None, status.sandbox.public_ports):
        raise Unsupported(
            f"change who reaches the ports of sandbox {status.sandbox.id}",
            "that is set when it is created, with network.allowPublicTraffic",
        )
    wanted = False if denies_all(call.body) else call.body.allow_internet_access
    if wanted not in (None, status.sandbox.internet):
        raise Unsupported(
            f"change the network of sandbox {status.sandbox.id}",
            "what it may reach is set when it is created, with allow_internet_access",
        )
    return Answer(status=204)


def alias(call: Call) -> Answer:
    """Tell that there is a template of that name, or a snapshot of the caller's."""
    name = call.path["alias"]
    if call.platform.has_template(name):
        return Answer(body={"templateID": name, "public": True})
    found = call.platform.get_artifact(call.actor, name)
    if found.kind != "snapshot":
        raise FluxError(
            Code.NOT_FOUND, f"cannot find the template {printable(name)[:80]!r}: there is none of that name"
        )
    return Answer(body={"templateID": found.id, "public": False})


ROWS = (
    Row(
        method="PUT",
        path="/sandboxes/{sandbox}/network",
        operation="sandbox.network",
        handler=set_network,
        shape=shapes.Network,
    ),
    Row(method="GET", path="/templates/aliases/{alias}", operation="template.get", handler=alias),
)
