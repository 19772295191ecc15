"""What stands around a gap to the prompt that fills it in, the same for every dialect that can ask for it.

Owns the order of the parts and which of them may be left out. Client text stays plain text: only the model's own FIM
tokens stand between the parts. Must not read bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from worker.api.prompt import MAX_TOKEN_CHARS, check_text_length, with_one_bos
from worker.api.served import ServedModel
from worker.engine.vocabulary import FimTokens
from worker.errors import NotForThisModel

Tokens = tuple[int, ...]
Plain = Callable[[str], list[int]]
"""Text to tokens; no text becomes a control token."""


@dataclass(frozen=True, slots=True)
class ExtraFile:
    """Another file, or a part of one, that tells the model what the gap is about."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Gap:
    """What stands around the text that is wanted."""

    prefix: str
    suffix: str
    extras: Sequence[ExtraFile] = ()
    """The nearest last."""
    start: str = ""
    """How the text in the gap begins."""
    prefix_param: str = "prompt"
    """The field that `prefix` came in."""
    suffix_param: str = "suffix"
    start_param: str = "prompt"


@dataclass(frozen=True, slots=True)
class FimPrompt:
    """A prompt whose answer fills the gap."""

    tokens: Tokens
    num_left_out: int = 0
    """Extra files for which there was no room: the first ones."""


def fim_prompt(model: ServedModel, gap: Gap, *, num_answer: int = 1) -> FimPrompt:
    """Return the prompt; extra files are left out, first ones first, where they leave no room for the answer.

    `num_answer` is how many tokens the answer wants. Whether the rest fits is checked with every prompt.
    Raises: NotForThisModel; ContextLengthExceeded for what surely does not fit.
    """
    fim = model.vocabulary.fim
    if fim.prefix is None or fim.suffix is None or fim.middle is None:
        raise NotForThisModel(
            f"The model '{model.name}' does not support filling in the middle: its vocabulary has no FIM tokens. Use "
            "a model for code such as Qwen2.5-Coder, or leave the text after the gap out and continue the one before "
            "it by POST /v1/completions.",
            param=gap.suffix_param,
        )
    context = model.context
    check_text_length(len(gap.prefix), context=context, param=gap.prefix_param)
    check_text_length(len(gap.suffix), context=context, param=gap.suffix_param)
    check_text_length(len(gap.start), context=context, param=gap.start_param)
    plain = partial(model.vocabulary.tokenize, add_special=False, parse_special=False)
    core = [fim.prefix, *plain(gap.prefix), fim.suffix, *plain(gap.suffix), fim.middle, *plain(gap.start)]
    room = context - max(1, num_answer) - model.vocabulary.add_bos - len(core)
    around, num_kept = _extras(plain, fim, gap.extras, room)
    return FimPrompt(tuple(with_one_bos(model.vocabulary, around + core)), len(gap.extras) - num_kept)


def _extras(plain: Plain, fim: FimTokens, extras: Sequence[ExtraFile], room: int) -> tuple[list[int], int]:
    """Return what stands in front of the file with the gap, and how many of the extra files it has."""
    head = [] if fim.file is None or fim.repository is None else [fim.repository, *plain("project\n")]
    tail = [] if fim.file is None else [fim.file, *plain("current\n")]
    room -= len(head) + len(tail)
    kept: list[list[int]] = []
    for extra in reversed(extras):
        if len(extra.text) > room * MAX_TOKEN_CHARS:  # not worth tokenising
            break
        tokens = _one_file(plain, fim, extra)
        room -= len(tokens)
        if room < 0:
            break
        kept.append(tokens)
    files = [token for tokens in reversed(kept) for token in tokens]
    return ([*head, *files, *tail] if kept else []), len(kept)


def _one_file(plain: Plain, fim: FimTokens, extra: ExtraFile) -> list[int]:
    if fim.file is None:  # the model was taught no files: it sees a snippet in front of the text, as with llama-server
        return plain(f"\n\n--- snippet ---\n\n{extra.text}")
    end = "" if extra.text.endswith("\n") else "\n"
    return [fim.file, *plain(f"{extra.name}\n{extra.text}{end}")]
