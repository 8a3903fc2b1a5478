"""Watches: what happens in a directory, told by kind and name."""

from __future__ import annotations

from typing import Any

import pytest
from e2b.exceptions import FileNotFoundException, SandboxException
from flavours import Sdk


@pytest.mark.everywhere
async def test_every_kind_of_event(box: Any, sdk: Sdk) -> None:
    await box.files.make_dir("watched")
    await box.files.write("watched/before", "x")
    watch = await sdk.watch(box, "watched")
    await box.files.write("watched/new", "1")
    await watch.until(("create", "new"), ("write", "new"))
    await box.commands.run("echo more >>watched/before")
    await watch.until(("write", "before"))
    await box.commands.run("chmod 600 watched/before")
    await watch.until(("chmod", "before"))
    await box.files.rename("watched/before", "watched/after")
    await watch.until(("rename", "before"), ("create", "after"))
    await box.files.remove("watched/new")
    await watch.until(("remove", "new"))
    await box.files.make_dir("watched/dir")
    await watch.until(("create", "dir"))
    await box.files.write("watched/dir/below", "x")
    await box.files.write("watched/last ünï", "x")
    await watch.until(("create", "last ünï"))
    assert [name for _, name in watch.seen if "below" in name] == []
    await watch.stop()


@pytest.mark.everywhere
async def test_recursively(box: Any, sdk: Sdk) -> None:
    await box.files.make_dir("watched/a/b")
    watch = await sdk.watch(box, "watched", recursive=True)
    await box.files.write("watched/a/b/deep", "1")
    await watch.until(("create", "a/b/deep"), ("write", "a/b/deep"))
    await box.commands.run("mkdir -p watched/new")
    await watch.until(("create", "new"))
    await box.files.write("watched/new/file", "1")
    await watch.until(("create", "new/file"))
    await box.files.remove("watched/a")
    await watch.until(("remove", "a/b/deep"), ("remove", "a"))
    await watch.stop()


async def test_entries_with_the_events(box: Any, sdk: Sdk) -> None:
    await box.files.make_dir("watched")
    watch = await sdk.watch(box, "watched", include_entry=True)
    await box.files.write("watched/new", "12345")
    await watch.until(("create", "new"))
    [made] = [event for event in watch.events if event.type.value == "create"]
    assert (made.entry.name, made.entry.path, made.entry.owner) == ("new", "/home/user/watched/new", "user")
    await watch.stop()


async def test_what_cannot_be_watched(box: Any, sdk: Sdk) -> None:
    with pytest.raises(FileNotFoundException):
        await sdk.watch(box, "/no/such/directory")
    with pytest.raises(SandboxException):
        await sdk.watch(box, "/etc/passwd")


async def test_many_events_are_all_told(box: Any, sdk: Sdk) -> None:
    await box.files.make_dir("watched")
    watch = await sdk.watch(box, "watched")
    await box.commands.run("cd watched; for i in $(seq 300); do : >file$i; done")
    await watch.until(*(("create", f"file{number}") for number in range(1, 301)))
    await watch.stop()
