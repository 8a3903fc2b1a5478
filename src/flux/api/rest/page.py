"""The review page's files, served as they are: no build, no outside request, nothing but its own script."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.requests import Request

_DIRECTORY = Path(__file__).parent.parent / "ui"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
_FILES = ("index.html", "review.css", "review.js", "client.js", "text.js", "changeset.js", "diff.js")
ROUTES = MappingProxyType({"/ui": "index.html", "/ui/": "index.html", **{f"/ui/{name}": name for name in _FILES}})

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "x-frame-options": "DENY",
    "cache-control": "no-cache",
}


@cache
def _content(name: str) -> bytes:
    return (_DIRECTORY / name).read_bytes()


async def serve(request: Request) -> Response:
    """Answer with one file of the page."""
    name = ROUTES[request.scope["path"]]
    return Response(_content(name), headers=_HEADERS, media_type=_TYPES[Path(name).suffix])
