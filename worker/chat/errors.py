"""Why messages cannot become a prompt.

    RequestError (worker/errors.py)
    └── TemplateError              400  invalid_request_error
        ├── UnsupportedContent     400  unsupported_content
        └── LimitExceeded          400  template_limit_exceeded

Each message is for the client. Must not know how templates work.
"""

from __future__ import annotations

from worker.errors import RequestError

TEXT_ONLY = "images, audio and files are not available in this release. Send text alone"


class TemplateError(RequestError):
    """The template refused the conversation, in its own words, or it failed or cannot be compiled."""


class UnsupportedContent(TemplateError):
    """A part of a message is not text; `param` names it."""

    code = "unsupported_content"


class LimitExceeded(TemplateError):
    """Rendering would take too much time or memory: a hostile template, or a conversation far beyond any context."""

    code = "template_limit_exceeded"
