"""What a declared network lets out."""

from typing import Literal

import pytest

from flux.core.errors import Code, FluxError
from flux.core.policy import BLOCKED, UNRESTRICTED, Egress, checked_ports, classify


@pytest.mark.parametrize(
    ("network", "ports", "expected"),
    [
        ("none", [], BLOCKED),
        ("none", [443], BLOCKED),
        ("ports", [], BLOCKED),
        ("internet", [], UNRESTRICTED),
        ("internet", [443], UNRESTRICTED),
        ("ports", [443], Egress(reach="allow_listed", destinations=("tcp/443 (port allow-list only, any host)",))),
        (
            "ports",
            [443, 80, 443],
            Egress(
                reach="allow_listed",
                destinations=(
                    "tcp/80 (port allow-list only, any host)",
                    "tcp/443 (port allow-list only, any host)",
                ),
            ),
        ),
    ],
)
def test_classes(network: Literal["none", "ports", "internet"], ports: list[int], expected: Egress) -> None:
    assert classify(network, ports) == expected


def test_ports_are_sorted_and_unique() -> None:
    assert checked_ports([65535, 1, 1]) == (1, 65535)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_ports_that_do_not_exist_are_named(port: int) -> None:
    with pytest.raises(FluxError, match=str(port)) as caught:
        classify("ports", [80, port])
    assert caught.value.code is Code.INVALID
    assert caught.value.details == {"field": "net_ports", "ports": [port]}
