"""The caps of one changeset, with the defaults of spec: speculation. Configuration may change each; all are exact."""

from __future__ import annotations

import msgspec

KIB = 1024
MIB = 1024 * KIB


class Caps(msgspec.Struct, frozen=True, kw_only=True):
    """What one changeset may hold at most.

    Units: ``*_bytes`` bytes, ``*_seconds`` seconds. ``output_bytes`` is per stream (stdout, stderr). ``preimage_bytes``
    is the budget of the pre-images kept for text diffs. ``revert_bytes`` bounds what an apply keeps so that it can be
    reverted; above it the changeset applies but is not revertible.
    """

    file_bytes: int = 16 * MIB
    total_bytes: int = 64 * MIB
    output_bytes: int = 64 * KIB
    preimage_bytes: int = 64 * MIB
    revert_bytes: int = 1024 * MIB
    ttl_default_seconds: int = 3600
    ttl_max_seconds: int = 86400
    retention_seconds: int = 86400
