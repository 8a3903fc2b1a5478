"""Routes of E2B that Flux has no answer for: 501 that says so, and 404 in E2B's shape for the rest (spec: e2b, §3)."""

from __future__ import annotations

from flux.api.e2b import snapshots
from flux.api.e2b.endpoint import Answer, Call, Handler, Row
from flux.api.e2b.errors import Unsupported
from flux.core.errors import Code, FluxError

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def templates(call: Call) -> Answer:
    """Refuse to build, list or tag templates."""
    raise Unsupported("build or change templates", "templates are directories of the administrator's; use base")


def volumes(call: Call) -> Answer:
    """Refuse to keep volumes."""
    raise Unsupported("keep volumes", "keep files in a sandbox, and pause or snapshot it")


def secrets(call: Call) -> Answer:
    """Refuse to keep secrets."""
    raise Unsupported("keep secrets", "give them to a sandbox as envs")


def accounts(call: Call) -> Answer:
    """Refuse to administer teams and keys."""
    raise Unsupported("administer teams and keys here", "use fluxctl keys")


def nowhere(call: Call) -> Answer:
    """Tell that there is no such route."""
    raise FluxError(Code.NOT_FOUND, "cannot find that route: it is none of E2B's that is served here")


_FAMILIES = {
    "/templates": templates,
    "/v2/templates": templates,
    "/v3/templates": templates,
    "/volumes": volumes,
    "/secrets": secrets,
    "/teams": accounts,
    "/api-keys": accounts,
    "/access-tokens": accounts,
}
_ELSE = ("/sandboxes/{rest...}", "/snapshots/{rest...}", "/v2/{rest...}", "/v3/{rest...}")


def _rows(path: str, operation: str, handler: Handler, but: tuple[str, ...] = ()) -> list[Row]:
    return [
        Row(method=method, path=path, operation=operation, handler=handler) for method in _METHODS if method not in but
    ]


ROWS: tuple[Row, ...] = (
    *(row for path, handler in _FAMILIES.items() for row in _rows(path, "unsupported", handler)),
    *_rows("/templates/tags", "unsupported", templates),
    *(
        row
        for path, handler in _FAMILIES.items()
        if path != "/templates"
        for row in _rows(path + "/{rest...}", "unsupported", handler)
    ),
    *snapshots.LAST,
    *_rows("/templates/{template...}", "unsupported", templates, but=("DELETE",)),
    *(row for path in _ELSE for row in _rows(path, "nowhere", nowhere)),
)
