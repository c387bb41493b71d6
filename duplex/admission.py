"""Who is not admitted, and why."""

from __future__ import annotations

import structlog

from duplex.metrics import Metrics
from sessions.store import ClientError, StoreError, StoreFull

RETRY_AFTER_S = 15

_log = structlog.get_logger("duplex.gateway")


class RefusedError(RuntimeError):
    """The call is not admitted. `retry_after_s`: when it may pass; None: never as it was asked. `status`: HTTP's, 429
    where its tenant is the reason and 503 where the service is."""

    def __init__(
        self, code: str, message: str, retry_after_s: int | None = RETRY_AFTER_S, *, status: int = 503
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s
        self.status = status


def store_refusal(error: StoreError, metrics: Metrics) -> RefusedError:
    """Why a session could not be opened in the store."""
    if isinstance(error, ClientError):
        message = "there is no such session, or the token is not its own"
        return RefusedError("session_not_resumable", message, retry_after_s=None)
    metrics.store_errors.labels(type(error).__name__).inc()
    _log.error("store_refused", error=type(error).__name__)
    code = "store_full" if isinstance(error, StoreFull) else "store_unavailable"
    return RefusedError(code, f"the session could not be opened: {error}")
