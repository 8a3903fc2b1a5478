"""Lists that come in pages."""

from __future__ import annotations

from typing import Any

from flux.cli.invocation import Invocation

_LIMIT = 500


def every_page(invocation: Invocation, operation: str, **path: str) -> dict[str, Any]:
    """Call a listing operation until its end and return all items as one page."""
    items: list[Any] = []
    cursor: str | None = None
    while True:
        page = invocation.call(operation, query={"limit": _LIMIT, "cursor": cursor}, **path)
        items.extend(page["items"])
        cursor = page["next_cursor"]
        if cursor is None:
            return {"items": items, "next_cursor": None}
