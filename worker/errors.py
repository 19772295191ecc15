"""Every way in which a worker refuses or fails a request.

    RequestError                 400  invalid_request_error (or a code of its own)
    ├── UnsupportedParameter     400  unsupported_parameter
    ├── ContextLengthExceeded    400  context_length_exceeded
    ├── TextTooLong              400  context_length_exceeded
    ├── NotForThisModel          400  unsupported_by_model
    ├── NoChatTemplate           400  no_chat_template
    ├── GenerationFailed         500  engine_error
    │   ├── EngineGone           503  engine_stopped
    │   └── UnforeseenFault      500  engine_error
    ├── CannotResume             503  cannot_resume
    ├── GrammarsMissing          503  grammars_unavailable
    ├── CacheFull                503  no_room_in_cache
    └── WorkerDraining           503  worker_draining

Owns status, code and the field to blame; the router puts them in the dialect's JSON. What is wrong with messages is in
`chat/errors.py`, what a dialect says in its own words stands with it. Errors of the engine itself live with the engine.
"""

from __future__ import annotations

from worker.contract import ErrorPayload


class RequestError(Exception):
    """Root: `str()` is for the client, so it says what happened and what to do next."""

    status: int = 400
    code: str = "invalid_request_error"
    retry_after_s: float | None = None
    outcome: str = "rejected"
    """How the request is counted: turned away, or `error` when it failed while it was served."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def to_payload(self) -> ErrorPayload:
        """Return the error as it travels to the router."""
        return ErrorPayload(self.status, self.code, self.message, self.param, self.retry_after_s)


class UnsupportedParameter(RequestError):
    """The field exists in OpenAI's or llama-server's API and this release cannot honour it."""

    code = "unsupported_parameter"


class ContextLengthExceeded(RequestError):
    """The prompt leaves no room for a single token of an answer."""

    code = "context_length_exceeded"

    def __init__(self, *, num_prompt: int, context: int, param: str, is_at_least: bool = False) -> None:
        self.num_prompt, self.context, self.is_at_least = num_prompt, context, is_at_least
        least = "at least " if is_at_least else ""
        # Agents recognise an overflow by these words and compact their history.
        super().__init__(
            f"This model's maximum context length is {context} tokens. However, your {param} resulted in "
            f"{least}{num_prompt} tokens, and the answer needs at least 1. Please reduce the length of the {param}.",
            param=param,
        )


class TextTooLong(RequestError):
    """A text that must go through the model in one piece is longer than the model reads."""

    code = "context_length_exceeded"

    def __init__(self, place: str, num_tokens: int, limit: int, *, param: str, is_at_least: bool = False) -> None:
        least = "at least " if is_at_least else ""
        super().__init__(
            f"'{place}' has {least}{num_tokens} tokens, but this model reads at most {limit} tokens of one text. "
            "Shorten it, or split it into several texts.",
            param=param,
        )


class NotForThisModel(RequestError):
    """The model is of a kind that cannot do what the route is for."""

    code = "unsupported_by_model"


class NoChatTemplate(RequestError):
    """Messages cannot become a prompt: the model has no usable chat template."""

    code = "no_chat_template"


class GenerationFailed(RequestError):
    """The engine could not go on with a request that it had accepted."""

    status = 500
    code = "engine_error"
    outcome = "error"


class EngineGone(GenerationFailed):
    """The engine has ended; another worker will answer."""

    status = 503
    code = "engine_stopped"
    retry_after_s = 1.0


class UnforeseenFault(GenerationFailed):
    """A fault of this program. The client learns no more than that: the cause may quote somebody's text."""

    def __init__(self) -> None:
        super().__init__(
            "The model's worker failed on this request for a reason that nobody foresaw; the server's log has it "
            "under this request's id."
        )


class CannotResume(RequestError):
    """An answer that another worker began cannot go on here: the router ends it with an error."""

    status = 503
    code = "cannot_resume"
    retry_after_s = 1.0
    outcome = "error"


class CacheFull(RequestError):
    """Running requests have the cells, or the memory, that a saved slot needs."""

    status = 503
    code = "no_room_in_cache"
    retry_after_s = 1.0
    outcome = "error"


class GrammarsMissing(RequestError):
    """Answers cannot be held to anything now: the process that tries grammars out cannot be started."""

    status = 503
    code = "grammars_unavailable"
    retry_after_s = 1.0
    outcome = "error"


class WorkerDraining(RequestError):
    """The worker finishes what it has and takes nothing new."""

    status = 503
    code = "worker_draining"
    retry_after_s = 1.0
