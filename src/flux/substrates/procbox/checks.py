"""What procbox needs of a machine, each with the command that gives it (``fluxctl doctor``)."""

from __future__ import annotations

from flux.ports.substrate import Check
from flux.substrates.procbox.cgroups import Hierarchies
from flux.substrates.procbox.host import Host


def find(launcher: str, host: Host, hierarchies: Hierarchies) -> list[Check]:
    """Return the findings."""
    return []
