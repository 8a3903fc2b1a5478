"""Git, as far as it needs no network."""

from __future__ import annotations

from typing import Any

import pytest
from e2b import CommandExitException
from flavours import Sdk

REPOSITORY = "/home/user/repository"


@pytest.fixture
async def git(box: Any) -> Any:
    """The git module of a sandbox with an empty repository in it."""
    await box.git.configure_user("Somebody", "somebody@example.com")
    await box.git.init(REPOSITORY, initial_branch="main")
    return box.git


async def test_added_committed_and_told(box: Any, git: Any) -> None:
    await box.files.write(f"{REPOSITORY}/file", "one\n")
    status = await git.status(REPOSITORY)
    assert (status.current_branch, status.has_untracked, status.is_clean) == ("main", True, False)
    assert [entry.name for entry in status.file_status] == ["file"]
    await git.add(REPOSITORY)
    assert (await git.status(REPOSITORY)).staged_count == 1
    await git.commit(REPOSITORY, 'the "first" one', author_name="Other", author_email="other@example.com")
    assert (await git.status(REPOSITORY)).is_clean is True
    said = await box.commands.run("git log --format='%an %ae %s'", cwd=REPOSITORY)
    assert said.stdout == 'Other other@example.com the "first" one\n'
    await box.files.write(f"{REPOSITORY}/file", "two\n")
    await git.restore(REPOSITORY, ["file"])
    assert await box.files.read(f"{REPOSITORY}/file") == "one\n"
    with pytest.raises(CommandExitException):
        await git.commit(REPOSITORY, "nothing")
    await git.commit(REPOSITORY, "empty", allow_empty=True)
    await git.reset(REPOSITORY, mode="hard", target="HEAD~1")
    assert (await box.commands.run("git rev-list --count HEAD", cwd=REPOSITORY)).stdout == "1\n"


async def test_branches(box: Any, git: Any) -> None:
    await git.commit(REPOSITORY, "root", allow_empty=True)
    await git.create_branch(REPOSITORY, "side")
    branches = await git.branches(REPOSITORY)
    assert (sorted(branches.branches), branches.current_branch) == (["main", "side"], "side")
    await git.checkout_branch(REPOSITORY, "main")
    await git.delete_branch(REPOSITORY, "side", force=True)
    assert (await git.branches(REPOSITORY)).branches == ["main"]
    await git.set_config("some.key", "some value", scope="local", path=REPOSITORY)
    assert await git.get_config("some.key", scope="local", path=REPOSITORY) == "some value"
    assert await git.get_config("user.name") == "Somebody"


async def test_cloned_pushed_and_pulled(box: Any, git: Any) -> None:
    await git.init("/home/user/bare", bare=True, initial_branch="main")
    await box.files.write(f"{REPOSITORY}/file", "one\n")
    await git.add(REPOSITORY)
    await git.commit(REPOSITORY, "first")
    await git.remote_add(REPOSITORY, "origin", "/home/user/bare")
    assert await git.remote_get(REPOSITORY, "origin") == "/home/user/bare"
    await git.push(REPOSITORY, remote="origin", branch="main")
    await git.clone("/home/user/bare", path="/home/user/clone", branch="main")
    assert await box.files.read("/home/user/clone/file") == "one\n"
    await box.files.write(f"{REPOSITORY}/file", "two\n")
    await git.add(REPOSITORY)
    await git.commit(REPOSITORY, "second")
    await git.push(REPOSITORY)
    await git.pull("/home/user/clone")
    assert await box.files.read("/home/user/clone/file") == "two\n"
    assert (await git.status("/home/user/clone")).upstream == "origin/main"


async def test_a_repository_that_is_not_there(box: Any, sdk: Sdk) -> None:
    with pytest.raises(CommandExitException):
        await box.git.status("/home/user")
    with pytest.raises(CommandExitException):
        await box.git.clone("/home/user/nothing", path="/home/user/clone")
    assert sdk.name in ("sync", "async")
