"""What a sandbox sees of the host's configuration: harmless files, and never a secret (spec: sandboxes)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from flux.ports.network import NAMESERVER

#: Below ``/etc``, shown read-only where the host has them. Nothing here may hold a key, a password or a token; a
#: directory counts with everything in it.
ALLOWED: Final = (
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "fonts",
    "gai.conf",
    "host.conf",
    "inputrc",
    "java-11-openjdk",
    "java-17-openjdk",
    "java-21-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "localtime",
    "magic",
    "magic.mime",
    "mime.types",
    "os-release",
    "perl",
    "pki/ca-trust/extracted",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "profile",
    "protocols",
    "python3",
    "redhat-release",
    "rpc",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "vim",
)

_NSSWITCH = "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n"
RESOLV_CONF: Final = f"nameserver {NAMESERVER}\noptions timeout:2 attempts:2\n"


#: Of ``/etc/skel``, what a new user of the host gets too; the built-in template puts it into ``/home/user``.
SKELETON: Final = (".bash_logout", ".bashrc", ".profile")
_SHELLS = ("/bin/bash", "/bin/sh")


def shell(exists: Callable[[str], bool] = os.path.exists) -> str:
    """Return the login shell of the sandbox's users: bash where the host has it."""
    return next((path for path in _SHELLS if exists(path)), _SHELLS[-1])


def own_files(hostname: str, *, uid: int, gid: int) -> dict[str, str]:
    """Return the contents of the files below ``/etc`` that are the sandbox's own; ``user`` has ``uid`` and ``gid``."""
    login = shell()
    user = f"user:x:{uid}:{gid}:user:/home/user:{login}\n" if uid else ""
    group = f"user:x:{gid}:\n" if gid else ""
    return {
        "passwd": f"root:x:0:0:root:/root:{login}\n{user}nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        "group": f"root:x:0:\ntty:x:5:\nstaff:x:50:\n{group}nogroup:x:65534:\n",
        "hosts": f"127.0.0.1 localhost\n::1 localhost ip6-localhost\n127.0.1.1 {hostname}\n",
        "hostname": f"{hostname}\n",
        "resolv.conf": RESOLV_CONF,
        "nsswitch.conf": _NSSWITCH,
    }
