"""The object store that a URL names."""

from __future__ import annotations

from urllib.parse import parse_qs, unquote, urlsplit

from flux.core.errors import Code, FluxError
from flux.ports.artifacts import ObjectStore
from flux.ports.files import Files

_S3_OPTIONS = frozenset({"endpoint", "region"})


def open_store(url: str | None, files: Files) -> ObjectStore | None:
    """Return the store at ``file:///DIR`` or ``s3://BUCKET/PREFIX?endpoint=URL&region=NAME``; ``None`` for ``none``.

    Nothing is connected to: a store that is down shows when it is used.

    Raises:
        FluxError: ``invalid`` if it is no such URL.
    """
    if url is None or url == "none":
        return None
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.rstrip("/"):
        from flux.objects.directory import DirectoryStore

        return DirectoryStore(unquote(parts.path.rstrip("/"), errors="surrogateescape"), files)
    if parts.scheme == "s3" and parts.netloc:
        options = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        if not options.keys() - _S3_OPTIONS:
            from flux.objects.s3 import S3Store

            return S3Store(
                parts.netloc,
                unquote(parts.path).strip("/"),
                endpoint=options.get("endpoint"),
                region=options.get("region"),
            )
    raise FluxError(
        Code.INVALID,
        f"cannot use the object store {url[:200]!r}: it is neither file:///DIR nor s3://BUCKET/PREFIX, with endpoint= "
        "and region= if need be, nor none; set [objects] url",
    )
