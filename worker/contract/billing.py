"""The line that some agents put in front of the system prompt, another one each time.

With it no prompt would begin as the one before: nothing of it would be found in the cache, and the router could not
tell which worker knows the conversation. Owns which line that is. Pure.
"""

from __future__ import annotations

BILLING_HEADER = "x-anthropic-billing-header:"
"""Begins the line."""


def without_billing_header(text: str) -> str:
    """Return the text without such lines at its beginning."""
    while text.startswith(BILLING_HEADER):
        text = text.partition("\n")[2].lstrip("\n")
    return text
