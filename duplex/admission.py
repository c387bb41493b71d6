"""Who is not admitted, and why."""

from __future__ import annotations

RETRY_AFTER_S = 15


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
