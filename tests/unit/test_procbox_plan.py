"""What is decided about a procbox before anything happens: plan, cgroups, and words that two languages share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flux.core.errors import Code, FluxError
from flux.ports.substrate import Command, LaunchSpec, Limits, Mount, Overlay
from flux.substrates.procbox import control, etc
from flux.substrates.procbox.cgroups import find_hierarchies
from flux.substrates.procbox.control import Kind, Spawn
from flux.substrates.procbox.host import Host
from flux.substrates.procbox.plan import checked, hidden_places, make_plan

LAUNCHER = Path(control.__file__).with_name("launcher")
ROOT = Host(privileged=True, initial=True, uid=0, gid=0, system=(("usr", None), ("bin", "usr/bin")))
USER = Host(privileged=False, initial=True, uid=1000, gid=1000, system=(("usr", None),))
SPEC = LaunchSpec(
    sandbox_id="sbplan",
    layout="bound",
    tree="/srv/tree",
    home="/srv/home",
    scratch="/srv/scratch",
    hidden=("/srv/state",),
)
OVERLAY = Overlay(lower=("/a", "/b"), upper="/up", work="/work")


def operations(spec: LaunchSpec, host: Host = ROOT, bounded: frozenset[str] = frozenset()) -> list[list[str]]:
    """Return the plan as the launcher takes it apart, by the launcher's own table."""
    table = {
        name: (int(count), follow == "true")
        for name, count, follow in re.findall(r'\{"([\w-]+)", (\d), \w+, (\w+)\}', (LAUNCHER / "plan.c").read_text())
    }
    words, found = list(make_plan(checked(spec), host, bounded).words), []
    while words:
        count, follow = table[words[0]]
        taken = 1 + count + (int(words[count]) if follow else 0)
        found.append(words[:taken])
        words = words[taken:]
    return found


def targets(spec: LaunchSpec, *names: str) -> list[list[str]]:
    return [operation[1:] for operation in operations(spec) if operation[0] in names]


def test_both_sides_speak_the_same_words() -> None:
    header = (LAUNCHER / "launcher.h").read_text()
    assert {name: int(value) for name, value in re.findall(r"MESSAGE_(\w+) = (\d+)", header)} == {
        kind.name: kind.value for kind in Kind
    }
    assert {name: int(value) for name, value in re.findall(r"SPAWN_(\w+) = (\d+)", header)} == {
        flag.name: flag.value for flag in Spawn
    }
    assert f"#define DESCRIPTORS_MAX {control._DESCRIPTORS_MAX}" in header
    assert f"#define TEXT_MAX {control._TEXT_BYTES_MAX}" in header


def test_a_command_is_numbers_and_strings() -> None:
    command = Command(argv=["a", ""], environment={"N": "v\udcff"}, cwd="/", uid=1, gid=2, terminal=True)
    assert control.encode_command(command) == b"".join(
        [number.to_bytes(4, "little") for number in (1, 2, 1, 2, 1)] + [b"/\0a\0\0N=v\xff\0"]
    )


def test_the_root_is_sealed_last_and_the_tree_is_sent_before() -> None:
    names = [operation[0] for operation in operations(SPEC)]
    assert names[0] == "mode"
    assert names[-3:] == ["send-tree", "send-tree", "seal"]


@pytest.mark.parametrize("asked", [{"network": "ports", "net_ports": (443,)}, {"network": "internet"}])
def test_a_network_is_there_before_and_has_no_sink(asked: dict[str, Any]) -> None:
    names = [operation[0] for operation in operations(msgspec.structs.replace(SPEC, **asked))]
    assert "loopback" in names
    assert "sink" not in names


def test_the_host_shows_read_only_and_by_name() -> None:
    writable = targets(SPEC, "bind", "overlay")
    assert writable == [["/srv/scratch", "/tmp"], ["/srv/home", "/home/user"], ["/srv/tree", "/work"]]
    shown = [source for source, _ in targets(SPEC, "ro-bind", "ro-bind-try")]
    assert shown == ["/usr", *(f"/etc/{name}" for name in etc.ALLOWED), "/sys/devices/system/cpu"]
    assert not {"shadow", "ssh", "sudoers", "environment", "gitconfig", "ssl", "ssl/private"} & set(etc.ALLOWED)


def test_an_overlay_keeps_all_that_the_kernel_can_keep() -> None:
    spec = msgspec.structs.replace(SPEC, tree=OVERLAY)
    assert targets(spec, "overlay") == [
        ["/work", "index=on,redirect_dir=on,metacopy=off,nfs_export=on,xino=auto", "/up", "/work", "2", "/a", "/b"]
    ]
    throwaway = msgspec.structs.replace(spec, tree=msgspec.structs.replace(OVERLAY, throwaway=True))
    found = [one for one in operations(throwaway, USER) if one[0] == "overlay"]
    assert found[0][2] == "userxattr,xino=auto,volatile"


