"""Roles, ownership, and that every operation has a row."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from flux.api.operations import OPERATIONS
from flux.core import access
from flux.core.access import ROLES, Actor, Role
from flux.core.errors import Code, FluxError

DECISIONS = ("changeset.approve", "changeset.reject", "changeset.apply", "changeset.revert", "changeset.rerun")


def actor(role: Role, key: str | None = "ky1") -> Actor:
    return Actor(name="ann", role=role, key_id=key)


def refused(role: Role, operations: Iterable[str]) -> list[str]:
    def passes(operation: str) -> bool:
        try:
            access.permit(actor(role), operation)
        except FluxError:
            return False
        return True

    return [operation for operation in operations if not passes(operation)]


def test_every_operation_of_the_api_has_its_roles_and_no_other() -> None:
    assert set(ROLES) == set(OPERATIONS)


def test_an_administrator_may_do_everything() -> None:
    assert refused(Role.ADMIN, ROLES) == []


@pytest.mark.parametrize("operation", DECISIONS)
@pytest.mark.parametrize("role", [Role.AGENT, Role.USER])
def test_an_agent_and_a_user_never_decide(role: Role, operation: str) -> None:
    with pytest.raises(FluxError) as caught:
        access.permit(actor(role), operation)
    assert caught.value.code is Code.DENIED
    assert caught.value.details["allowed"] == ["admin", "reviewer"]


@pytest.mark.parametrize("operation", DECISIONS)
def test_a_reviewer_decides(operation: str) -> None:
    assert refused(Role.REVIEWER, [operation]) == []


@pytest.mark.parametrize(
    "operation", ["sandbox.create", "sandbox.exec", "files.write", "sandbox.speculate", "keys.list"]
)
def test_a_reviewer_runs_and_changes_nothing(operation: str) -> None:
    with pytest.raises(FluxError):
        access.permit(actor(Role.REVIEWER), operation)


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.ADMIN])
def test_keys_are_for_administrators(role: Role) -> None:
    for operation in ("keys.create", "keys.list", "keys.revoke", "doctor"):
        with pytest.raises(FluxError):
            access.permit(actor(role), operation)


def test_an_agent_speculates_and_a_user_does_not() -> None:
    access.permit(actor(Role.AGENT), "sandbox.speculate")
    with pytest.raises(FluxError):
        access.permit(actor(Role.USER), "sandbox.speculate")


@pytest.mark.parametrize(
    ("role", "key", "owner", "seen"),
    [
        (Role.ADMIN, None, None, True),
        (Role.ADMIN, None, "ky2", True),
        (Role.REVIEWER, "ky1", "ky2", True),
        (Role.AGENT, "ky1", "ky1", True),
        (Role.AGENT, "ky1", "ky2", False),
        (Role.AGENT, "ky1", None, False),
        (Role.USER, "ky1", "ky1", True),
        (Role.USER, None, None, False),
    ],
)
def test_who_sees_whose(role: Role, key: str | None, owner: str | None, seen: bool) -> None:
    assert access.sees(actor(role, key), owner) is seen
