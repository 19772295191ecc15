"""A refused lease as the error that its request ends with."""

from __future__ import annotations

from typing import assert_never

from router.errors import (
    ModelNotFound,
    ModelTooLarge,
    ModelUnavailable,
    QueueTimeout,
    RouterError,
    ShuttingDown,
    TooManyRequests,
)
from router.events import RefusalKind, RefuseLease


def lease_error(refused: RefuseLease) -> RouterError:
    """Return the error that tells the client why it was refused, and when to come back."""
    match refused.kind:
        case RefusalKind.UNKNOWN_MODEL:
            return ModelNotFound(refused.detail, param="model")
        case RefusalKind.UNAVAILABLE:
            return ModelUnavailable(refused.detail, retry_after_s=refused.retry_after_s)
        case RefusalKind.TOO_LARGE:
            return ModelTooLarge(refused.detail)
        case RefusalKind.QUEUE_FULL:
            return TooManyRequests(refused.detail, retry_after_s=refused.retry_after_s)
        case RefusalKind.QUEUE_TIMEOUT:
            return QueueTimeout(refused.detail, retry_after_s=refused.retry_after_s)
        case RefusalKind.SHUTTING_DOWN:
            return ShuttingDown(refused.detail, retry_after_s=refused.retry_after_s)
        case _:
            assert_never(refused.kind)
