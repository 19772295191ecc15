"""Grammars over one model's tokens: compiled once, kept by their text, and followed token by token.

With `grammar_trial.py`, where each is tried out first, the one module that knows llguidance. A compiled grammar may
serve many answers at a time. Compiling and masks leave the interpreter's lock alone, so that both can run beside a
pass. Must not know requests, nor how grammars come about.
Source: llguidance's docs/syntax.md for what a grammar may say.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from worker.engine.constraint import Allowed, ConstraintFailed
from worker.engine.grammar_trial import Trials
from worker.engine.vocabulary import Vocabulary

MAX_KEPT = 32
"""Compiled grammars that are kept; each takes some kilobytes to a few megabytes, and at most what `LIMITS` says."""
MAX_GRAMMAR_CHARS = 1024 * 1024

LIMITS: Final[Mapping[str, Any]] = {
    "max_items_in_row": 2_000,
    "initial_lexer_fuel": 2_000_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 30_000,
    "max_lexer_states": 60_000,
    "max_grammar_size": 500_000,
    "verbose_errors": False,
}
"""What the library bounds, in its own measures: at their worst, compiling takes a second and a step 150 ms. A state
takes about 1 KB; a text that is long by its schema needs about nine for each character, and they add up over all
answers of a grammar."""
STEP_S = 0.005
BURST_S = 0.25
"""What the work for a token may take of a processor in the long run, and how far it may be overdrawn: no limit of the
library bounds long texts of which every byte is certain."""
STACK_BYTES = 64 * 2**20
"""Of the thread that compiles: much more than what a trial gets by with. Of it, only what is used is real memory."""
MAX_TOLD_CHARS = 300
_GUARD = "\x02"

P = ParamSpec("P")
T = TypeVar("T")


class GrammarRefused(ValueError):
    """The text is no grammar, or one that costs too much. The message says why."""


class _TooManyStates(ConstraintFailed):
    """What the grammar's texts look like in detail takes more memory than it may."""


class GrammarsUnavailable(RuntimeError):
    """No grammar can be tried out now, through no fault of the grammar. The message says why."""


