"""Every way in which the router refuses or fails a request.

    RouterError                500  internal_error
    ├── NotWritten             500  not_written
    │   └── DiskFull           507  disk_full
    ├── BadRequest             400  invalid_request_error (or a code of its own)
    ├── Unauthorized           401  invalid_api_key
    ├── Forbidden              403  forbidden
    │   └── WrongAddress       403  wrong_address
    ├── NotFound               404  not_found
    │   └── ModelNotFound      404  model_not_found
    ├── MethodNotAllowed       405  method_not_allowed
    ├── BodyTooSlow            408  request_too_slow
    ├── Conflict               409  conflict
    ├── Gone                   410  offset_gone (or a code of its own)
    ├── BodyTooLarge           413  request_too_large
    ├── UnsupportedMediaType   415  unsupported_media_type
    ├── TooManyRequests        429  queue_full
    ├── RateLimited            429  rate_limit_exceeded
    ├── TooManyWrongKeys       429  too_many_wrong_keys
    ├── NotAvailableYet        501  not_available_yet
    ├── RemoteFailed           502  remote_failed
    ├── RemoteRefused          502  remote_refused
    ├── RemoteUnreachable      503  remote_unreachable
    ├── ModelUnavailable       503  model_unavailable
    ├── NoFreeSlot             503  no_free_slot
    ├── QueueTimeout           503  queue_timeout
    ├── RequestTimeout         503  request_timeout
    ├── WorkerDied             503  worker_died
    ├── WorkerRefused          (what the worker said)
    ├── ShuttingDown           503  shutting_down
    └── ModelTooLarge          507  model_too_large

Owns status, code and retry advice; must not know a dialect's JSON (`dialects.py` does).
"""

from __future__ import annotations

from worker.contract import ErrorPayload


class RouterError(Exception):
    """Root: `str()` is for the client, so it says what happened and what to do next."""

    http_status: int = 500
    code: str = "internal_error"
    default_retry_after_s: float | None = None
    """Advice to the client where whoever raises the error knows no better."""

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s if retry_after_s is not None else self.default_retry_after_s
        if code is not None:
            self.code = code

    def to_payload(self) -> ErrorPayload:
        """Return the error in the form that workers use too, so that one function formats both."""
        return ErrorPayload(self.http_status, self.code, self.message, self.param, self.retry_after_s)


class NotWritten(RouterError):
    """The system does not let the server write a file; the message has its words. No fault of the client's."""

    code = "not_written"


class DiskFull(NotWritten):
    """There is no room for the file, on the disk or in the quota of the server's user."""

    http_status = 507
    code = "disk_full"


class BadRequest(RouterError):
    """The client's fault; repeating the request will not help."""

    http_status = 400
    code = "invalid_request_error"


class Unauthorized(RouterError):
    """No key or a wrong one. The message never says which."""

    http_status = 401
    code = "invalid_api_key"


class Forbidden(RouterError):
    """The key may not do this, or the page that sent the request may not."""

    http_status = 403
    code = "forbidden"


class WrongAddress(Forbidden):
    """The route is answered at the operators' address alone."""

    code = "wrong_address"


class NotFound(RouterError):
    """No such route."""

    http_status = 404
    code = "not_found"


class ModelNotFound(NotFound):
    """No model or alias of this name; the message lists the nearest ones."""

    code = "model_not_found"


class MethodNotAllowed(RouterError):
    """The route exists, for another method."""

    http_status = 405
    code = "method_not_allowed"


class BodyTooSlow(RouterError):
    """The request's body did not come in time."""

    http_status = 408
    code = "request_too_slow"


class Conflict(RouterError):
    """What the client wants to change is no longer what it has seen."""

    http_status = 409
    code = "conflict"


class Gone(RouterError):
    """What the client wants was there, and will not come back."""

    http_status = 410
    code = "offset_gone"


class BodyTooLarge(RouterError):
    """The body is longer than `limits.max_body_bytes`."""

    http_status = 413
    code = "request_too_large"


class UnsupportedMediaType(RouterError):
    """The body is not declared as JSON; a page can send such a request without asking the browser first."""

    http_status = 415
    code = "unsupported_media_type"


class TooManyRequests(RouterError):
    """The model's queue is full."""

    http_status = 429
    code = "queue_full"


class RateLimited(RouterError):
    """The API key has reached one of its limits; the message says which."""

    http_status = 429
    code = "rate_limit_exceeded"


class TooManyWrongKeys(RouterError):
    """A wrong API key from an address that has sent many of them."""

    http_status = 429
    code = "too_many_wrong_keys"


class NotAvailableYet(RouterError):
    """What this release, or this configuration, does not do."""

    http_status = 501
    code = "not_available_yet"


class RemoteFailed(RouterError):
    """The server that a model is on answered with something that is no answer, or with half of one."""

    http_status = 502
    code = "remote_failed"


class RemoteRefused(RouterError):
    """That server does not accept the router's own API key, which is no fault of the client's."""

    http_status = 502
    code = "remote_refused"


class RemoteUnreachable(RouterError):
    """There is no connection to that server."""

    http_status = 503
    code = "remote_unreachable"
    default_retry_after_s = 5.0


class ModelUnavailable(RouterError):
    """The model cannot be loaded now; the message carries the reason that the last attempt gave."""

    http_status = 503
    code = "model_unavailable"


class NoFreeSlot(RouterError):
    """Every slot is busy, and the client has asked to be told so."""

    http_status = 503
    code = "no_free_slot"


class ModelTooLarge(RouterError):
    """No device of this machine could ever hold the model; the message has the numbers."""

    http_status = 507
    code = "model_too_large"


class QueueTimeout(RouterError):
    """Waited `limits.queue_timeout_s` without getting a place."""

    http_status = 503
    code = "queue_timeout"


class RequestTimeout(RouterError):
    """The answer took longer than the model's `request_timeout_s`."""

    http_status = 503
    code = "request_timeout"


class WorkerDied(RouterError):
    """The worker process ended in the middle of this request."""

    http_status = 503
    code = "worker_died"


class ShuttingDown(RouterError):
    """The router is stopping."""

    http_status = 503
    code = "shutting_down"
    default_retry_after_s = 5.0


class WorkerRefused(RouterError):
    """The worker answered with an error frame; status, code and text are the worker's."""

    def __init__(self, payload: ErrorPayload) -> None:
        super().__init__(payload.message, code=payload.code, param=payload.param, retry_after_s=payload.retry_after_s)
        self.http_status = payload.status
