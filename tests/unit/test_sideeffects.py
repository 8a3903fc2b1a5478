"""The side-effects report never claims more than is known."""

from collections.abc import Sequence

import pytest

from flux.core.changeset import Flow
from flux.core.policy import BLOCKED, Egress, classify
from flux.core.sideeffects import destination, report

PORTS = classify("ports", [443])
OPEN = Egress(reach="unrestricted")
POSSIBLE = "possible traffic to tcp/443 (port allow-list only, any host): recorded, never replayed"
UNENFORCED = "the declared network was not enforced: external effects are unknown"

ALLOWED = Flow(proto="tcp", dst="140.82.112.6", port=443, name="api.github.com", verdict="allowed", connections=2)
ALLOWED_V6 = Flow(proto="tcp", dst="2001:db8::1", port=443, verdict="allowed")
ALLOWED_ICMP = Flow(proto="icmp", dst="192.0.2.1", verdict="allowed", connections=3)
REFUSED = Flow(proto="udp", dst="192.0.2.1", port=53, verdict="refused", connections=4)


@pytest.mark.parametrize(
    ("egress", "enforced", "observed", "lines"),
    [
        (BLOCKED, True, None, []),
        (BLOCKED, True, [], []),
        (BLOCKED, True, [REFUSED], []),
        (BLOCKED, False, None, [UNENFORCED]),
        (BLOCKED, False, [ALLOWED_ICMP], ["3 icmp packet(s) to 192.0.2.1: happened, never replayed"]),
        (PORTS, True, None, [POSSIBLE]),
        (PORTS, False, None, [POSSIBLE, UNENFORCED]),
        (PORTS, True, [], []),
        (
            PORTS,
            True,
            [ALLOWED, REFUSED, ALLOWED_V6],
            [
                "2 connection(s) to api.github.com:443: happened, never replayed",
                "1 connection(s) to [2001:db8::1]:443: happened, never replayed",
            ],
        ),
        (OPEN, True, None, ["external effects are unknown"]),
        (OPEN, False, None, ["external effects are unknown"]),
        (OPEN, True, [ALLOWED], ["2 connection(s) to api.github.com:443: happened, never replayed"]),
    ],
)
def test_wording(egress: Egress, enforced: bool, observed: Sequence[Flow] | None, lines: list[str]) -> None:
    result = report(egress, enforced=enforced, observed=observed, changes=3, place="/work")
    assert result.egress == egress.reach
    assert result.enforced is enforced
    assert result.destinations == list(egress.destinations)
    assert result.observed == observed
    assert result.replayable == ["3 file changes under /work"]
    assert result.non_replayable == lines


def test_nothing_changed_is_nothing_to_replay() -> None:
    assert report(BLOCKED, enforced=True, observed=[], changes=0, place="/").replayable == []


@pytest.mark.parametrize(
    ("flow", "shown"), [(ALLOWED, "api.github.com:443"), (ALLOWED_V6, "[2001:db8::1]:443"), (ALLOWED_ICMP, "192.0.2.1")]
)
def test_destinations(flow: Flow, shown: str) -> None:
    assert destination(flow) == shown
