"""The built-in template ``base``: the host's own system, with everything else of the host hidden.

A managed sandbox over it is an overlay whose lower layer is the host's ``/``. What must not be seen is hidden in the
sandbox's writable layer: a whiteout for every name of the host's ``/`` that is not part of its system, and directories
of the sandbox's own (``etc``, ``home``, ``root``, ``var`` and so on), each opaque, so nothing of the host's shows
through. New names in the host's ``/`` get their whiteout before every start. A layer of its own for this between the
two would be neater, but the kernel takes no layer that lies within another one. For the same reason a sandbox that was
restored, whose saved layers lie in the state directory, is an overlay on an overlay: the lower one hides the host.

Of ``/etc`` the sandbox gets copies of harmless files. Harmless directories are not copied, since a host has hundreds of
names in them: like ``/usr`` they are the host's, shown by a redirect, and what the sandbox changes lies above.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from flux.core.errors import Code, FluxError
from flux.core.paths import is_within, printable
from flux.substrates.procbox import etc, virtual
from flux.substrates.procbox.host import SYSTEM, Host, describe, is_shortage

HOST_ROOT = "/"
_USER = 1000
_HOSTNAME = "flux"
_DOT_FILE_BYTES_MAX = 1 << 16
#: The sandbox's own directories, with their modes.
_DIRECTORIES = {
    "dev": 0o755,
    "etc": 0o755,
    "home": 0o755,
    "home/user": 0o755,
    "media": 0o755,
    "mnt": 0o755,
    "opt": 0o755,
    "proc": 0o555,
    "root": 0o700,
    "run": 0o755,
    "srv": 0o755,
    "sys": 0o555,
    "tmp": 0o1777,
    "var": 0o755,
    "var/cache": 0o755,
    "var/lib": 0o755,
    "var/log": 0o755,
    "var/tmp": 0o1777,
}


def prepare(upper: str, host: Host, *, saved: bool = False) -> tuple[str, ...]:
    """Make the writable layer ``upper`` hide what is not the host's system, and return the lower layers.

    ``saved``: what else the template gives is in layers above this one.

    Raises:
        FluxError: ``unavailable`` without privileges; ``unavailable`` or ``exhausted`` if the layer cannot be written.
    """
    if not host.privileged:  # to whom the kernel does not give the host's / as a layer, because of the mounts on it
        raise FluxError(
            Code.UNAVAILABLE,
            "cannot make a workspace from the template base: only root can put a layer over the host's system; bind a "
            "directory, use a template of your own, or run Flux with sudo",
        )
    try:
        if saved and not os.path.lexists(f"{upper}/etc"):
            _show_etc(upper, host)
        elif not saved and not os.listdir(upper):
            _fill(upper, host)
        _hide_host(upper)
    except (OSError, shutil.Error) as error:
        number = error.errno if isinstance(error, OSError) and error.errno else 0
        raise FluxError(
            Code.EXHAUSTED if is_shortage(number) else Code.UNAVAILABLE,
            f"cannot make the template base in {printable(upper)}: {describe(number)}; the state directory needs space "
            "on a file system that an overlay can be written on, such as ext4, xfs or btrfs",
        ) from error
    return (HOST_ROOT,)


def _fill(upper: str, host: Host) -> None:
    for name, mode in _DIRECTORIES.items():
        os.mkdir(f"{upper}/{name}")
        os.chmod(f"{upper}/{name}", mode)
        if "/" not in name:
            os.setxattr(f"{upper}/{name}", _attribute(host, "opaque"), b"y")
    _fill_etc(f"{upper}/etc", host)
    os.symlink("/run", f"{upper}/var/run")
    if host.privileged:
        os.chown(f"{upper}/home/user", _USER, _USER)
        _fill_home(f"{upper}/home/user")


def _fill_home(home: str) -> None:
    """Give the user what a new user of the host gets, so that its login shell is as people know it."""
    for name in etc.SKELETON:
        source = Path("/etc/skel", name)
        if not source.is_symlink() and source.is_file() and source.stat().st_size <= _DOT_FILE_BYTES_MAX:
            shutil.copy2(source, f"{home}/{name}")
            os.chown(f"{home}/{name}", _USER, _USER)


def _show_etc(mask: str, host: Host) -> None:
    """Have those directories below the saved layers that these refer to; of ``/etc`` nothing else is seen there."""
    os.mkdir(f"{mask}/etc")
    os.chmod(f"{mask}/etc", _DIRECTORIES["etc"])
    os.setxattr(f"{mask}/etc", _attribute(host, "opaque"), b"y")
    for name in _shown(host):
        _show(f"{mask}/etc", name, host)


def _attribute(host: Host, name: str) -> str:
    return f"{'trusted' if _redirects(host) else 'user'}.overlay.{name}"


def _redirects(host: Host) -> bool:
    """Tell whether the kernel takes this process's word for what a directory shows."""
    return host.privileged and host.initial


def _fill_etc(target: str, host: Host) -> None:
    shown = _shown(host)
    for name in shown:
        _show(target, name, host)
    for name in _allowed():
        if name in shown:
            continue
        source, copy = f"/etc/{name}", f"{target}/{name}"
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        if os.path.isdir(source) and not os.path.islink(source):
            shutil.copytree(source, copy, symlinks=True, ignore_dangling_symlinks=True)
        else:
            shutil.copy2(source, copy, follow_symlinks=False)
    uid, gid = (_USER, _USER) if host.privileged else (host.uid, host.gid)
    for name, content in etc.own_files(_HOSTNAME, uid=uid, gid=gid).items():
        Path(target, name).write_text(content, encoding="utf-8")
        os.chmod(f"{target}/{name}", 0o644)
    os.symlink("/proc/self/mounts", f"{target}/mtab")


def _allowed() -> list[str]:
    return [name for name in etc.ALLOWED if os.path.lexists(f"/etc/{name}")]


def _shown(host: Host) -> list[str]:
    """Return the allowed names of ``/etc`` that are directories which the layer below has, with all that is in them."""
    if not _redirects(host):
        return []
    mounted = virtual.mount_points() - {HOST_ROOT}
    paths = {name: f"/etc/{name}" for name in _allowed()}
    return [
        name
        for name, path in paths.items()
        if os.path.isdir(path)
        and os.path.realpath(path) == path
        and not any(is_within(path, point) or is_within(point, path) for point in mounted)
    ]


def _show(target: str, name: str, host: Host) -> None:
    """Make a directory that shows the host's, and is like it."""
    source, shown = f"/etc/{name}", f"{target}/{name}"
    os.makedirs(shown)
    shutil.copystat(source, shown)
    os.chown(shown, *_owner(source))
    os.setxattr(shown, _attribute(host, "redirect"), os.fsencode(source))


def _owner(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_uid, status.st_gid


def _hide_host(upper: str) -> None:
    for name in os.listdir(HOST_ROOT):
        if name not in SYSTEM and not os.path.lexists(f"{upper}/{name}"):
            os.mknod(f"{upper}/{name}", stat.S_IFCHR | 0o600, os.makedev(0, 0))
