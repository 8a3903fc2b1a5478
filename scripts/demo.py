"""Shows the whole way in a throwaway directory: speculate, look, approve, apply, refuse what is stale, revert.

Drives the real ``fluxctl``. Nothing outside the directory is touched and nothing is left behind. Ends with an error if
any step is not as told.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path
from typing import Any

FLUXCTL = str(Path(sys.executable).with_name("fluxctl"))
CONFLICT = 75
COLUMNS = 110

PROJECT = {
    "greet.sh": '#!/bin/sh\n# Greets whoever is named.\necho "Hello, $1"\n',
    "README.md": "# greet\n\nSays hello.\n",
    "notes/idea.txt": "Ask for a name?\n",
    "notes/old.txt": "Written long ago.\n",
    "tests/run.sh": '#!/bin/sh\nset -e\n[ "$(sh greet.sh World)" = "Hello, World" ]\necho \'ok: greets by name\'\n',
}
AGENT = r"""
set -e
sed -i 's/Hello, $1/Hello, ${1:-stranger}/' greet.sh
printf '%s\n' '[ "$(sh greet.sh)" = "Hello, stranger" ]' "echo 'ok: greets a stranger'" >> tests/run.sh
chmod +x greet.sh
rm notes/old.txt
mkdir -p docs && echo 'Run: sh greet.sh NAME' > docs/usage.md
sh tests/run.sh
bash -c 'exec 3<>/dev/tcp/192.0.2.7/443' 2>/dev/null || echo 'no way out to 192.0.2.7:443'
"""


class Demo:
    """The steps, over one temporary directory."""

    def __init__(self, place: Path) -> None:
        self.project = place / "project"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("FLUX_")},
            "FLUX_STATE_DIR": str(place / "state"),
        }
        if not sys.stdout.isatty():
            self.environment["NO_COLOR"] = "1"
            self.environment["TERM"] = "dumb"
        self.count = 0

    def run(self) -> None:
        """Walk through all steps."""
        self.make_project()
        before = tree(self.project)
        self.title("A sandbox over the project: inside, the project is /work and there is no network")
        self.show("sandbox", "create", "--workspace", str(self.project), "--name", "greet")
        changeset = self.speculate(before)
        self.review(changeset)
        self.apply(changeset)
        self.refuse()
        self.revert(changeset, before)
        self.title("Everything that was decided is in the audit log")
        self.show("audit", "--sandbox", self.json("sandbox", "get", "greet")["id"])
        self.json("sandbox", "rm", "greet")
        expect(self.project.is_dir(), "removing the sandbox leaves the project")

    def make_project(self) -> None:
        """Write the project, as a git repository where there is git."""
        self.title(f"A small project with tests, in {self.project}")
        for name, content in PROJECT.items():
            path = self.project / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        if shutil.which("git"):
            for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "Greet"]):
                identity = ["-c", "user.name=demo", "-c", "user.email=demo@example.org"]
                # Signing, hooks or templates that this user has set up are no part of the demo.
                plain = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
                subprocess.run(["git", *identity, *arguments], cwd=self.project, env=plain, check=True)
        self.command(["sh", "tests/run.sh"])

    def speculate(self, before: dict[str, object]) -> str:
        """Let the agent's command run in a throwaway copy."""
        self.title("An agent edits, adds, deletes, makes executable, and tries the network: in a throwaway copy")
        print(AGENT.strip().replace("\n", "\n    ").join(("    ", "\n")))
        reply = self.json("sandbox", "speculate", "greet", "--", AGENT)
        print(f"$ fluxctl sandbox speculate greet -- ...   ->  changeset {reply['id']}")
        expect(reply["exit_code"] == 0, f"the command ends well, not so: {reply['stderr']}")
        expect(tree(self.project) == before, "the project itself is untouched")
        print("The project itself is untouched.")
        return str(reply["id"])

    def review(self, changeset: str) -> None:
        """Show the changeset as its reviewer sees it."""
        self.title("The reviewer looks: risks and deletions first")
        text = self.show("sandbox", "changeset", "greet", changeset, "--diff")
        for part in ("/notes/old.txt", "/docs/usage.md", "/greet.sh", "192.0.2.7", "stranger"):
            expect(part in text, f"the review names {part}")

    def apply(self, changeset: str) -> None:
        """Approve exactly what was reviewed and apply it."""
        self.title("Yes: approve what was reviewed, and apply it")
        digest = self.json("sandbox", "changeset", "greet", changeset)["digest"]
        self.json("sandbox", "approve", "greet", changeset, "--digest", digest, "--comment", "looks right")
        reply = self.json("sandbox", "apply", "greet", changeset)
        print(f"$ fluxctl sandbox approve greet {changeset} --digest ...\n$ fluxctl sandbox apply greet {changeset}")
        expect(reply["state"] == "applied", "the changeset is applied")
        expect(not (self.project / "notes/old.txt").exists(), "the deletion has arrived")
        expect(os.access(self.project / "greet.sh", os.X_OK), "the mode has arrived")
        self.title("The project's own tests, in the real sandbox")
        self.show("sandbox", "exec", "greet", "--", "sh", "tests/run.sh")

    def refuse(self) -> None:
        """Let somebody edit the project between a run and its apply."""
        self.title("Somebody edits a file between a run and its apply: refused, nothing is overwritten")
        reply = self.json("sandbox", "speculate", "greet", "--", "echo 'Says hello politely.' >> README.md")
        self.json("sandbox", "approve", "greet", reply["id"])
        readme = self.project / "README.md"
        readme.write_text(readme.read_text() + "\nEdited meanwhile.\n")
        edited = readme.read_text()
        self.show("sandbox", "apply", "greet", reply["id"], code=CONFLICT)
        expect(readme.read_text() == edited, "the newer edit is still there")
        self.json("sandbox", "reject", "greet", reply["id"], "--comment", "stale")

    def revert(self, changeset: str, before: dict[str, object]) -> None:
        """Undo the applied changeset by its inverse."""
        self.title("Undo: the inverse is a changeset too, looked at and approved like any other")
        inverse = self.json("sandbox", "revert", "greet", changeset)["id"]
        self.show("sandbox", "changeset", "greet", inverse)
        self.json("sandbox", "approve", "greet", inverse)
        self.json("sandbox", "apply", "greet", inverse)
        after = tree(self.project)
        expect({**after, "README.md": before["README.md"]} == before, "all but the later edit is as it was")
        print("Everything is as it was, and the later edit of README.md is still there.")
        self.command(["sh", "tests/run.sh"])

    def title(self, text: str) -> None:
        """Say what comes."""
        self.count += 1
        bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
        print(f"\n{bold}{self.count}. {text}{plain}\n", flush=True)

    def command(self, words: list[str]) -> None:
        """Run a program on the real project."""
        print("$ " + " ".join(words), flush=True)
        subprocess.run(words, cwd=self.project, check=True, stdin=subprocess.DEVNULL)

    def json(self, *words: str) -> Any:
        """Run ``fluxctl`` for its JSON reply."""
        done = subprocess.run(
            [FLUXCTL, "--json", *words],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        expect(done.returncode == 0, f"fluxctl {' '.join(words[:2])} works, not so: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def show(self, *words: str, code: int = 0) -> str:
        """Run ``fluxctl`` on a terminal, print what a person sees, check its exit code and return the text."""
        print(f"$ fluxctl {' '.join(words)}", flush=True)
        master, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
        process = subprocess.Popen(
            [FLUXCTL, *words], env=self.environment, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal
        )
        os.close(terminal)
        text = drain(master)
        status = process.wait()
        print(text, end="", flush=True)
        expect(status == code, f"fluxctl {' '.join(words[:2])} ends with {code}, not with {status}")
        return text


def drain(master: int) -> str:
    """Return everything written to a terminal until its last writer has gone."""
    parts = []
    try:
        while data := os.read(master, 65536):
            parts.append(data)
    except OSError:
        pass  # how Linux says that nobody has the other side open any more
    finally:
        os.close(master)
    return b"".join(parts).decode("utf-8", "replace").replace("\r\n", "\n")


def tree(root: Path) -> dict[str, object]:
    """Return what the project holds: each path with its mode and content."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(root))] = (path.lstat().st_mode, content)
    return found


def expect(true: bool, what: str) -> None:
    """End the demo if something is not as told."""
    if not true:
        sys.exit(f"demo: not as told: {what}")


def main() -> None:
    """Run the demo and remove what it made."""
    with tempfile.TemporaryDirectory(prefix="flux-demo-") as place:
        Demo(Path(place)).run()
    print(
        "\nDone; nothing is left behind. To try it on a directory of yours, see First steps in README.md; before, do:"
    )
    print(f"  export PATH={shlex.quote(str(Path(FLUXCTL).parent))}:$PATH")


if __name__ == "__main__":
    main()
