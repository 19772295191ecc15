"""Grammars over one model's tokens: compiled once, kept by their text, and followed token by token.

The one module that knows llguidance. A compiled grammar may serve many answers at a time. Compiling and masks leave the
interpreter's lock alone, so that both can run beside a pass. Must not know requests, nor how grammars come about.
Source: llguidance's docs/syntax.md for what a grammar may say.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from worker.engine.constraint import Allowed, ConstraintFailed
from worker.engine.vocabulary import Vocabulary

MAX_KEPT = 64
"""Compiled grammars that are kept; each takes from some kilobytes to a few megabytes."""
MAX_GRAMMAR_CHARS = 1024 * 1024

LIMITS = LLParserLimits(
    max_items_in_row=2_000,
    initial_lexer_fuel=2_000_000,
    step_lexer_fuel=100_000,
    step_max_items=30_000,
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)
"""What compiling and each step may cost. A millisecond of compiling takes about 50 thousand of fuel, one of a step 14
thousand; items are about 20 thousand a millisecond; a state takes up to 2 KB."""


class GrammarRefused(ValueError):
    """The text is no grammar, or one that costs too much. The message says why."""


class Matcher:
    """A `Constraint`: one answer that follows a grammar."""

    def __init__(self, matcher: LLMatcher, num_vocab: int) -> None:
        self._matcher = matcher
        self._num_vocab = num_vocab
        self._mask = np.zeros((num_vocab + 31) // 32, dtype=np.int32)

    def allowed(self, drafts: Sequence[int]) -> list[Allowed]:
        """Return what may come next and behind each of `drafts`."""
        masks: list[Allowed] = [self._allowed_now()]
        num_taken = 0
        for draft in drafts:
            if not self._matcher.try_consume_tokens([draft]):
                break
            num_taken += 1
            masks.append(self._allowed_now())
        if num_taken:
            self.rollback(num_taken)
        return masks

    def _allowed_now(self) -> Allowed:
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        self._check()
        bits = np.unpackbits(self._mask.view(np.uint8), count=self._num_vocab, bitorder="little")
        return bits.view(np.bool_)

    def accept(self, token: int) -> None:
        """The answer goes on with `token`."""
        if not self._matcher.consume_token(token):
            self._check()
            raise ConstraintFailed("the model wrote what the grammar does not allow")

    def rollback(self, num_tokens: int) -> None:
        """The last so many tokens are no part of the answer."""
        self._matcher.rollback(num_tokens)
        self._check()

    def forced(self, most: int) -> Sequence[int]:
        """Return the usual tokens of the text that must come next."""
        return self._matcher.compute_ff_tokens()[:most]

    def num_allowed(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens` may come one after another."""
        return self._matcher.validate_tokens(list(tokens))

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end may come."""
        return self._matcher.is_stopped()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ConstraintFailed(f"the grammar of this answer cannot be followed: {_first_line(self._matcher)}")


class CompiledGrammar:
    """A grammar that answers can follow."""

    def __init__(self, matcher: LLMatcher, num_vocab: int) -> None:
        self._matcher = matcher
        self._num_vocab = num_vocab

    def start(self) -> Matcher:
        """Return the constraint of a new answer."""
        return Matcher(self._matcher.deep_copy(), self._num_vocab)


class Grammars:
    """The grammars of one model. Safe to use from several threads; whoever compiles waits for who compiles before.

    `special` are the tokens that plain text never has: grammars name them by their ids.
    """

    def __init__(self, vocabulary: Vocabulary, special: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._special = special
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, CompiledGrammar] = OrderedDict()

    def compile(self, grammar: str) -> CompiledGrammar:
        """Return the compiled grammar; one that was compiled lately costs nothing. Raises: GrammarRefused.

        `grammar` is what llguidance takes: its dialect of Lark, or JSON of its own form.
        """
        if len(grammar) > MAX_GRAMMAR_CHARS:
            raise GrammarRefused(f"it has {len(grammar)} characters, but at most {MAX_GRAMMAR_CHARS} are allowed")
        with self._lock:
            kept = self._kept.get(grammar)
            if kept is None:
                matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
                if matcher.is_error():
                    raise GrammarRefused(_first_line(matcher))
                kept = self._kept[grammar] = CompiledGrammar(matcher, self._vocabulary.num_vocab)
                if len(self._kept) > MAX_KEPT:
                    self._kept.popitem(last=False)
            with contextlib.suppress(KeyError):
                self._kept.move_to_end(grammar)
            return kept

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        """The vocabulary as the library wants it. Takes 0.2 to 1 s once, and 20 to 110 MB: for those who need it."""
        return LLTokenizer(_Tokens(self._vocabulary, self._special), eos_token=sorted(self._vocabulary.eog))


class _Tokens(TokenizerWrapper):
    """What llguidance asks of a tokenizer."""

    def __init__(self, vocabulary: Vocabulary, special: frozenset[int]) -> None:
        self.is_tokenizer_wrapper = True
        self._vocabulary = vocabulary
        self.eos_token_id = min(vocabulary.eog, default=0)
        self.bos_token_id = vocabulary.bos
        self.tokens = vocabulary.pieces()
        self.special_token_ids = sorted(special)

    def __call__(self, text: bytes | str) -> list[int]:
        """Return the tokens of a text."""
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self._vocabulary.tokenize(text, add_special=False, parse_special=False)


def _first_line(matcher: LLMatcher) -> str:
    return matcher.get_error().strip().partition("\n")[0]