class Matcher:
    """A `Constraint`: one answer that follows a grammar."""

    def __init__(
        self,
        matcher: LLMatcher,
        num_vocab: int,
        on_failure: Callable[[], None] = lambda: None,
        make_own: Callable[[], LLMatcher] | None = None,
    ) -> None:
        self._matcher = matcher
        self._num_vocab = num_vocab
        self._on_failure = on_failure
        self._make_own = make_own
        """Makes one that shares nothing with other answers; None = this is one, or cannot be had."""
        self._taken: list[int] = []
        self._mask = np.zeros((num_vocab + 31) // 32, dtype=np.int32)
        self._credit_s = BURST_S
        """Time of a processor that this answer may still take."""
        self._is_behind = True
        """No mask was asked for yet: tokens that are accepted now were chosen by another worker."""

    def allowed(self, drafts: Sequence[int]) -> list[Allowed]:
        """Return what may come next and behind each of `drafts`."""
        return self._or_anew(self._allowed_behind, drafts)

    def _allowed_behind(self, drafts: Sequence[int]) -> list[Allowed]:
        masks: list[Allowed] = [self._allowed_now()]
        num_taken = 0
        for draft in drafts:
            if not self._do(self._matcher.try_consume_tokens, [draft]):
                break
            num_taken += 1
            masks.append(self._allowed_now())
        if num_taken:
            self._do(self._matcher.rollback, num_taken)
        return masks

    def _allowed_now(self) -> Allowed:
        self._is_behind = False
        self._pay_in()
        self._do(self._matcher.unsafe_compute_mask_ptr, self._mask.ctypes.data, self._mask.nbytes)
        bits = np.unpackbits(self._mask.view(np.uint8), count=self._num_vocab, bitorder="little")
        return bits.view(np.bool_)

    def _pay_in(self) -> None:
        self._credit_s = min(self._credit_s + STEP_S, BURST_S)

    def accept(self, token: int) -> None:
        """The answer goes on with `token`."""
        if self._is_behind:
            self._pay_in()
        if not self._or_anew(lambda: self._do(self._matcher.consume_token, token)):
            raise ConstraintFailed("the model wrote what the grammar does not allow")
        self._taken.append(token)

    def rollback(self, num_tokens: int) -> None:
        """The last so many tokens are no part of the answer."""
        self._or_anew(lambda: self._do(self._matcher.rollback, num_tokens))
        del self._taken[len(self._taken) - num_tokens :]

    def forced(self, most: int) -> Sequence[int]:
        """Return the usual tokens of the text that must come next."""
        return self._or_anew(lambda: self._do(self._matcher.compute_ff_tokens))[:most]

    def num_allowed(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens` may come one after another."""
        return self._or_anew(lambda: self._do(self._matcher.validate_tokens, list(tokens)))

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end may come."""
        return _without_panic(self._matcher.is_stopped)

    def _or_anew(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do the work; where all answers of this grammar together have used up its states, with states of its own."""
        try:
            return work(*args, **kwargs)
        except _TooManyStates:
            if self._make_own is None:
                raise
            self._matcher, self._make_own = self._make_own(), None
            _without_panic(self._matcher.consume_tokens, self._taken)
            return work(*args, **kwargs)

    def _do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do a part of the work. Raises: ConstraintFailed when it has failed, or has taken too long altogether."""
        begun_s = time.thread_time()
        result = _without_panic(work, *args, **kwargs)
        self._credit_s -= time.thread_time() - begun_s
        if self._matcher.is_error():
            self._on_failure()
            error = self._matcher.get_error()
            kind = _TooManyStates if "too many states" in error else ConstraintFailed
            raise kind(f"the grammar of this answer cannot be followed: {_told(error)}")
        if self._credit_s < 0.0:
            self._on_failure()
            raise ConstraintFailed("its grammar takes too much time for each token; ask for a simpler one")
        return result


class CompiledGrammar:
    """A grammar that answers can follow."""

    def __init__(
        self,
        matcher: LLMatcher,
        num_vocab: int,
        on_failure: Callable[[], None] = lambda: None,
        make_own: Callable[[], LLMatcher] | None = None,
    ) -> None:
        self._matcher = matcher
        self._num_vocab = num_vocab
        self._on_failure = on_failure
        self._make_own = make_own

    def start(self) -> Matcher:
        """Return the constraint of a new answer."""
        return Matcher(_without_panic(self._matcher.deep_copy), self._num_vocab, self._on_failure, self._make_own)


_TRIALS: Final = Trials()


class Grammars:
    """The grammars of one model. Safe to use from several threads; whoever compiles waits for who compiles before.

    `special` are the tokens that plain text never has: grammars name them by their ids.
    """

    def __init__(self, vocabulary: Vocabulary, special: frozenset[int], trials: Trials = _TRIALS) -> None:
        self._vocabulary = vocabulary
        self._special = special
        self._trials = trials
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, CompiledGrammar] = OrderedDict()
        self._refused: OrderedDict[bytes, str] = OrderedDict()
        """Why grammars were refused, by their digests: to find out takes up to a second of a processor."""
        self._compiler: ThreadPoolExecutor | None = None

    def compile(self, grammar: str) -> CompiledGrammar:
        """Return the compiled grammar; one that was compiled lately costs nothing.

        Raises: GrammarRefused; GrammarsUnavailable.
        `grammar` is what llguidance takes: its dialect of Lark, or JSON of its own form.
        """
        if len(grammar) > MAX_GRAMMAR_CHARS:
            raise GrammarRefused(f"it has {len(grammar)} characters, but at most {MAX_GRAMMAR_CHARS} are allowed")
        with self._lock:
            kept = self._kept.get(grammar)
            if kept is not None:
                self._kept.move_to_end(grammar)
                return kept
            if (why := self._refused.get(_digest(grammar))) is not None:
                raise GrammarRefused(why)
            if self._compiler is None:
                self._compiler = _compiler()
        return self._compiler.submit(self._compile, grammar).result()

    def _compile(self, grammar: str) -> CompiledGrammar:
        with self._lock:
            if (kept := self._kept.get(grammar)) is not None:  # who compiled before wanted the same
                return kept
        try:
            self._try_out(grammar)
            matcher = self._make(grammar)
            if matcher.is_error():
                raise GrammarRefused(_told(matcher.get_error()))
        except (ConstraintFailed, GrammarRefused) as problem:
            with self._lock:
                self._refused[_digest(grammar)] = str(problem)
                if len(self._refused) > MAX_KEPT:
                    self._refused.popitem(last=False)
            raise GrammarRefused(str(problem)) from None
        forget, make_own = partial(self._forget, grammar), partial(self._make, grammar)
        compiled = CompiledGrammar(matcher, self._vocabulary.num_vocab, forget, make_own)
        with self._lock:
            self._kept[grammar] = compiled
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return compiled

    def _make(self, grammar: str) -> LLMatcher:
        return _without_panic(LLMatcher, self._tokenizer, grammar, log_level=0, limits=LLParserLimits(**LIMITS))

    def _forget(self, grammar: str) -> None:
        """It has failed an answer, and what the library keeps of such a one is large."""
        with self._lock:
            self._kept.pop(grammar, None)

    def _try_out(self, grammar: str) -> None:
        try:
            special = sorted(self._special | self._vocabulary.eog)
            problem = self._trials.problem_of(grammar, special, self._vocabulary.num_vocab, LIMITS)
        except OSError as error:
            raise GrammarsUnavailable(f"no process can be started to try it out: {error.strerror or error}") from None
        if problem is not None:
            raise GrammarRefused(_told(problem))

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        """The vocabulary as the library wants it. Made once for those who need it: 0.1 s and 16 MB for 49 thousand
        tokens, 0.4 s and 50 MB for 152 thousand. No other thread can run in it, but all can between its two parts.

        Without the library's "slices" it would take half of that, and each mask within a string twenty times as long.
        """
        tokens = _Tokens(self._vocabulary, self._special)
        plain = LLTokenizer(tokens, eos_token=sorted(self._vocabulary.eog), slices=[])
        return plain.with_slices(LLTokenizer.general_slices())


def _digest(grammar: str) -> bytes:
    return hashlib.sha256(grammar.encode("utf-8", "replace")).digest()


def _compiler() -> ThreadPoolExecutor:
    """Return the thread that compiles."""
    before = threading.stack_size(STACK_BYTES)
    try:
        compiler = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        compiler.submit(int).result()  # threads are made when they are needed
    finally:
        threading.stack_size(before)
    return compiler


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
        """Return the usual tokens of a text, and of nothing else.

        Some vocabularies put a space in front of every text: behind a character that no token holds beside others
        there is none. The library takes it ill if the tokens are not those of the text.
        """
        raw = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
        plain = raw.decode("utf-8", "replace")
        for guard in ("", _GUARD):
            tokens = self._vocabulary.tokenize(guard + plain, add_special=False, parse_special=False)
            pieces = [self._vocabulary.piece(token, special=True) for token in tokens]
            num_left_out = 0
            while guard and num_left_out < len(pieces) and b"".join(pieces[num_left_out:]) != raw:
                num_left_out += 1
            if b"".join(pieces[num_left_out:]) == raw:
                return tokens[num_left_out:]
        return self._longest_first(raw)

    def _longest_first(self, raw: bytes) -> list[int]:
        tokens: list[int] = []
        while raw:
            length = next((n for n in range(min(len(raw), self._longest), 0, -1) if raw[:n] in self._by_piece), 0)
            if not length:
                break  # no token has this byte: nothing can be written from here on
            tokens.append(self._by_piece[raw[:length]])
            raw = raw[length:]
        return tokens

    @cached_property
    def _by_piece(self) -> dict[bytes, int]:
        special = set(self.special_token_ids)
        return {piece: token for token, piece in enumerate(self._vocabulary.pieces()) if token not in special and piece}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._by_piece), default=0)


def _without_panic(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what `work` returns. Raises: ConstraintFailed where the library has found a fault in itself."""
    try:
        return work(*args, **kwargs)
    except BaseException as fault:
        # A panic of Rust is none of Python's exceptions, and has no name to import; a RuntimeError is what follows it.
        if isinstance(fault, RuntimeError | ValueError) or type(fault).__name__ == "PanicException":
            raise ConstraintFailed(f"the grammar cannot be followed: {_told(str(fault))}") from None
        raise


def _told(error: str) -> str:
    """Return what a client can use of the library's words, in one line."""
    first, *others = error.strip().split("\n")
    line = re.sub(r"\s*<(non-verbose/|backtrace).*", "", first)
    if line.startswith("panic"):
        return "the grammar library has failed at it"
    if line.endswith(":"):  # of a regex: itself follows, and what is wrong with it
        line += next((one.strip().removeprefix("error:") for one in others if one.strip().startswith("error:")), "")
    return line if len(line) <= MAX_TOLD_CHARS else f"{line[:MAX_TOLD_CHARS]} ..."
