"""What a user with a domain does: TLS, a name for each sandbox, no address and no header set by hand.

Run in a network of its own with ``resolv.conf`` saying 127.0.0.1: ``python named.py DIRECTORY``. Prints what it saw.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from daemons import ENVIRONMENT, PROGRAMS, SECONDS_MAX, new_key

DOMAIN = "boxes.example"
NOBODY_LISTENS = 502


def answer_names() -> None:
    """Answer every question for a name with 127.0.0.1, as a wildcard record does."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))
    while True:
        query, caller = server.recvfrom(2048)
        end = 12
        while query[end]:
            end += query[end] + 1
        question = query[12 : end + 5]
        is_address = question[-4:-2] == b"\0\1"
        address = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + b"\x7f\0\0\1" if is_address else b""
        counts = struct.pack(">HHHH", 1, 1 if is_address else 0, 0, 0)
        server.sendto(query[:2] + b"\x84\0" + counts + question + address, caller)


def asked(url: str, trust: ssl.SSLContext, headers: dict[str, str]) -> str | int:
    """Return what a port of a sandbox answers, when something listens there: its body, or the status of a refusal."""
    ends = time.monotonic() + SECONDS_MAX
    while True:
        try:
            return urlopen(Request(url, headers=headers), context=trust).read().decode()
        except HTTPError as error:
            if error.code != NOBODY_LISTENS or time.monotonic() > ends:
                return error.code


def use_ports(trust: ssl.SSLContext) -> dict[str, object]:
    """Reach a server in a sandbox by name: one that everybody may, one that holders of a token may."""
    from e2b import Sandbox

    seen: dict[str, object] = {}
    for name, options in (("public", {}), ("private", {"network": {"allow_public_traffic": False}})):
        box = Sandbox.create(**options)
        box.files.write("a.txt", name)
        box.commands.run("python3 -m http.server 3000", background=True)
        url = f"https://{box.get_host(3000)}/a.txt"
        token = {"E2B-Traffic-Access-Token": box.traffic_access_token} if box.traffic_access_token else {}
        seen[name] = asked(url, trust, token)
        seen[f"{name} without a token"] = asked(url, trust, {})
        box.kill()
    return seen


def use(place: Path) -> dict[str, object]:
    """Use the SDK as its users do, with nothing but a key and a domain."""
    from e2b import Sandbox

    box = Sandbox.create()
    box.files.write("a.txt", "hi")
    trust = ssl.create_default_context(cafile=str(place / "ca.pem"))
    seen: dict[str, object] = {
        "output": box.commands.run("cat a.txt").stdout,
        "downloaded": urlopen(box.download_url("a.txt"), context=trust).read().decode(),
        "url": box.download_url("a.txt").partition("/files")[0].replace(box.sandbox_id, "ID"),
        "running": box.is_running(),
    }
    box.pause()
    seen["paused"] = box.is_running()
    seen["again"] = Sandbox.connect(box.sandbox_id).files.read("a.txt")
    box.kill()
    return {**seen, **use_ports(trust)}


def main(place: Path) -> None:
    """Start the names and the daemon, and print what the SDK saw."""
    state = place / "state"
    state.mkdir(mode=0o700)
    (state / "flux.toml").write_text(f'[e2b]\ndomain = "{DOMAIN}"\n[objects]\nurl = "none"\n')
    threading.Thread(target=answer_names, daemon=True).start()
    daemon = subprocess.Popen(
        [
            *(str(PROGRAMS / "fluxd"), "--state-dir", str(state), "--listen", "127.0.0.1:443"),
            *("--tls-cert", str(place / "cert.pem"), "--tls-key", str(place / "key.pem")),
        ],
        stdout=subprocess.PIPE,
        stderr=(place / "log").open("wb"),
        env={**ENVIRONMENT, "HOME": str(place)},
    )
    try:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"fluxd is ready on https://127.0.0.1:443\n"
        os.environ.update(E2B_API_KEY=new_key(state), E2B_DOMAIN=DOMAIN, SSL_CERT_FILE=str(place / "ca.pem"))
        print(json.dumps(use(place)))
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
