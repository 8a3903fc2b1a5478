"""The query parameters of the operations. Unknown ones are refused, like unknown fields of a body."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

LONGEST_WAIT_SECONDS = 300

Limit = Annotated[int, msgspec.Meta(ge=1, le=500)]
WaitSeconds = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_WAIT_SECONDS)]
OctalMode = Annotated[str, msgspec.Meta(pattern="^[0-7]{3,4}$")]


class Query(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Query parameters whose unknown names are errors."""


class PageQuery(Query):
    """Which page of a list: at most ``limit`` items after ``cursor`` (the previous page's ``next_cursor``)."""

    limit: Limit = 100
    cursor: str | None = None


class AuditQuery(PageQuery):
    """Which audit lines. ``since`` is an RFC 3339 time. With ``wait_seconds`` an empty page waits for its first line;
    without a ``cursor`` it then begins at the end of the log."""

    sandbox_id: str | None = None
    changeset: str | None = None
    event: str | None = None
    actor: str | None = None
    since: str | None = None
    wait_seconds: WaitSeconds = 0.0


class PathQuery(Query):
    """One entry of a sandbox's tree, absolute in the sandbox's own terms; percent-encoded bytes are kept exactly."""

    path: str


class ScopeQuery(Query):
    """The part of the tree to look at; all of it if absent."""

    path: str | None = None


class WriteQuery(PathQuery):
    """Where to write, and the permission bits as octal digits."""

    mode: OctalMode | None = None


class ArtifactsQuery(Query):
    """Whose artifacts; everybody's that the caller sees if no ``sandbox`` is named."""

    sandbox: str | None = None


class MetricsQuery(Query):
    """From when to when, both inclusive, as RFC 3339 times; without them all that is kept."""

    start: str | None = None
    end: str | None = None


class CompareQuery(Query):
    """The changesets to compare; the parameter is repeated."""

    changeset: Annotated[list[str], msgspec.Meta(min_length=2, max_length=16)]


class ExportQuery(Query):
    """The form to export in: a unified ``patch`` of the text files, or a ``tar`` archive of all staged contents."""

    format: Literal["patch", "tar"] = "patch"


class WaitQuery(Query):
    """How long to wait for a decision, in seconds; the reply then is the changeset as it is."""

    timeout_seconds: WaitSeconds = 30.0
