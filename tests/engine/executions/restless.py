"""A program that a sandbox runs on itself: random changes of every kind, told by a number.

It is given to the sandbox's own Python as text, so it uses nothing of the project.
"""

import contextlib
import os
import random
import sys
from pathlib import Path

TOP = b"/data"
NAMES = [
    b"a",
    b"b",
    b"c",
    b"d",
    b"new\nline",
    b"\xff\xfe",
    b"base64:x",
    b"-",
    b" ",
    b"sp ace",
    b"%2D",
    b"\xc3\xa9",
    b"o" * 200,
]


def every(kind):
    found = []
    for above, directories, files in os.walk(TOP):
        if kind != "file":
            found += [
                os.path.join(above, name) for name in directories if not os.path.islink(os.path.join(above, name))
            ]
        if kind != "directory":
            found += [os.path.join(above, name) for name in files]
    if kind != "file":
        found.append(TOP)
    return sorted(found)


class Restless:
    def __init__(self, seed):
        self.chance = random.Random(seed)

    def spot(self):
        return os.path.join(self.chance.choice(every("directory")), self.chance.choice(NAMES))

    def written(self):
        """Return a spot that opening does not wait at: nothing, or a regular file."""
        path = self.spot()
        if os.path.lexists(path) and not os.path.isfile(path):
            raise ValueError(path)
        return path

    def any(self):
        return self.chance.choice(every("any"))

    def file(self):
        return self.chance.choice([path for path in every("file") if os.path.isfile(path) and not os.path.islink(path)])

    def write(self):
        with Path(os.fsdecode(self.written())).open("ab") as file:
            file.write(self.chance.randbytes(self.chance.choice([0, 1, 10, 5000, 70000, 200000])))

    def append(self):
        with Path(os.fsdecode(self.file())).open("ab") as file:
            file.write(self.chance.randbytes(10))

    def rewrite(self):
        with Path(os.fsdecode(self.file())).open("r+b") as file:
            file.write(self.chance.randbytes(5))

    def hole(self):
        with Path(os.fsdecode(self.written())).open("ab") as file:
            file.truncate(self.chance.choice([65536, 65537, 1 << 20, 300000]))
            file.seek(self.chance.choice([0, 70000, 200000]))
            file.write(b"x")

    def directory(self):
        os.mkdir(self.spot())

    def unlink(self):
        os.unlink(self.chance.choice(every("file")))

    def remove(self):
        import shutil

        path = self.chance.choice(every("directory"))
        if path != TOP:
            shutil.rmtree(path)

    def replace(self):
        """Make a directory anew under its name, which the overlay then has to keep opaque."""
        path = self.chance.choice(every("directory"))
        if path != TOP:
            import shutil

            shutil.rmtree(path)
            os.mkdir(path)

    def rename(self):
        os.rename(self.any(), self.spot())

    def rename_directory(self):
        os.rename(self.chance.choice(every("directory")), self.spot())

    def link(self):
        os.link(self.chance.choice(every("file")), self.spot(), follow_symlinks=False)

    def symlink(self):
        os.symlink(self.chance.choice(NAMES), self.spot())

    def fifo(self):
        os.mkfifo(self.spot())

    def mode(self):
        os.chmod(self.file(), self.chance.choice([0o600, 0o644, 0o4755, 0o000, 0o1777]))

    def owner(self):
        os.chown(self.any(), self.chance.choice([0, 1000, 65534]), 7, follow_symlinks=False)

    def attribute(self):
        os.setxattr(self.any(), "user." + self.chance.choice("xyz"), self.chance.randbytes(3), follow_symlinks=True)

    def forget(self):
        os.removexattr(self.any(), "user." + self.chance.choice("xyz"))

    def time(self):
        os.utime(self.any(), ns=(1, self.chance.randrange(1 << 60)), follow_symlinks=False)

    def act(self):
        names = [
            name
            for name in vars(Restless)
            if name not in ("__init__", "spot", "written", "any", "file", "act") and "__" not in name
        ]
        with contextlib.suppress(OSError, IndexError, ValueError):
            getattr(self, self.chance.choice(names))()


def main(seed, count):
    restless = Restless(seed)
    for _ in range(count):
        restless.act()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
