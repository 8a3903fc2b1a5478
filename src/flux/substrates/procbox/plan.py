"""From a launch specification to the list of operations that the launcher carries out (spec: sandboxes). Pure."""

from __future__ import annotations

import posixpath
import re
import resource
from collections.abc import Collection, Iterator, Sequence

import msgspec

from flux.core.errors import Code, FluxError
from flux.core.paths import is_within, printable
from flux.ports import network
from flux.ports.substrate import LaunchSpec, Limits, Overlay
from flux.substrates.procbox import etc
from flux.substrates.procbox.host import Host

WORKSPACE = "/work"
HOME = "/home/user"
USER = 1000
TERMINALS = "/dev/pts"

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = (("/proc/self/fd", "fd"), ("fd/0", "stdin"), ("fd/1", "stdout"), ("fd/2", "stderr"), ("pts/ptmx", "ptmx"))
#: What of /proc tells about or reaches into the host. Sealed: readable, not writable. Hidden: empty.
_SEALED = ("sys", "irq", "bus", "fs")
_HIDDEN = (
    *("acpi", "asound", "config.gz", "kallsyms", "kcore", "key-users", "keys", "kmsg", "kpagecgroup", "kpagecount"),
    *("kpageflags", "latency_stats", "sched_debug", "scsi", "slabinfo", "sysrq-trigger", "timer_list", "vmallocinfo"),
)
_CPUS = "/sys/devices/system/cpu"
_HOSTNAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}\Z")
_MIB = 1 << 20
_SHARED_MEMORY_MIB = 256
_NETWORK_GROUPS = "0 2147483647"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """``words`` for the launcher. ``layers``: the descriptors that they name, in order; more may follow these."""

    words: tuple[str, ...]
    layers: tuple[int, ...]


def checked(spec: LaunchSpec) -> LaunchSpec:
    """Return ``spec`` if it can be carried out.

    Raises:
        FluxError: ``invalid``, saying what is wrong with it.
    """
    if not _HOSTNAME.match(spec.hostname):
        raise _invalid(f"the hostname {printable(spec.hostname)[:80]!r} has other characters than a-z, 0-9, . and -")
    for path in (*_host_paths(spec), *(mount.target for mount in spec.mounts)):
        if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
            raise _invalid(f"the path {printable(path)[:200]!r} is not absolute, or holds .. or a NUL byte")
    for mount in spec.mounts:
        if any(is_within(place, mount.target.rstrip("/") or "/") for place in ("/proc", "/dev", "/sys")):
            raise _invalid(f"a mount on {printable(mount.target)[:200]!r} would cover what every sandbox has")
    if bool(spec.net_ports) and spec.network == "none":
        raise _invalid("it names ports but has no network")
    if spec.network == "ports" and not spec.net_ports:
        raise _invalid("its network is a list of ports, and it names none")
    return spec


def _invalid(reason: str) -> FluxError:
    return FluxError(Code.INVALID, f"cannot start the sandbox: {reason}")


def _overlays(spec: LaunchSpec) -> list[Overlay]:
    return [overlay for place in (spec.tree, spec.home) for overlay in _stack(place)]


def _stack(place: str | Overlay | None) -> Iterator[Overlay]:
    while isinstance(place, Overlay):
        yield place
        place = place.below


def _host_paths(spec: LaunchSpec) -> Iterator[str]:
    yield from (*spec.hidden, *(mount.source for mount in spec.mounts))
    yield from (place for place in (spec.tree, spec.home, spec.scratch) if isinstance(place, str))
    for overlay in _overlays(spec):
        yield from (overlay.upper, overlay.work, *overlay.lower)


