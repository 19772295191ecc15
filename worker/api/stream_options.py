"""What OpenAI's dialects share of `stream_options`.

Must not know what else a dialect has in them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, WithJsonSchema, field_validator

from worker.api.fields import Fields, unsupported


class StreamOptions(Fields):
    """`stream_options`."""

    include_obfuscation: Annotated[bool | None, WithJsonSchema({"enum": [False, None]})] = Field(
        None, description="true or false"
    )

    @field_validator("include_obfuscation")
    @classmethod
    def _refuse_padding(cls, value: bool | None) -> bool | None:
        if value:
            raise unsupported("is not available in this release")
        return value
