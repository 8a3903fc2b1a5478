"""What procbox needs of a machine, each with the command that gives it (``fluxctl doctor``)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from flux.core.errors import FluxError
from flux.ports.substrate import Check, Instance, LaunchSpec, Overlay
from flux.substrates.procbox import virtual
from flux.substrates.procbox.cgroups import Hierarchies
from flux.substrates.procbox.host import TUN, Host

#: What E2B's clients start in a sandbox, and what agents take for granted.
_EXPECTED = ("bash", "python3", "git")
_PATH = "/usr/local/bin:/usr/bin:/bin"
_KERNEL = (5, 12)  # mount_setattr; cgroup.kill, when there, came with 5.14
#: Switches that keep users from making namespaces: the file, the value that does, and the way out.
_SWITCHES = (
    ("/proc/sys/user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)


def find(
    launcher: str, host: Host, hierarchies: Hierarchies, rehearse: Callable[[LaunchSpec], Instance]
) -> list[Check]:
    """Return the findings. ``rehearse`` starts a sandbox: what really runs needs no guessing."""
    return [
        _launcher(launcher),
        _kernel(os.uname().release),
        _rights(host),
        template(host, partial(shutil.which, path=_PATH)),
        *_rehearsals(rehearse),
        _limits(host, hierarchies),
        _freezer(hierarchies),
        _observation(),
    ]


def _launcher(path: str) -> Check:
    if os.access(path, os.X_OK):
        return Check(subject="procbox launcher", ok=True, detail="is built")
    detail = f"{path} is missing or cannot be run"
    return Check(subject="procbox launcher", ok=False, detail=detail, fix="python setup.py build_ext --inplace")


def _kernel(release: str) -> Check:
    numbers = tuple(int(part) for part in release.replace("-", ".").split(".")[:2] if part.isdecimal())
    if numbers >= _KERNEL:
        return Check(subject="kernel", ok=True, detail=f"{release} has the calls that procbox makes")
    detail = f"{release} is older than {'.'.join(map(str, _KERNEL))}"
    return Check(subject="kernel", ok=False, detail=detail, fix="install a newer kernel and boot it")


def _rights(host: Host) -> Check:
    if host.privileged:
        return Check(subject="owners", ok=True, detail="sandboxes may have files and processes of any owner")
    detail = f"without privileges a sandbox has one user, {host.uid}, and cannot give files to others"
    return Check(subject="owners", ok=False, detail=detail, fix="run Flux with sudo", required=False)


def template(host: Host, which: Callable[[str], str | None]) -> Check:
    """Tell whether the built-in template, which shows the host's system, has what agents expect of it."""
    missing = [name for name in _EXPECTED if which(name) is None]
    if not host.privileged:
        detail = "the template base needs root: only root can put a layer over the host's system"
        return Check(subject="template base", ok=False, detail=detail, fix="run Flux with sudo", required=False)
    if missing:
        detail = f"the host, whose system its sandboxes see, has no {', '.join(missing)}"
        fix = f"apt-get install {' '.join(missing)}"
        return Check(subject="template base", ok=False, detail=detail, fix=fix, required=False)
    return Check(subject="template base", ok=True, detail=f"the host has {', '.join(_EXPECTED)} for its sandboxes")


def _rehearsals(rehearse: Callable[[LaunchSpec], Instance]) -> Iterator[Check]:
    with tempfile.TemporaryDirectory(prefix="flux-doctor-") as directory:
        for name in ("tree", "home", "scratch", "upper", "work"):
            os.mkdir(f"{directory}/{name}")
        yield _rehearsal("namespaces", directory, f"{directory}/tree", rehearse)
        overlay = Overlay(
            lower=(f"{directory}/tree",), upper=f"{directory}/upper", work=f"{directory}/work", throwaway=True
        )
        yield _rehearsal("overlay", directory, overlay, rehearse)


def _rehearsal(subject: str, directory: str, tree: str | Overlay, rehearse: Callable[[LaunchSpec], Instance]) -> Check:
    spec = LaunchSpec(
        sandbox_id="sbdoctor",
        layout="bound",
        tree=tree,
        home=f"{directory}/home",
        scratch=f"{directory}/scratch",
    )
    try:
        rehearse(spec).close()
    except FluxError as error:
        fix = "modprobe overlay" if subject == "overlay" else _way_out()
        return Check(subject=subject, ok=False, detail=error.message, fix=fix, required=subject != "overlay")
    return Check(subject=subject, ok=True, detail="a rehearsed sandbox started and ended")


def _way_out() -> str:
    for path, value, fix in _SWITCHES:
        if virtual.read(path).strip() == value:
            return fix
    return "run Flux with sudo, outside of a container that masks /proc or forbids namespaces"


def _limits(host: Host, hierarchies: Hierarchies) -> Check:
    missing = sorted({"memory", "pids", "cpu"} - hierarchies.limits)
    if not missing:
        return Check(subject="limits", ok=True, detail="cgroups bound memory, processes and processor time")
    detail = f"no cgroup bounds {', '.join(missing)}; memory and processes get the weaker bounds of setrlimit"
    fix = "systemd-run --user --scope -p Delegate=yes fluxd"
    if host.privileged:
        fix = "boot with systemd.unified_cgroup_hierarchy=1, or mount the cgroup controllers"
    return Check(subject="limits", ok=False, detail=detail, fix=fix, required=False)


def _freezer(hierarchies: Hierarchies) -> Check:
    if hierarchies.unified is not None or "freezer" in hierarchies.split:
        return Check(subject="freezing", ok=True, detail="cgroups stop and kill commands as a whole")
    detail = "processes are stopped and killed one by one by signals"
    return Check(
        subject="freezing",
        ok=False,
        detail=detail,
        fix="mount -t cgroup2 none /sys/fs/cgroup/unified, or run fluxd under systemd with Delegate=yes",
        required=False,
    )


def _observation() -> Check:
    with suppress(OSError):
        os.close(os.open(TUN, os.O_RDWR | os.O_CLOEXEC))
        return Check(subject="observed network", ok=True, detail="refused connections are recorded", required=False)
    detail = f"{TUN} cannot be opened: refused connections are refused, but not recorded"
    fix = f"modprobe tun && chmod 666 {TUN}"
    return Check(subject="observed network", ok=False, detail=detail, fix=fix, required=False)