def make_plan(spec: LaunchSpec, host: Host, bounded: Collection[str] = ()) -> Plan:
    """Return the operations that start a checked ``spec`` on ``host``; ``bounded`` resources have a cgroup's limit."""
    layers = tuple(overlay.lower_descriptor for overlay in _overlays(spec) if overlay.lower_descriptor is not None)
    operations = [
        *_identity(spec, host),
        *_limits(spec.limits, bounded),
        *_network(spec, host),
        *(_bound(spec, host) if spec.layout == "bound" else _managed(spec, host)),
        *_added(spec),
        *(("hide", path) for path in hidden_places(spec)),
        ("send-tree", WORKSPACE if spec.layout == "bound" else "/"),
        ("send-tree", TERMINALS),
        *([("seal", "/")] if spec.layout == "bound" else []),
    ]
    return Plan(words=tuple(word for operation in operations for word in operation), layers=layers)


def _identity(spec: LaunchSpec, host: Host) -> Iterator[tuple[str, ...]]:
    yield ("mode", "privileged" if host.privileged else "unprivileged")
    yield ("hostname", spec.hostname)


def _limits(limits: Limits, bounded: Collection[str]) -> Iterator[tuple[str, ...]]:
    """Without a cgroup the bound on memory is each process's own, and the one on processes spares root."""
    bounds = {resource.RLIMIT_CORE: 0}
    if limits.file_mib is not None:
        bounds[resource.RLIMIT_FSIZE] = limits.file_mib * _MIB
    if limits.memory_mib is not None and "memory" not in bounded:
        bounds[resource.RLIMIT_DATA] = limits.memory_mib * _MIB
    if limits.pids is not None and "pids" not in bounded:
        bounds[resource.RLIMIT_NPROC] = limits.pids + 1
    yield from (("limit", str(int(which)), str(bound)) for which, bound in bounds.items())


def _network(spec: LaunchSpec, host: Host) -> Iterator[tuple[str, ...]]:
    yield ("loopback", _NETWORK_GROUPS if host.privileged else f"{host.gid} {host.gid}")
    if spec.network != "none":  # it is born into one that has a link and rules
        return
    yield (
        *("sink", network.SINK_DEVICE, network.SINK_ADDRESS_V4, str(network.SINK_PREFIX_V4)),
        *(network.SINK_ADDRESS_V6, str(network.SINK_PREFIX_V6), str(network.SINK_MTU)),
    )


