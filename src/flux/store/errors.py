"""Foreign exceptions of the store, in Flux's own terms."""

from __future__ import annotations

import errno

from flux.core.errors import Code, FluxError


def from_os(error: OSError, action: str) -> FluxError:
    """Return what an operating system's refusal means while doing ``action`` ("write the changeset cs1")."""
    reason = (error.strerror or str(error)).lower()
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FluxError(Code.EXHAUSTED, f"cannot {action}: {reason}; free some space and try again")
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return FluxError(Code.EXHAUSTED, f"cannot {action}: {reason}; raise the limit or try again later")
    return FluxError(Code.UNAVAILABLE, f"cannot {action}: {reason}; the state directory needs attention")
