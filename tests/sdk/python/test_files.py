"""Files: written and read as text, bytes and streams; listed, moved, removed; named as they like."""

from __future__ import annotations

import hashlib
import io
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from e2b import FileType
from e2b.exceptions import FileNotFoundException
from flavours import Sdk

MIB = 1 << 20
NAMES = [
    "with space",
    " leading and trailing ",
    'it\'s "quoted" `back` $HOME',
    "new\nline",
    "tab\tand\rreturn",
    "back\\slash",
    "ünïcödé 文件 🙂",
    "%41 + & = ? # ;",
    "-rf",
    "*",
    "l" * 255,
    "ä" * 127 + "e",
]


@pytest.mark.everywhere
async def test_written_and_read_back(box: Any, sdk: Sdk) -> None:
    info = await box.files.write("/home/user/a/b/text", "größer\n")
    assert (info.name, info.path, info.type) == ("text", "/home/user/a/b/text", FileType.FILE)
    assert await box.files.read("/home/user/a/b/text") == "größer\n"
    assert await box.files.read("a/b/text") == "größer\n"
    assert await box.files.read("a/b/text", format="bytes") == "größer\n".encode()
    assert (await box.commands.run("cat a/b/text; stat -c '%U %G' a a/b a/b/text")).stdout == (
        "größer\nuser user\nuser user\nuser user\n"
    )
    every = bytes(range(256)) * 300
    await box.files.write("bytes", every)
    assert await box.files.read("bytes", format="bytes") == every
    await box.files.write("bytes", b"")
    assert await box.files.read("bytes", format="bytes") == b""
    assert await box.files.read("bytes") == ""
    await box.files.write("io", io.BytesIO(every))
    await box.files.write("fed", sdk.feed([every[:1000], every[1000:]]))
    for name in ("io", "fed"):
        stream = await box.files.read(name, format="stream")
        assert b"".join([chunk async for chunk in sdk.chunks(stream)]) == every


async def test_a_new_write_keeps_what_the_file_is(box: Any) -> None:
    await box.files.write("script", "echo one\n")
    await box.commands.run("chmod 750 script; ln script twin")
    await box.files.write("script", "two\n")
    assert await box.files.read("twin") == "two\n"
    assert (await box.commands.run("stat -c %a script")).stdout == "750\n"
    await box.commands.run("ln -s script link")
    await box.files.write("link", "three\n")
    assert await box.files.read("script") == "three\n"
    assert (await box.files.get_info("link")).type is FileType.SYMLINK


async def test_users_have_homes_and_rights(box: Any) -> None:
    await box.files.write("~/mine", "root's", user="root")
    assert (await box.commands.run("stat -c '%U %n' /root/mine", user="root")).stdout == "root /root/mine\n"
    assert await box.files.read("/root/mine", user="root") == "root's"
    await box.files.write("~/mine", "user's")
    assert await box.files.read("/home/user/mine") == "user's"


@pytest.mark.parametrize("octet", [None, True, False])
async def test_several_at_once(box: Any, octet: bool | None) -> None:
    files = [{"path": f"many/{number} 文/file", "data": f"content {number}"} for number in range(12)]
    options = {} if octet is None else {"use_octet_stream": octet}
    written = await box.files.write_files(files, **options)
    assert [info.path for info in written] == [f"/home/user/many/{number} 文/file" for number in range(12)]
    assert [await box.files.read(file["path"]) for file in files] == [file["data"] for file in files]
    assert await box.files.write_files([]) == []


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
async def test_names(box: Any, name: str) -> None:
    directory = "/home/user/names"
    path = f"{directory}/{name}"
    info = await box.files.write(path, name)
    assert (info.name, info.path) == (name, path)
    assert await box.files.read(path) == name
    assert [(entry.name, entry.path) for entry in await box.files.list(directory)] == [(name, path)]
    assert (await box.files.get_info(path)).size == len(name.encode())
    assert (await box.files.rename(path, path + "x" if len(name.encode()) < 255 else path[:-1])).type is FileType.FILE
    assert await box.files.exists(path) is False
    await box.files.write(path, "again", use_octet_stream=True)
    assert (await box.commands.run('cat "$P"', envs={"P": path})).stdout == "again"
    await box.files.remove(path)
    assert await box.files.exists(path) is False


async def test_a_name_that_is_too_long(box: Any) -> None:
    with pytest.raises(Exception, match=r"(?i)too long|name"):
        await box.files.write("l" * 256, "x")


