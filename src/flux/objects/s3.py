"""Artifact parts in S3, or in what speaks its protocol and honours ``If-None-Match`` (spec: generations, §6).

A put carries the SHA-256 of its content, which the service checks before it stores anything; so an object that is there
has the content that was sent. Credentials come from the environment, the container or the machine, as AWS's own tools
take them. Every request has a time-out, and is repeated only a few times.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from flux.core.errors import Code, FluxError
from flux.core.objects import check_key
from flux.objects.limits import check_size

if TYPE_CHECKING:
    from obstore.store import S3Store as Client

_PAGE = 1000
_WHY_CHARACTERS = 300
_DENIED = ("401 Unauthorized", "403 Forbidden")  # of a listing, which has no error of its own for it


class S3Store:
    """Implements ``ports.artifacts.ObjectStore`` in a bucket.

    Args:
        bucket: its name.
        prefix: what all keys begin with; empty for none.
        endpoint: URL of a service that is not Amazon's. Only here ``http://`` is taken.
        region: of the bucket; the environment's, or ``us-east-1``, if not given.
        timeout_seconds: for one request.
        retries: how often a request is repeated that failed through no fault of its own.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint: str | None = None,
        region: str | None = None,
        timeout_seconds: float = 60.0,
        retries: int = 3,
    ) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._endpoint = endpoint
        self._region = region
        self._timeout = timedelta(seconds=timeout_seconds)
        self._retries = retries
        self._opened: Client | None = None

    def put_new(self, key: str, data: bytes) -> bool:
        check_key(key)
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with self._wrapped("store", key):
            try:
                obstore.put(self._client(), key, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                # Also what a service answers (409) while somebody else puts or deletes the same key: it may be free.
                if self.head(key) is None:
                    raise self._error(
                        "store", key, ConnectionError("another request for the key was under way")
                    ) from None
                return False
            return True

    def get(self, key: str) -> bytes:
        check_key(key)
        import obstore

        with self._wrapped("read", key):
            found = obstore.get(self._client(), key)
            check_size(key, found.meta["size"])
            return bytes(found.bytes())

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        check_key(key)
        import obstore

        size = self.head(key)
        with self._wrapped("read", key):
            if size is None:
                raise FileNotFoundError(key)
            if offset >= size or length <= 0:
                return b""
            return bytes(obstore.get_range(self._client(), key, start=offset, length=min(length, size - offset)))

    def head(self, key: str) -> int | None:
        check_key(key)
        import obstore

        with self._wrapped("look for", key):
            try:
                return obstore.head(self._client(), key)["size"]
            except FileNotFoundError:
                return None

    def list(self, prefix: str) -> list[tuple[str, int, float]]:
        top = prefix.strip("/")
        if top:
            check_key(top)
        import obstore

        with self._wrapped("list", prefix or "/"):
            pages = obstore.list(self._client(), top or None, chunk_size=_PAGE)
            return sorted(
                (item["path"], item["size"], item["last_modified"].timestamp()) for page in pages for item in page
            )

    def delete(self, key: str) -> None:
        check_key(key)
        import obstore

        with self._wrapped("delete", key):
            try:
                obstore.delete(self._client(), key)
            except FileNotFoundError:
                return

    def _client(self) -> Client:
        if self._opened is None:
            from obstore.store import S3Store as Opened

            self._opened = Opened(
                self._bucket,
                prefix=self._prefix or None,
                config={
                    "checksum_algorithm": "SHA256",
                    "conditional_put": "etag",
                    "disable_bulk_delete": True,
                    **({"endpoint": self._endpoint} if self._endpoint else {}),
                    **({"region": self._region} if self._region else {}),
                },
                client_options={
                    "timeout": self._timeout,
                    "connect_timeout": min(self._timeout, timedelta(seconds=10)),
                    "allow_http": (self._endpoint or "").startswith("http://"),
                },
                retry_config={
                    "max_retries": self._retries,
                    "retry_timeout": self._timeout * 2,
                    "backoff": {
                        "init_backoff": timedelta(milliseconds=100),
                        "max_backoff": timedelta(seconds=5),
                        "base": 2,
                    },
                },
            )
        return self._opened

    @contextmanager
    def _wrapped(self, what: str, key: str) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except FluxError:
            raise
        except (BaseError, OSError, ValueError) as error:
            raise self._error(what, key, error) from error

    def _error(self, what: str, key: str, error: Exception) -> FluxError:
        from obstore.exceptions import NotFoundError, PermissionDeniedError, UnauthenticatedError

        why = (str(error).strip().splitlines() or [type(error).__name__])[0].strip(" :")
        text = f"cannot {what} {key} in the object store s3://{self._bucket}: {why[:_WHY_CHARACTERS]}"
        details = {"key": key, "bucket": self._bucket}
        if isinstance(error, (PermissionDeniedError, UnauthenticatedError)) or why.endswith(_DENIED):
            return FluxError(Code.DENIED, f"{text}: see the AWS_… variables and the bucket's policy", details)
        if isinstance(error, (NotFoundError, FileNotFoundError)) and what == "read":
            return FluxError(Code.NOT_FOUND, f"{text}: it was never stored there, or has been collected", details)
        return FluxError(Code.UNAVAILABLE, f"{text}: see that it runs and can be reached; it is tried again", details)
