"""From what E2B's SDK asks for to a sandbox of ours; what would mean something else here is refused (spec: e2b, §3)."""

from __future__ import annotations

from flux.api.e2b.endpoint import Call
from flux.api.e2b.errors import Unsupported
from flux.api.e2b.shapes import Network, NewSandbox
from flux.core.errors import Code, FluxError
from flux.core.requests import CreateSandbox

_EVERYWHERE = frozenset({"0.0.0.0/0", "::/0"})


def creation(call: Call, body: NewSandbox, timeout_seconds: int) -> CreateSandbox:
    """Return the request that a body comes to; ``timeout_seconds``: where it has none.

    Raises:
        FluxError: ``invalid``; ``Unsupported`` for what only E2B has.
    """
    _refuse_unsupported(body)
    if body.network is not None:
        _refuse_traffic(body.network, call.domain)
    ttl = timeout_seconds if body.timeout is None else body.timeout
    if ttl < 1:
        raise FluxError(
            Code.INVALID,
            f"cannot create the sandbox: timeout is {ttl}, and at least 1 second is needed",
            {"field": "timeout"},
        )
    snapshot = _snapshot(call, body.template_id)
    return CreateSandbox(
        template=body.template_id if snapshot is None else None,
        snapshot=snapshot,
        environment=body.env_vars or {},
        metadata=body.metadata or {},
        ttl_seconds=ttl,
        on_timeout="pause" if body.auto_pause else "kill",
        auto_resume=body.auto_resume is not None and body.auto_resume.enabled,
        internet=_wants_internet(body) and call.platform.connects(),
        public_ports=body.network is None or body.network.allow_public_traffic is not False,
    )


def _snapshot(call: Call, template: str) -> str | None:
    """Return the id of the snapshot that a template's id or name stands for, ``None`` if it is none."""
    if call.platform.has_template(template):
        return None
    try:
        found = call.platform.get_artifact(call.actor, template)
    except FluxError as error:
        if error.code is Code.NOT_FOUND:
            return None
        raise
    return found.id if found.kind == "snapshot" else None


def _refuse_unsupported(body: NewSandbox) -> None:
    if body.mcp is not None:
        raise _unsupported("mcp")
    if body.iam and body.iam.get("tokens", body.iam):
        raise _unsupported("iam")
    if body.volume_mounts:
        raise _unsupported("volumeMounts")
    if body.secure is False:
        raise _unsupported("secure: false", "every sandbox has an access token; leave it out")
    if body.network is not None:
        refuse_rules(body.network)


def _refuse_traffic(network: Network, domain: str | None) -> None:
    """Refuse to keep strangers from ports that nobody reaches."""
    if network.allow_public_traffic is False and domain is None:
        raise Unsupported(
            "give a sandbox network.allowPublicTraffic",
            "its ports have no public names unless the daemon's e2b.domain is set: set it, or leave this out",
        )


def refuse_rules(network: Network) -> None:
    """Refuse what cannot be enforced of a network's rules; denying everything can be."""
    rules = {
        "allowOut": bool(network.allow_out),
        "denyOut": bool(network.deny_out) and not denies_all(network),
        "dnsServers": bool(network.dns_servers),
        "egressProxy": network.egress_proxy is not None,
        "maskRequestHost": network.mask_request_host is not None,
        "httpsPorts": bool(network.https_ports),
        "rules": bool(network.rules),
    }
    for name, given in rules.items():
        if given:
            raise Unsupported(
                f"give a sandbox network.{name}", "it has the internet or nothing: set allow_internet_access"
            )


def _wants_internet(body: NewSandbox) -> bool:
    denied = body.network is not None and denies_all(body.network)
    return body.allow_internet_access is not False and not denied


def denies_all(network: Network) -> bool:
    """Tell whether a network's rules deny all of the internet."""
    return "0.0.0.0/0" in (network.deny_out or ()) and _EVERYWHERE.issuperset(network.deny_out or ())


def _unsupported(option: str, instead: str = "leave it out") -> Unsupported:
    return Unsupported(f"create a sandbox with {option}", instead)
