"""The daemon's log: one JSON object per line on stderr, or a form for people if that is a terminal."""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

import structlog

from flux.api.rest.guard import Finished, RequestObserver
from flux.core.paths import printable

_QUIET_PATHS = frozenset({"/healthz", "/metrics"})
_SERVER_FAULT = 500


def configure(stream: TextIO = sys.stderr) -> None:
    """Send everything that is logged in this process to ``stream``."""
    people = stream.isatty()
    form: Any = structlog.dev.ConsoleRenderer() if people else structlog.processors.JSONRenderer(default=str)
    traces = [] if people else [structlog.processors.dict_tracebacks]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *traces,
            form,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_Forwarded()], level=logging.WARNING, force=True)


class _Forwarded(logging.Handler):
    """Brings what libraries log into the same form."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record of the standard library."""
        log = structlog.get_logger()
        log.log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info)


class RequestLog:
    """Implements ``api.rest.guard.RequestObserver``: one line per request.

    Args:
        counted: hears of every request too.
    """

    def __init__(self, counted: RequestObserver) -> None:
        self._log = structlog.get_logger()
        self._counted = counted

    def finished(self, request: Finished) -> None:
        """Log a request; a fault of Flux with its trace."""
        self._counted.finished(request)
        if request.path in _QUIET_PATHS and request.outcome == "ok":
            return
        fields = {
            "request_id": request.request_id,
            "operation": request.operation,
            "outcome": request.outcome,
            "status": request.status,
            "latency_ms": request.latency_ms,
            "method": request.method,
            "path": printable(request.path),
            "actor": request.actor,
            "sandbox_id": request.sandbox,
            "changeset": request.changeset,
        }
        known = {name: value for name, value in fields.items() if value is not None}
        if request.status >= _SERVER_FAULT and request.fault is not None:
            self._log.error("request", **known, exc_info=request.fault)
        else:
            self._log.info("request", **known)