def test_descriptors_are_numbered_in_order() -> None:
    tree = msgspec.structs.replace(OVERLAY, lower=(), lower_descriptor=7)
    home = msgspec.structs.replace(OVERLAY, lower=(), lower_descriptor=9, upper="/home-up")
    spec = msgspec.structs.replace(SPEC, tree=tree, home=home)
    assert make_plan(spec, ROOT).layers == (7, 9)
    assert [(one[1], one[-1]) for one in operations(spec) if one[0] == "overlay"] == [
        ("/home/user", "fd:1"),
        ("/work", "fd:0"),
    ]


@pytest.mark.parametrize(
    ("bounded", "kinds"),
    [(frozenset(), 4), (frozenset({"memory"}), 3), (frozenset({"memory", "pids"}), 2)],
)
def test_each_process_is_bounded_where_no_cgroup_bounds_all(bounded: frozenset[str], kinds: int) -> None:
    spec = msgspec.structs.replace(SPEC, limits=Limits(memory_mib=64, pids=10, file_mib=5))
    assert sum(operation[0] == "limit" for operation in operations(spec, USER, bounded)) == kinds


@pytest.mark.parametrize(
    ("changes", "places"),
    [
        ({}, []),
        ({"tree": "/srv"}, ["/work/state"]),
        ({"tree": "/srv/state"}, []),
        ({"tree": "/srv/state/inside"}, []),
        ({"mounts": (Mount(source="/srv", target="/opt/x"),)}, ["/opt/x/state"]),
        ({"hidden": ("/usr/local/state",)}, ["/usr/local/state"]),
        ({"tree": Overlay(lower=("/srv",), upper="/u", work="/w"), "layout": "managed"}, ["/state"]),
        ({"tree": Overlay(lower=("/",), upper="/u", work="/w"), "layout": "managed"}, ["/srv/state"]),
        ({"tree": "/srv/sta"}, []),
    ],
)
def test_hidden_directories_are_covered_wherever_they_show(changes: dict[str, object], places: list[str]) -> None:
    spec = msgspec.structs.replace(SPEC, **changes)
    assert hidden_places(spec) == places
    hides = [operation[1] for operation in operations(spec) if operation[0] == "hide"]
    assert [place for place in hides if not place.startswith("/proc/")] == places


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hostname": ""}, "hostname"),
        ({"hostname": "-a"}, "hostname"),
        ({"hostname": "a\n"}, "hostname"),
        ({"tree": "relative"}, "relative"),
        ({"tree": "/a\0b"}, "NUL"),
        ({"mounts": (Mount(source="/a", target="/b/../c"),)}, ".."),
        ({"mounts": (Mount(source="/a", target="/proc"),)}, "/proc"),
        ({"mounts": (Mount(source="/a", target="/"),)}, "cover"),
        ({"net_ports": (80,)}, "ports"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], named: str) -> None:
    with pytest.raises(FluxError) as refused:
        checked(msgspec.structs.replace(SPEC, **changes))
    assert refused.value.code is Code.INVALID
    assert named in refused.value.message


def group(root: Path, *files: tuple[str, str]) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / "cgroup.procs").touch()
    for name, content in files:
        (root / name).write_text(content)
    return root


def test_version_two_groups_are_made_where_they_can_be_limited(tmp_path: Path) -> None:
    everything = ("cgroup.controllers", "cpu memory pids\n")
    group(tmp_path, everything, ("cgroup.subtree_control", "cpu memory pids\n"))
    own = group(tmp_path / "slice" / "unit", everything)
    (own / "cgroup.subtree_control").mkdir()  # the kernel refuses what this process asks of its own group
    group(tmp_path / "slice", everything, ("cgroup.subtree_control", "cpu memory pids\n"))
    found = find_hierarchies(f"30 20 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw", "0::/slice/unit\n")
    assert found.unified == str(tmp_path / "slice")
    assert {"memory", "pids"} <= found.limits
    assert found.split == {}


def test_version_one_groups_are_made_beside_version_two(tmp_path: Path) -> None:
    for name in ("unified", "memory/own", "memory", "pids"):
        group(tmp_path / name)
    mounts = "\n".join(
        [
            f"30 20 0:26 / {tmp_path}/unified rw - cgroup2 cgroup2 rw",
            f"31 20 0:27 / {tmp_path}/memory rw - cgroup cgroup rw,memory",
            f"32 20 0:28 / {tmp_path}/pids rw - cgroup cgroup rw,pids",
            f"33 20 0:29 / {tmp_path}/missing rw - cgroup cgroup rw,freezer",
        ]
    )
    found = find_hierarchies(mounts, "2:memory:/own\n1:pids:/elsewhere\n0::/\n")
    assert found.unified == f"{tmp_path}/unified"
    assert found.split == {"memory": f"{tmp_path}/memory/own", "pids": f"{tmp_path}/pids"}
    assert found.limits == {"memory", "pids"}


def test_a_machine_without_cgroups_has_none() -> None:
    found = find_hierarchies("22 1 8:1 / / rw - ext4 /dev/sda1 rw", "0::/\n")
    assert found.unified is None
    assert found.directories == []
    assert not found.limits
