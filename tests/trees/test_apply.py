"""Applying what a change made in a copy gives exactly the copy; its inverse gives exactly what was there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trees.kit import World, differences

OLD = 1_000_000_000_123_456_789


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def shell(text: str) -> Callable[[Path], None]:
    return lambda top: subprocess.run(["bash", "-ec", text], cwd=top, check=True) and None


# name → set-up, change
CASES: dict[str, tuple[str, str]] = {
    "nothing": ("echo a>f", "true"),
    "add": ("", "echo a>f; mkdir d; echo b>d/g"),
    "modify": ("echo a>f; echo b>g", "echo c>>f"),
    "delete": ("echo a>f; mkdir d; echo b>d/g; echo c>d/h", "rm f d/g"),
    "delete tree": ("mkdir -p d/e/f; echo a>d/e/f/g; echo b>d/h", "rm -r d"),
    "empty file": ("", ": >empty"),
    "emptied": ("echo a>f", ": >f"),
    "replaced directory contents": ("mkdir d; echo a>d/old", "rm -r d; mkdir d; echo n>d/new"),
    "deep replacement": (
        "mkdir -p p/t/a/b; touch p/t/a/b/{info,page}",
        "rm -r p/t; mkdir -p p/t/a/b; touch p/t/a/b/new",
    ),
    "empty directories": ("mkdir -p x/y/z", "rmdir x/y/z; mkdir -p a/b/c"),
    "kept empty": ("mkdir d; echo a>d/f", "rm d/f"),
    "directory renamed and changed": ("mkdir d; echo a>d/f; echo i>d/i", "mv d d2; echo two>d2/f; rm d2/i"),
    "directories swapped": ("mkdir a b; echo 1>a/x; echo 2>b/x; echo 3>b/y", "mv a t; mv b a; mv t b"),
    "file moved": ("mkdir a b; head -c 100000 /dev/urandom>a/f", "mv a/f b/g"),
    "files swapped": ("echo 1>f; echo 2>g", "mv f t; mv g f; mv t g"),
    "file copied": ("head -c 1000 /dev/urandom>f", "cp -p f g; cp f h; cp f i"),
    "moved and old name reused": ("echo 1>f", "mv f g; echo 2>f"),
    "file to directory": ("echo a>n", "rm n; mkdir n; echo b>n/x"),
    "directory to file": ("mkdir n; echo b>n/x", "rm -r n; echo a>n"),
    "directory to symlink": ("mkdir n; echo b>n/x", "rm -r n; ln -s elsewhere n"),
    "symlink to directory": ("ln -s elsewhere n", "rm n; mkdir n; echo a>n/x"),
    "file to symlink": ("echo a>n", "rm n; ln -s n n"),
    "symlink to file": ("ln -s /etc/passwd n", "rm n; echo a>n"),
    "fifo to directory": ("mkfifo n", "rm n; mkdir n; mkfifo n/p"),
    "directory made of one that held a link": ("mkdir d; ln -s / d/l", "rm -r d; mkdir -p d/l; echo x>d/l/f"),
    "retargeted": ("ln -s a s", "ln -sfn b s; ln -s ../../../../etc/passwd t; ln -s t loop; ln -sfn loop t"),
    "fifo": ("mkfifo old", "rm old; mkfifo new; chmod 640 new"),
    "modes": (
        "echo a>f; echo b>g; mkdir d e t; echo c>t/x",
        "chmod 600 f; chmod 4755 g; chmod 700 d; chmod 2775 e; chmod 1777 t; echo d>t/y",
    ),
    "mode of a file with new content": ("echo a>f", "echo b>f; chmod 6711 f"),
    "mode zero": ("echo a>f; mkdir d; echo b>d/x", "chmod 0 f; chmod 0 d"),
    "mode zero made": ("", "echo a>f; mkdir d; echo b>d/x; chmod 0 f d"),
    "read-only directory": ("mkdir d; touch d/f; chmod 555 d", "echo x>d/f; echo y>d/g"),
    "root of the workspace": ("echo a>f", "chmod 750 .; echo b>g"),
    "hard links": ("", "echo a>f; ln f g; mkdir d; ln f d/h"),
    "write through a link": ("echo a>f; ln f g; echo z>k", "echo b>>f"),
    "link broken": ("echo a>f; ln f g", "cp f t; mv t g"),
    "link broken by a write": ("echo a>f; ln f g; ln f h", "rm g; echo b>g"),
    "one name gone": ("echo a>f; ln f g", "rm g"),
    "one of three names gone": ("echo a>f; ln f g; ln f h", "rm f"),
    "another name": ("echo a>f; echo b>g", "ln f h; mkdir d; ln g d/g"),
    "another name in the group": ("echo a>f; ln f g", "ln f h"),
    "names moved between groups": ("echo a>f; ln f g; echo b>h; ln h i", "ln -f f h"),
    "mode through a link": ("echo a>f; ln f g", "chmod 600 f"),
    "mode and another name": ("echo a>f", "ln f g; chmod 600 g"),
    "equal files linked": ("echo a>f; cp -p f g", "ln -f f g"),
    "linked symlinks": ("ln -s x s; ln s t", "ln s u; rm s"),
    "linked fifos": ("mkfifo p; ln p q", "rm q; ln p r"),
    "whole group moved": ("mkdir a; echo 1>a/f; ln a/f a/g", "mv a b"),
    "hole": ("", "truncate -s 1M f; echo x | dd of=f bs=1 seek=600000 conv=notrunc status=none"),
    "whiteout names": ("", "echo a>.wh.foo; mkdir d; echo b>d/.wh..wh..opq"),
    "case": ("echo a>A", "mv A a"),
    "names in order of bytes": (
        "mkdir a; touch a/b a-b a.b",
        "rm -r a a-b; mkdir a-b; touch a-b/c; mkdir a; touch a/c",
    ),
    "tree over tree": (
        "mkdir -p s/a/b; touch s/a/b/{1,2,3} s/x",
        "rm -r s/a; echo f>s/a; rm s/x; mkdir -p s/x/y; ln -s q s/x/y/z",
    ),
    "touched only": ("echo a>f; touch -d @5 f", "touch f"),
    "same bytes again": ("echo a>f", "rm f; echo a>f"),
    "same size and time": ("printf AAAA>f; touch -d @1000000000 f", "printf BBBB>f; touch -d @1000000000 f"),
}

ROOT_CASES: dict[str, tuple[str, str]] = {
    "owners": (
        "echo a>f; mkdir d; echo b>d/x; ln -s f s; mkdir w; chown 5:6 w",
        "chown 1:1 f; chown -R 2:3 d; chown -h 4:4 s; echo n>w/n; chown 7:8 w/n",
    ),
    "owner and set-id": ("echo a>f; chmod 4755 f", "chown 1:1 f; chmod 6755 f"),
    "owner of a set-id file": ("echo a>f; chmod 4755 f", "chown 1:1 f; chmod 4755 f"),
    "owner of a file with a capability": (
        "cp /bin/true t; setcap cap_net_raw+ep t",
        "chown 1:1 t; setcap cap_net_raw+ep t",
    ),
    "devices": ("mknod w c 0 0; mknod n c 1 3; echo a>f", "echo b>f; rm n; mknod n c 1 5; mknod b b 7 9"),
    "user attributes": (
        "echo a>f; setfattr -n user.k -v 1 f; echo b>g; setfattr -n user.k -v 2 g; mkdir d",
        "setfattr -n user.l -v x f; setfattr -x user.k g; setfattr -n user.d -v y d; echo c>>f; mkdir e; "
        "setfattr -n user.e -v z e; : >n; setfattr -n user.n -v 0x00ff n",
    ),
    "attributes kept over new content": (
        "echo a>f; setfattr -n user.k -v 1 f; setfattr -n trusted.t -v 2 f",
        "echo b>f",
    ),
    "acl": (
        "echo a>f; mkdir d; echo b>g; setfacl -m u:5:rw g; echo h>h; setfacl -m u:9:r h",
        "setfacl -m u:1:r,g:2:rw f; setfacl -d -m u:1:rwx d; echo c>d/new; chmod 640 g; setfacl -b h; mkdir d/sub",
    ),
    "acl of the root": (
        "setfacl -d -m u:1:rwx .; chmod 2770 .; echo a>f",
        "echo b>g; mkdir d; echo c>d/h; chmod 600 g",
    ),
    "capability": (
        "cp /bin/true t; cp /bin/true u; setcap cap_net_raw+ep u",
        "setcap cap_net_raw+ep t; setcap -r u; cp t v; setcap cap_chown+ep v; chown 1:1 v; setcap cap_kill+p v",
    ),
    "attributes of links": (
        "ln -s a s; setfattr -h -n trusted.x -v 1 s",
        "ln -s b t; setfattr -h -n trusted.y -v 2 t; setfattr -h -x trusted.x s",
    ),
}


def _round_trip(world: World, setup: str, change: str, scope: str) -> None:
    shell("umask 022; " + setup)(world.workspace)
    os.utime(world.workspace, ns=(OLD, OLD))
    before = world.look()
    staging = world.speculate(shell("umask 022; " + change))
    staging.scope = scope
    applied = staging.apply()
    assert applied.revertible
    assert differences(world.look(), _but_mere_times(staging.expected, before)) == {}
    assert sorted(os.listdir(staging.path)) in (["blobs", "journal"], ["blobs", "journal", "trash"])
    inverse = staging.inverse()
    inverse.scope = scope
    inverse.apply()
    _forget(staging.path / "trash")
    assert differences(world.look(), before) == {}


def _but_mere_times(
    after: dict[str, tuple[object, ...]], before: dict[str, tuple[object, ...]]
) -> dict[str, tuple[object, ...]]:
    """A time that changed alone is no change, and is not carried."""
    time = 6
    return {
        path: before[path]
        if path in before and facts[:time] + facts[time + 1 :] == before[path][:time] + before[path][time + 1 :]
        else facts
        for path, facts in after.items()
    }


def _forget(trash: Path) -> None:
    """What a reverted apply kept is dropped by whoever reverts it; until then its files have one name more."""
    subprocess.run(["rm", "-rf", str(trash)], check=True)


@pytest.mark.parametrize("scope", ["all", "touched"])
@pytest.mark.parametrize("name", CASES)
def test_round_trip(world: World, name: str, scope: str) -> None:
    _round_trip(world, *CASES[name], scope)


@pytest.mark.root
@pytest.mark.parametrize("name", ROOT_CASES)
def test_round_trip_as_root(world: World, name: str) -> None:
    _round_trip(world, *ROOT_CASES[name], "all")
