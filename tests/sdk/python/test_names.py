"""TLS and a wildcard name: the SDK finds sandboxes by host name alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from daemons import SECONDS_MAX

HERE = Path(__file__).resolve().parent
TOOLS = ("unshare", "ip", "mount", "openssl")
MISSING = [tool for tool in TOOLS if shutil.which(tool) is None]
KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
INSIDE = 'ip link set lo up && mount --bind "$1/resolv.conf" /etc/resolv.conf && exec "$2" "$3" "$1"'


def certify(place: Path) -> None:
    """Make an authority, and a certificate of its for every name of the domain."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=place, check=True, capture_output=True)

    (place / "more").write_text("subjectAltName=DNS:*.boxes.example\nbasicConstraints=CA:FALSE\n")
    openssl("req", "-x509", *KEY, "-days", "2", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")
    openssl("req", *KEY, "-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=boxes.example")
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "more")
    openssl("x509", "-req", "-in", "request.pem", *signing, "-out", "cert.pem")


@pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}: apt-get install util-linux iproute2 openssl")
def test_a_key_and_a_domain_are_all_that_is_needed(place: Path) -> None:
    own = place / "named"
    own.mkdir()
    certify(own)
    (own / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("E2B_")}
    script = str(HERE / "named.py")
    done = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", INSIDE, "sh", str(own), sys.executable, script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "output": "hi",
        "downloaded": "hi",
        "url": "https://49983-ID.boxes.example",
        "running": True,
        "paused": False,
        "again": "hi",
        "public": "public",
        "public without a token": "public",
        "private": "private",
        "private without a token": 403,
    }