def _bound(spec: LaunchSpec, host: Host) -> Iterator[tuple[str, ...]]:
    """The host's system read-only, everything else made here."""
    yield ("tmpfs", "/", "mode=0755,size=16m")
    for name, link in host.system:
        yield ("symlink", link, f"/{name}") if link else ("ro-bind", f"/{name}", f"/{name}")
    for name in etc.ALLOWED:
        yield ("ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    uid, gid = (USER, USER) if host.privileged else (host.uid, host.gid)
    for name, content in etc.own_files(spec.hostname, uid=uid, gid=gid).items():
        yield ("file", f"/etc/{name}", "0644", content)
    yield ("symlink", "/proc/self/mounts", "/etc/mtab")
    yield ("dir", "/root", "0700")
    yield ("tmpfs", "/run", "mode=0755,size=16m")
    yield from _kernel(host)
    yield from _temporary(spec)
    yield ("symlink", "/tmp", "/var/tmp")
    yield ("symlink", "/run", "/var/run")
    yield from _place(_home(spec), HOME, spec, host)
    yield from _place(spec.tree, WORKSPACE, spec, host)


def _home(spec: LaunchSpec) -> str | Overlay:
    if spec.home is None:
        raise _invalid("it has no home, and only a managed sandbox has one in its tree")
    return spec.home


def _temporary(spec: LaunchSpec) -> Iterator[tuple[str, ...]]:
    if spec.scratch is not None:
        yield ("bind", spec.scratch, "/tmp")
        yield ("dir", "/tmp", "1777")
    elif spec.layout == "managed":
        yield ("new-dir", "/tmp", "1777")
    else:
        raise _invalid("it has no directory for /tmp, and only a managed sandbox has one in its tree")


def _managed(spec: LaunchSpec, host: Host) -> Iterator[tuple[str, ...]]:
    """The tree is everything but what the kernel makes."""
    yield from _place(spec.tree, "/", spec, host)
    if spec.network != "none":
        yield ("cover", "/etc/resolv.conf", etc.RESOLV_CONF)
    yield from _kernel(host)
    yield from _temporary(spec)
    if spec.home is not None:
        yield from _place(spec.home, HOME, spec, host)


def _kernel(host: Host) -> Iterator[tuple[str, ...]]:
    yield ("proc", "/proc")
    yield from (("seal", f"/proc/{name}") for name in _SEALED)
    yield from (("hide", f"/proc/{name}") for name in _HIDDEN)
    yield ("tmpfs", "/sys", "mode=0755,size=64k")
    yield ("ro-bind-try", _CPUS, _CPUS)
    yield ("seal", "/sys")
    yield ("tmpfs", "/dev", "mode=0755,size=64k")
    yield from (("dev-bind", f"/dev/{name}", f"/dev/{name}") for name in _DEVICES)
    yield from (("symlink", content, f"/dev/{name}") for content, name in _LINKS)
    yield ("devpts", TERMINALS, "newinstance,ptmxmode=0666,mode=620" + (",gid=5" if host.privileged else ""))
    yield ("tmpfs", "/dev/shm", f"mode=1777,size={_SHARED_MEMORY_MIB}m")


def _place(tree: str | Overlay, target: str, spec: LaunchSpec, host: Host) -> Iterator[tuple[str, ...]]:
    if isinstance(tree, str):
        yield ("bind", tree, target)
        return
    if tree.below is not None:
        yield ("under", *_layers(tree.below, spec, host))
    yield ("overlay", target, *_layers(tree, spec, host))


def _layers(overlay: Overlay, spec: LaunchSpec, host: Host) -> tuple[str, ...]:
    lower: Sequence[str] = overlay.lower
    if overlay.lower_descriptor is not None:
        with_descriptor = [one for one in _overlays(spec) if one.lower_descriptor is not None]
        lower = (f"fd:{with_descriptor.index(overlay)}",)
    if overlay.below is not None:
        lower = (*lower, "under")
    return (_options(overlay, host), overlay.upper, overlay.work, str(len(lower)), *lower)


def _options(overlay: Overlay, host: Host) -> str:
    """With every property of a plain directory that the kernel can keep (spec: speculation)."""
    index = "off" if overlay.shared else "on"
    fidelity = f"index={index},redirect_dir=on,metacopy=off" if host.initial and host.privileged else "userxattr"
    if host.initial and host.privileged and not (overlay.throwaway or overlay.shared or overlay.below):
        # Without it an overlay on this one could not keep linked names together.
        fidelity += ",nfs_export=on"
    return f"{fidelity},xino=auto" + (",volatile" if overlay.throwaway else "")


def _added(spec: LaunchSpec) -> Iterator[tuple[str, ...]]:
    for mount in sorted(spec.mounts, key=lambda mount: mount.target.count("/")):
        yield ("ro-bind", mount.source, posixpath.normpath(mount.target))


def hidden_places(spec: LaunchSpec) -> list[str]:
    """Return where the sandbox would see the hidden directories of the host, so that they can be covered."""
    views = [(f"/{name}", f"/{name}") for name in ("usr", "bin", "sbin", "lib")] if spec.layout == "bound" else []
    views += _views(spec.tree, WORKSPACE if spec.layout == "bound" else "/")
    views += [] if spec.home is None else _views(spec.home, HOME)
    views += [] if spec.scratch is None else [(spec.scratch, "/tmp")]
    views += [(mount.source, mount.target) for mount in spec.mounts]
    places = {
        posixpath.normpath(posixpath.join(target, posixpath.relpath(hidden, source)))
        for hidden in spec.hidden
        for source, target in views
        if is_within(hidden, source) and hidden != source
    }
    return sorted(places)


def _views(tree: str | Overlay, target: str) -> list[tuple[str, str]]:
    if isinstance(tree, str):
        return [(tree, target)]
    return [(source, target) for overlay in _stack(tree) for source in overlay.lower]
