"""Sandboxes: what may be bound, deletion, ownership; keys."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from flux.core.access import Actor, Role
from flux.core.changeset import State
from flux.core.errors import Code
from flux.core.requests import Approve, CreateKey, Exec, MountRequest, Speculate
from flux.core.sandbox import Sandbox
from tests.engine.kit import ADMIN, Kit, refused

USER = Actor(name="eve", role=Role.USER, key_id="ky3")


def agent(kit: Kit, name: str) -> Actor:
    return kit.engine.authenticate(kit.engine.create_key(ADMIN, CreateKey(name=name, role="agent")).secret)


def create(kit: Kit, actor: Actor = ADMIN, **fields: Any) -> Sandbox:
    return kit.sandbox(actor, **fields)


def test_a_sandbox_is_found_by_id_and_name(kit: Kit) -> None:
    made = create(kit, name="box")
    assert kit.get("box") == made
    assert kit.left() == [made.id]
    assert made.id.isalnum() and made.id == made.id.lower()
    kit.reopen()
    assert kit.get("box") == made


@pytest.mark.parametrize("workspace", ["relative", "", "/", "/nowhere/at/all", "/etc/hostname", "/a\0b"])
def test_what_cannot_be_bound(kit: Kit, workspace: str) -> None:
    with refused(Code.INVALID) as error:
        create(kit, workspace=workspace)
    assert error.value.message.startswith("cannot bind the workspace")
    assert os.listdir(kit.state / "sandboxes") == []


@pytest.mark.parametrize("place", ["state", "state/changesets", "."])
def test_a_workspace_never_overlaps_the_state_directory(kit: Kit, place: str) -> None:
    with refused(Code.INVALID) as error:
        create(kit, workspace=str(kit.state.parent / place))
    assert "state directory" in error.value.message


def test_a_link_to_the_state_directory_does_not_hide_it(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(kit.state)
    with refused(Code.INVALID):
        create(kit, workspace=str(tmp_path / "link"))


def test_a_link_to_a_workspace_binds_what_it_names(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(kit.work)
    assert create(kit, workspace=str(tmp_path / "link")).directory == str(kit.work)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "nothing"},
        {"name": "no good"},
        {"net_ports": [0]},
        {"net_ports": [70000]},
        {"environment": {"A B": "x"}},
        {"metadata": {"k": "\udcff"}},
        {"memory_mib": 0},
        {"memory_mib": (1 << 40) + 1},
        {"pids": -1},
        {"pids": 1 << 22},
        {"cpus": 0.0},
        {"cpus": 0.009},
        {"ttl_seconds": 0},
        {"template": "base"},
        {"workspace": None},
        {"mounts": [MountRequest(source="relative", target="/opt/x")]},
        {"mounts": [MountRequest(source="/", target="/opt/x")]},
        {"mounts": [MountRequest(source="/usr", target="/work/x")]},
        {"mounts": [MountRequest(source="/usr", target="/")]},
        {"mounts": [MountRequest(source="/usr", target="/opt/../etc")]},
    ],
    ids=str,
)
def test_bad_requests_are_refused_and_leave_nothing(kit: Kit, fields: dict[str, Any]) -> None:
    with refused(Code.INVALID):
        create(kit, **fields)
    assert os.listdir(kit.state / "sandboxes") == []


def test_a_mount_never_shows_the_state_directory(kit: Kit) -> None:
    with refused(Code.INVALID):
        create(kit, mounts=[MountRequest(source=str(kit.state), target="/opt/x")])


def test_deleting_leaves_nothing_and_rejects_what_is_open(kit: Kit) -> None:
    sandbox = create(kit)
    pending, approved = kit.speculate(sandbox, "echo a > a"), kit.speculate(sandbox, "echo b > b")
    kit.approve(approved)
    kit.delete(sandbox)
    assert os.listdir(kit.state / "sandboxes") == []
    kit.finish_removals()
    assert os.listdir(kit.state / "scratch") == []
    assert kit.state_of(pending) is State.REJECTED
    assert kit.state_of(approved) is State.REJECTED
    for made in (pending, approved):
        assert sorted(os.listdir(kit.state / "changesets" / made.changeset.id)) == [
            "base.json",
            "changes.json",
            "meta.json",
            "request.json",
        ]
    with refused(Code.NOT_FOUND):
        kit.get(sandbox.id)
    kit.delete(sandbox)  # once more is the same


def test_a_damaged_changeset_holds_up_neither_the_list_nor_the_deletion(kit: Kit) -> None:
    sandbox = create(kit)
    whole, damaged = (kit.engine.speculate(ADMIN, sandbox.id, Speculate(command="echo 1 > x")) for _ in range(2))
    (kit.state / "changesets" / damaged.changeset.id / "meta.json").write_bytes(b"{")
    assert [each.id for each in kit.engine.list_changesets(ADMIN, sandbox.id).items] == [whole.changeset.id]
    with refused(Code.INTERNAL):
        kit.engine.get_changeset(ADMIN, sandbox.id, damaged.changeset.id)
    kit.delete(sandbox)
    assert not (kit.state / "changesets" / damaged.changeset.id).exists()
    assert (kit.state / "changesets" / whole.changeset.id).exists()


def test_deleting_drops_what_was_kept_for_a_revert(kit: Kit) -> None:
    (kit.work / "f").write_text("old")
    sandbox = create(kit)
    made = kit.land(sandbox, "echo new > f")
    kit.delete(sandbox)
    left = set(os.listdir(kit.state / "changesets" / made.changeset.id))
    assert not left & {"trash", "area", "blobs", "preimages"}
    assert not kit.engine.get_changeset(ADMIN, sandbox.id, made.changeset.id).changeset.revertible


def test_deleting_ends_what_runs(tmp_path: Path) -> None:
    kit = Kit(tmp_path, persistent=True)
    sandbox = create(kit)
    running = kit.engine.start_exec(ADMIN, sandbox.id, Exec(command="sleep 1000"))
    kit.plain.instances[0].kill()
    assert running.wait() is not None
    for end in (running.stdin, running.stdout, running.stderr):
        assert end is not None
        os.close(end)
    running.close()
    kit.delete(sandbox)
    assert not any(instance.alive() for instance in kit.plain.instances)
    kit.engine.close()


def test_agents_see_and_touch_only_what_is_theirs(kit: Kit) -> None:
    bot, cat = agent(kit, "bot"), agent(kit, "cat")
    mine, theirs, nobodys = create(kit, owner="bot"), create(kit, owner=cat.key_id), create(kit)
    assert kit.get(mine.id, bot) == mine
    for foreign in (theirs, nobodys):
        for ask in (
            lambda foreign=foreign: kit.get(foreign.id, bot),
            lambda foreign=foreign: kit.engine.execute(bot, foreign.id, Exec(command="true")),
            lambda foreign=foreign: kit.engine.read_file(bot, foreign.id, "/x"),
            lambda foreign=foreign: kit.engine.list_changesets(bot, foreign.id),
        ):
            with refused(Code.NOT_FOUND):
                ask()


@pytest.mark.parametrize("role", [Role.AGENT, Role.USER])
def test_only_an_administrator_binds_and_mounts_directories_of_the_host(kit: Kit, role: Role) -> None:
    actor = Actor(name="x", role=role, key_id="ky9")
    with refused(Code.DENIED):
        kit.sandbox(actor)
    assert kit.left() == []


def test_an_agent_changes_a_bound_workspace_only_by_way_of_a_review(kit: Kit) -> None:
    bot = agent(kit, "bot")
    sandbox = create(kit, owner="bot")
    with refused(Code.DENIED):
        kit.engine.execute(bot, sandbox.id, Exec(command="true"))
    with refused(Code.DENIED):
        kit.engine.start_exec(bot, sandbox.id, Exec(command="true"))
    with refused(Code.DENIED):
        kit.engine.write_file(bot, sandbox.id, "/x", [b"x"])
    assert os.listdir(kit.work) == []
    detail = kit.engine.speculate(bot, sandbox.id, Speculate(command="echo 1 > new"))
    with refused(Code.DENIED):
        kit.engine.approve(bot, sandbox.id, detail.changeset.id, Approve())


def test_only_an_administrator_chooses_an_owner_and_only_a_key_in_force(kit: Kit) -> None:
    kit.engine.create_key(ADMIN, CreateKey(name="old", role="agent"))
    kit.engine.revoke_key(ADMIN, "old")
    for owner in ("old", "nobody", ""):
        with refused(Code.INVALID):
            create(kit, owner=owner)
    with refused(Code.DENIED):
        kit.sandbox(USER, workspace=None, owner="old")


def test_keys_are_shown_once_work_and_stop_when_revoked(kit: Kit) -> None:
    made = kit.engine.create_key(ADMIN, CreateKey(name="bot", role="agent"))
    actor = kit.engine.authenticate(made.secret)
    assert (actor.name, actor.role, actor.key_id) == ("bot", Role.AGENT, made.key.id)
    assert made.secret.encode() not in b"".join(path.read_bytes() for path in kit.state.iterdir() if path.is_file())
    assert kit.engine.list_keys(ADMIN) == [made.key]
    with refused(Code.ALREADY_EXISTS):
        kit.engine.create_key(ADMIN, CreateKey(name="bot"))
    assert kit.engine.revoke_key(ADMIN, "bot").revoked_at is not None
    for token in (made.secret, "", "flux_x", "\udcff"):
        with refused(Code.UNAUTHENTICATED):
            kit.engine.authenticate(token)
    with refused(Code.NOT_FOUND):
        kit.engine.revoke_key(ADMIN, "nobody")


@pytest.mark.parametrize("role", [Role.REVIEWER, Role.AGENT, Role.USER])
def test_others_make_no_keys(kit: Kit, role: Role) -> None:
    with refused(Code.DENIED):
        kit.engine.create_key(Actor(name="x", role=role, key_id="ky9"), CreateKey(name="more", role="admin"))


def test_pages_end(kit: Kit) -> None:
    sandbox = create(kit)
    made = [kit.speculate(sandbox, "true").changeset.id for _ in range(5)]
    seen, cursor = [], None
    while True:
        page = kit.engine.list_changesets(ADMIN, sandbox.id, limit=2, cursor=cursor)
        seen += [record.id for record in page.items]
        if page.next_cursor is None:
            break
        cursor = page.next_cursor
    assert seen == made[::-1]
    for limit, cursor in ((0, None), (1001, None), (5, "x"), (5, "-1")):
        with refused(Code.INVALID):
            kit.engine.list_changesets(ADMIN, sandbox.id, limit=limit, cursor=cursor)


def test_a_start_that_fails_is_an_error_and_the_sandbox_stays(kit: Kit) -> None:
    sandbox = create(kit)
    kit.plain.broken = True
    with refused(Code.UNAVAILABLE):
        kit.engine.execute(ADMIN, sandbox.id, Exec(command="true"))
    with refused(Code.UNAVAILABLE):
        kit.speculate(sandbox, "true")
    assert os.listdir(kit.state / "scratch") == []
    assert os.listdir(kit.state / "changesets") == []
    kit.plain.broken = False
    assert kit.engine.execute(ADMIN, sandbox.id, Exec(command="true")).exit_code == 0


def test_what_a_crash_left_half_saved_is_gone_after_the_next_start(kit: Kit) -> None:
    """Drafts of layers and artifacts: nobody refers to what was never published."""
    kit.engine.context.layers.layers()
    left = [kit.state / "layers/.0123.new", kit.state / "layers" / ("0" * 64), kit.state / "artifacts/.0123.new"]
    for place in left:
        (place / "deep").mkdir(parents=True)
    kit.reopen()
    assert [place for place in left if place.exists()] == []
