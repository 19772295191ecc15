"""Text to prompt tokens and back, and the one check of their length.

Owns what is trusted: only template text and raw prompts may contain special tokens, and BOS is never doubled. Must not
know templates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from worker.api.ports import Vocabulary
from worker.chat.control_texts import ControlTexts
from worker.chat.marks import Markers
from worker.errors import ContextLengthExceeded, RequestError

if TYPE_CHECKING:  # Jinja is loaded beside the weights, not before them
    from worker.chat.template import Segment

MAX_TOKEN_CHARS = 256
"""No vocabulary has longer tokens; the longest are runs of spaces or dashes."""
_NO_MARKERS = Markers()


def tokens_of_segments(
    vocabulary: Vocabulary, segments: Iterable[Segment], markers: Markers = _NO_MARKERS
) -> list[int]:
    """Return the tokens of a rendered template; in text of users special tokens and `markers` stay plain text."""
    tokens: list[int] = []
    control = ControlTexts(markers.tokens)
    for segment in segments:
        if segment.is_trusted:
            tokens += vocabulary.tokenize(segment.text, add_special=False, parse_special=True)
        else:
            for part in _without_whole(control, segment.text):
                tokens += vocabulary.tokenize(part, add_special=False, parse_special=False)
    return with_one_bos(vocabulary, tokens)


def _without_whole(markers: ControlTexts, text: str) -> Iterator[str]:
    """Yield `text` in parts none of which has a whole marker in it.

    llama.cpp finds tokens that a model's author has added and named in any text, however it is asked to read it.
    """
    position = 0
    for start, end in markers.find(text):
        if position <= start and end - start > 1:
            yield text[position : start + 1]
            position = start + 1
    yield text[position:]


def tokens_of_raw_prompt(vocabulary: Vocabulary, text: str) -> list[int]:
    """Return the tokens of a prompt that the client has formatted itself, special tokens included."""
    return with_one_bos(vocabulary, vocabulary.tokenize(text, add_special=False, parse_special=True))


def with_one_bos(vocabulary: Vocabulary, tokens: list[int]) -> list[int]:
    """Return `tokens` with exactly one BOS in front if the model wants one; else as they are.

    Models that want none may use the same token as their turn marker, where repeating it can be meant.
    """
    bos = vocabulary.bos
    if bos is None or not vocabulary.add_bos:
        return tokens
    num_bos = next((i for i, token in enumerate(tokens) if token != bos), len(tokens))
    return [bos, *tokens[num_bos:]]


def text_of_tokens(vocabulary: Vocabulary, tokens: Iterable[int]) -> str:
    """Return the text of `tokens`, control tokens included. Bytes that are no text become U+FFFD."""
    return b"".join(vocabulary.piece(token, special=True) for token in tokens).decode("utf-8", "replace")


def check_token(vocabulary: Vocabulary, token: int, param: str, *, place: str | None = None) -> int:
    """Return `token` if the vocabulary has it; `place` is where in `param` it stands. Raises: RequestError."""
    if not 0 <= token < vocabulary.num_vocab:
        raise RequestError(
            f"'{place or param}' has the token id {token}, but the ids of this model are 0 to "
            f"{vocabulary.num_vocab - 1}.",
            param=param,
        )
    return token


def check_text_length(num_chars: int, *, context: int, param: str) -> None:
    """Return if a text of so many characters may fit; what surely does not is not worth tokenising.

    Raises: ContextLengthExceeded.
    """
    if num_chars > context * MAX_TOKEN_CHARS:
        num_prompt = num_chars // MAX_TOKEN_CHARS
        raise ContextLengthExceeded(num_prompt=num_prompt, context=context, param=param, is_at_least=True)


def check_length(tokens: Sequence[int], *, context: int, param: str) -> int:
    """Return the room that is left for the answer, at least 1. Raises: ContextLengthExceeded."""
    room = context - len(tokens)
    if room < 1:
        raise ContextLengthExceeded(num_prompt=len(tokens), context=context, param=param)
    return room
