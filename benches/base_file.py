"""Writing and reading the base of 100 000 entries."""

from __future__ import annotations

from benches import measure
from flux.core.manifest import EntryType, Fingerprint, Manifest, decode, encode

ENTRIES = 100_000
ROUNDS = 9
LIMIT_MS = 100


def sample() -> Manifest:
    """Return a manifest as a scan of a source tree would make it."""
    return {
        f"/packages/part{number // 1000:03d}/modules/file{number:06d}.py": Fingerprint(
            type=EntryType.FILE,
            mode=0o644,
            uid=1000,
            gid=1000,
            size=number,
            mtime_ns=1_700_000_000_000_000_000 + number * 1_000_003,
            ctime_ns=1_700_000_000_000_000_000 + number * 1_000_033,
            inode=1_000_000 + number,
            links=1,
        ).token()
        for number in range(ENTRIES)
    }


def run() -> list[measure.Row]:
    """Return one row for each direction."""
    manifest = sample()
    with measure.folder() as place:
        file = place / "base.json"
        file.write_bytes(encode(manifest))
        raw = file.read_bytes()
        write, read, bare_write, bare_read = measure.in_turn(
            ROUNDS,
            lambda: file.write_bytes(encode(manifest)),
            lambda: decode(file.read_bytes()),
            lambda: file.write_bytes(raw),
            file.read_bytes,
        )
    return [
        measure.Row(
            "write base.json, 100 000 entries; beside it the bare write", write, bare_write, "ms", "absolute", LIMIT_MS
        ),
        measure.Row(
            "read base.json, 100 000 entries; beside it the bare read", read, bare_read, "ms", "absolute", LIMIT_MS
        ),
    ]