@pytest.mark.everywhere
@pytest.mark.parametrize("zip", [False, True])
async def test_64_mib_up_and_down(box: Any, sdk: Sdk, zip: bool) -> None:
    piece = random.Random(7).randbytes(MIB) if not zip else bytes(MIB)
    whole = hashlib.sha256(piece * 64).hexdigest()
    info = await box.files.write("big", sdk.feed([piece] * 64), gzip=zip)
    assert info.path == "/home/user/big"
    assert (await box.commands.run("sha256sum <big")).stdout.split()[0] == whole
    assert (await box.files.get_info("big")).size == 64 * MIB
    found = hashlib.sha256()
    async for chunk in sdk.chunks(await box.files.read("big", format="stream", gzip=zip)):
        found.update(chunk)
    assert found.hexdigest() == whole


async def test_gzip_both_ways(box: Any) -> None:
    text = "again and again\n" * 1000
    await box.files.write("zipped", text, gzip=True)
    assert (await box.commands.run("head -1 zipped; wc -l <zipped")).stdout == "again and again\n1000\n"
    assert await box.files.read("zipped", gzip=True) == text
    assert await box.files.read("zipped") == text


async def test_lists_with_depth(box: Any) -> None:
    await box.commands.run("mkdir -p tree/a/b/c; echo 12345 >tree/a/file; ln -s a tree/link; ln -s nowhere tree/broken")

    async def paths(depth: int) -> set[str]:
        listed = await box.files.list("tree", depth=depth)
        return {entry.path.removeprefix("/home/user/tree/") for entry in listed}

    assert await paths(1) == {"a", "link", "broken"}
    assert await paths(2) == {"a", "link", "broken", "a/b", "a/file"}
    assert await paths(9) == {"a", "link", "broken", "a/b", "a/file", "a/b/c"}
    entries = {entry.name: entry for entry in await box.files.list("tree", depth=2)}
    file = entries["file"]
    assert (file.type, file.size, file.permissions[-9:], file.owner, file.group) == (
        FileType.FILE,
        6,
        "rw-r--r--",
        "user",
        "user",
    )
    assert file.mode & 0o777 == 0o644
    assert abs(file.modified_time.astimezone(UTC) - datetime.now(UTC)) < timedelta(minutes=2)
    assert (entries["a"].type, entries["link"].type) == (FileType.DIR, FileType.SYMLINK)
    assert entries["link"].symlink_target in ("a", "/home/user/tree/a")
    assert entries["broken"].type is FileType.SYMLINK


@pytest.mark.everywhere
async def test_made_moved_and_removed(box: Any) -> None:
    assert await box.files.make_dir("dir/below") is True
    assert await box.files.make_dir("dir/below") is False
    assert await box.files.make_dir("dir") is False
    assert await box.files.exists("dir/below") is True
    assert (await box.files.get_info("dir")).type is FileType.DIR
    await box.files.write("dir/below/file", "content")
    moved = await box.files.rename("dir", "/home/user/other")
    assert (moved.path, moved.type) == ("/home/user/other", FileType.DIR)
    assert await box.files.exists("dir") is False
    assert await box.files.read("other/below/file") == "content"
    await box.files.write("file", "old")
    assert (await box.files.rename("other/below/file", "file")).size == len("content")
    assert await box.files.read("file") == "content"
    await box.files.remove("other")
    assert await box.files.exists("other") is False
    await box.files.remove("other")
    with pytest.raises(FileNotFoundException):
        await box.files.get_info("other")
    assert await box.files.exists("/no/such/place") is False


async def test_metadata_of_files(box: Any) -> None:
    info = await box.files.write("tagged", "1", metadata={"Author": "somebody", "note": "a b; c"})
    assert info.metadata == {"author": "somebody", "note": "a b; c"}
    assert (await box.files.get_info("tagged")).metadata == {"author": "somebody", "note": "a b; c"}
    [entry] = [entry for entry in await box.files.list(".") if entry.name == "tagged"]
    assert entry.metadata == {"author": "somebody", "note": "a b; c"}
    moved = await box.files.rename("tagged", "moved")
    assert moved.metadata == {"author": "somebody", "note": "a b; c"}
    assert (await box.files.write("moved", "2", metadata={"only": "this"}, use_octet_stream=True)).metadata == {
        "only": "this"
    }
    assert (await box.files.get_info("moved")).metadata == {"only": "this"}
    await box.files.write("moved", "3")
    assert (await box.files.get_info("moved")).metadata is None


async def test_links_lead_nowhere_outside(box: Any) -> None:
    await box.commands.run("ln -s /etc/hostname absolute; ln -s ../../../../../../etc/hostname relative")
    inside = (await box.commands.run("cat /etc/hostname")).stdout
    assert await box.files.read("absolute") == inside
    assert await box.files.read("relative") == inside
    assert await box.files.read("../../../../../../etc/hostname") == inside


async def test_what_is_no_file_is_not_waited_for(box: Any) -> None:
    await box.commands.run("mkfifo fifo")
    for path in ("fifo", "/dev/zero"):
        with pytest.raises(Exception, match=r"."):
            await box.files.read(path, request_timeout=20)
    assert (await box.files.get_info("fifo")).name == "fifo"
