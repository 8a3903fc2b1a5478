"""Builds the two native parts: the tree scanner (a Python extension) and the procbox launcher (a program)."""

import os
import shlex
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
LAUNCHER_SOURCES = HERE / "src/flux/substrates/procbox/launcher"
LAUNCHER = "flux/substrates/procbox/_launcher"
HARDENING = [
    "-O2",
    "-Wall",
    "-Wextra",
    "-Wformat=2",
    "-fstack-protector-strong",
    "-D_FORTIFY_SOURCE=2",
    "-fPIE",
]


class BuildNative(build_ext):
    """Build the extension modules as usual, then the launcher beside the package that runs it."""

    def run(self) -> None:
        super().run()
        target_root = HERE / "src" if self.inplace else Path(self.build_lib)
        target = target_root / LAUNCHER
        target.parent.mkdir(parents=True, exist_ok=True)
        sources = sorted(str(path) for path in LAUNCHER_SOURCES.glob("*.c"))
        if not sources:
            return
        compiler = shlex.split(os.environ.get("CC", "cc"))
        # Static, so that an idle sandbox's init costs kilobytes and needs no library inside the sandbox.
        command = [*compiler, *HARDENING, "-static-pie", "-o", str(target), *sources, "-Wl,-z,relro,-z,now"]
        subprocess.run(command, check=True)


setup(
    ext_modules=[
        Extension(
            "flux.trees._native",
            sources=sorted(str(path.relative_to(HERE)) for path in (HERE / "src/flux/trees/native").glob("*.c")),
            extra_compile_args=["-O2", "-Wall", "-Wextra", "-pthread"],
            extra_link_args=["-pthread"],
        )
    ],
    cmdclass={"build_ext": BuildNative},
)
