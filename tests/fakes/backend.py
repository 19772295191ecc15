"""A backend without a model: it keeps its own map of the KV cells and predicts from what is really in them.

The next token is a hash of the tokens found in the sequence's cells and of the adapters with which they were computed,
so a cell that is shared, kept or dropped wrongly, or computed with another request's adapters, changes the output. It
refuses what llama.cpp refuses: gaps, sequence ids beyond the limit, more rows than free cells.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from worker.contract import ModelFacts
from worker.engine.batch import Chunk, Clear, Forget, KvOp, Restore, Save, Share, Trim, Wipe
from worker.engine.errors import BackendFailed, ForwardAborted, InvalidBatch, KvCacheFull
from worker.engine.request import AdapterSet
from worker.engine.vocabulary import FimTokens

END = 0
"""The end token of the fake vocabulary."""


def next_token(prefix: Sequence[int], num_vocab: int) -> int:
    """Return what the fake model predicts after `prefix`; about one in `num_vocab` is the end token."""
    digest = hashlib.blake2b(np.asarray(prefix, dtype=np.int64).tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % num_vocab


def computed_with(token: int, adapters: AdapterSet) -> int:
    """Return what a cell holds of `token` when it was computed with these adapters."""
    return token + (zlib.crc32(repr(adapters).encode()) << 20) if adapters else token


def expected_answer(
    prompt: Sequence[int],
    max_tokens: int,
    num_vocab: int,
    context: int,
    adapters: AdapterSet = (),
    min_tokens: int = 0,
) -> list[int]:
    """Return the answer of a lone greedy request."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < max_tokens and len(tokens) < context:
        token = next_token([computed_with(one, adapters) for one in tokens], num_vocab)
        if token == END and len(tokens) - len(prompt) >= min_tokens:
            break
        tokens.append(token if token != END else 1)  # all others are equally likely: greedy takes the first
    return tokens[len(prompt) :]


class FakeVocabulary:
    """Token `n` is the letter with that number; token 0 ends."""

    bos = None
    eos = END
    eog = frozenset({END})
    add_bos = False
    add_eos = False
    bos_text = ""
    eos_text = "</s>"
    control_texts = ("</s>",)
    chat_template: str | None = None
    fim = FimTokens()

    def __init__(self, num_vocab: int) -> None:
        self.num_vocab = num_vocab
        self.sampling_defaults: dict[str, float] = {}

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return [ord(letter) % self.num_vocab for letter in text]

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return b"" if token == END and not special else bytes([97 + token % 26])

    control_tokens = frozenset({END})

    def marker(self, text: str) -> int | None:
        return None

    def pieces(self) -> list[bytes]:
        return [self.piece(token, special=True) for token in range(self.num_vocab)]


class FakeBackend:
    """Records every forward pass in `passes` as the number of rows of each chunk."""

    def __init__(
        self,
        *,
        num_vocab: int = 64,
        num_slots: int = 4,
        context: int = 128,
        num_cells: int | None = None,
        can_share: bool = True,
    ) -> None:
        self.num_cells = num_cells if num_cells is not None else num_slots * context
        self.can_share = can_share
        self.vocabulary = FakeVocabulary(num_vocab)
        self.facts = ModelFacts(
            context=context,
            slots=num_slots,
            kv_cells=self.num_cells,
            trained_context=context,
            num_params=1,
            size_bytes=1,
            num_vocab=num_vocab,
            description="fake",
            has_chat_template=False,
            device="cpu",
        )
        self.num_slots = num_slots
        self.passes: list[tuple[int, ...]] = []
        self.adapters: AdapterSet = ()
        self.turns: list[AdapterSet] = []
        """Adapters of the passes, one entry for each change."""
        self.failures: list[int] = []
        """Codes that the next passes fail with, 0 = this one succeeds."""
        self.poisoned_token: int | None = None
        """A pass that holds this token is refused as invalid."""
        self.foul_token: int | None = None
        """A sequence with this token computes what is not finite, and so does every other until the cells are wiped."""
        self.has_foul_cells = False
        self.num_threads = 0
        self.lones: list[FakeBackend] = []
        self.lone_error: Exception | None = None
        self.is_closed = False
        self.num_interrupts = 0
        self.bytes_per_token = 0
        self.window = 0
        self.blobs: dict[int, list[int]] = {}
        self.num_restored = 0
        self.fails_to_restore = False
        self.fails_to_share = False
        self.num_gaps = 0
        """Passes whose rows did not follow what their sequences hold."""
        self.has_failed = False
        """A restore has failed, so that who was to share its cells gets what is there, as from llama.cpp."""
        self._cell_tokens: dict[int, int] = {}
        self._cell_owners: dict[int, set[int]] = {}
        self._rows: dict[int, list[int]] = {}
        self._next_cell = 0

    def apply(self, op: KvOp) -> bool:
        match op:
            case Clear(seq_id):
                self._disown(seq_id, 0)
            case Trim(seq_id, num_tokens):
                if not self.can_share and num_tokens < self.num_cached(seq_id):
                    return False
                self._disown(seq_id, num_tokens)
            case Share(src, dst, num_tokens):
                assert self.can_share, "this memory cannot share"
                if self.fails_to_share:
                    self.has_failed = True
                    return False
                assert not self._rows.get(dst), "share into cells that are owned"
                assert num_tokens <= self.num_cached(src) or self.has_failed, "share of more than there is"
                for seq_id in (src, dst):
                    assert 0 <= seq_id < 256
                self._rows[dst] = self._rows.get(src, [])[:num_tokens]
                for cell in self._rows[dst]:
                    self._cell_owners[cell].add(dst)
            case Save(seq_id, blob_id):
                self.blobs[blob_id] = self.tokens_of(seq_id)
            case Restore(blob_id, seq_id, num_tokens):
                if self.fails_to_restore or len(self.blobs.get(blob_id, ())) < num_tokens:
                    self.has_failed = True
                    return False
                assert not self._rows.get(seq_id), "restore into cells that are owned"
                assert not self.window or num_tokens == len(self.blobs[blob_id]), "a blob holds the last window alone"
                assert len(self.blobs[blob_id]) <= self.num_cells - len(self._cell_owners), "no cells for a blob"
                for token in self.blobs[blob_id]:
                    self._store(seq_id, token)
                self._disown(seq_id, num_tokens)
                self.num_restored += 1
            case Forget(blob_id):
                assert blob_id in self.blobs or self.has_failed, "a blob is forgotten that is not there"
                self.blobs.pop(blob_id, None)
            case Wipe():
                for owner in list(self._rows):
                    self._disown(owner, 0)
                self.has_foul_cells = False
        return True

    def blob(self, blob_id: int) -> npt.NDArray[np.uint8] | None:
        tokens = self.blobs.get(blob_id)
        return None if tokens is None else np.frombuffer(np.array(tokens, dtype=np.int64).tobytes(), dtype=np.uint8)

    def put_blob(self, blob_id: int, data: npt.NDArray[np.uint8]) -> None:
        self.blobs[blob_id] = np.frombuffer(data.tobytes(), dtype=np.int64).tolist()

    def use_adapters(self, adapters: AdapterSet) -> None:
        assert adapters != self.adapters, "a change that changes nothing"
        self.adapters = adapters
        self.turns.append(adapters)

    def forward(self, chunks: Sequence[Chunk]) -> npt.NDArray[np.float32]:
        code = self.failures.pop(0) if self.failures else 0
        num_rows = sum(len(chunk.tokens) for chunk in chunks)
        for chunk in chunks:
            if not 0 <= chunk.seq_id < self.num_slots or chunk.start != self.num_cached(chunk.seq_id):
                self.num_gaps += 1
                raise InvalidBatch(f"position {chunk.start} of sequence {chunk.seq_id} leaves a gap")
            if self.poisoned_token is not None and self.poisoned_token in chunk.tokens:
                raise InvalidBatch("a token out of range")
        match code:
            case 1:
                raise KvCacheFull
            case 2:
                raise ForwardAborted
            case -1:
                raise InvalidBatch("injected")
        if num_rows > self.num_cells - len(self._cell_owners):
            raise KvCacheFull
        rows = []
        for index, chunk in enumerate(chunks):
            if code < -1 and index == 1:
                raise BackendFailed(code)  # the first chunk has been stored by then
            for left, token in zip(range(len(chunk.tokens), 0, -1), chunk.tokens, strict=True):
                self._store(chunk.seq_id, computed_with(int(token), self.adapters))
                if left <= chunk.num_outputs:
                    rows.append(self._logits(chunk.seq_id))
        if code < -1:
            raise BackendFailed(code)
        self.passes.append(tuple(len(chunk.tokens) for chunk in chunks))
        return np.stack(rows) if rows else np.empty((0, self.vocabulary.num_vocab), dtype=np.float32)

    def interrupt(self) -> None:
        self.num_interrupts += 1

    def num_cached(self, seq_id: int) -> int:
        return len(self._rows.get(seq_id, ()))

    def first_cached(self, seq_id: int) -> int:
        return 0 if self._rows.get(seq_id) else -1

    def tokens_in(self, seq_id: int) -> list[int]:
        """Return the tokens in the cells of the sequence, whatever adapters they were computed with."""
        return [token % 2**20 for token in self.tokens_of(seq_id)]

    def set_threads(self, num_threads: int) -> None:
        self.num_threads = num_threads

    def lone(self, max_rows: int) -> FakeBackend:
        if self.lone_error is not None:
            raise self.lone_error
        num_vocab, context = self.facts.num_vocab, self.facts.context
        self.lones.append(FakeBackend(num_vocab=num_vocab, num_slots=1, context=context, can_share=self.can_share))
        return self.lones[-1]

    def close(self) -> None:
        self._rows.clear()
        self.is_closed = True

    def tokens_of(self, seq_id: int) -> list[int]:
        """Return the tokens that are really in the cells of the sequence."""
        return [self._cell_tokens[cell] for cell in self._rows.get(seq_id, ())]

    def num_used(self) -> int:
        """Return how many cells have an owner."""
        return len(self._cell_owners)

    def _store(self, seq_id: int, token: int) -> None:
        cell = self._next_cell
        self._next_cell += 1
        self._cell_tokens[cell] = token
        self.has_foul_cells |= token == self.foul_token
        self._cell_owners[cell] = {seq_id}
        self._rows.setdefault(seq_id, []).append(cell)

    def _disown(self, seq_id: int, num_tokens: int) -> None:
        rows = self._rows.get(seq_id, [])
        for cell in rows[num_tokens:]:
            self._cell_owners[cell].discard(seq_id)
            if not self._cell_owners[cell]:
                del self._cell_owners[cell]
        self._rows[seq_id] = rows[:num_tokens]

    def _logits(self, seq_id: int) -> npt.NDArray[np.float32]:
        if self.has_foul_cells:
            return np.full(self.vocabulary.num_vocab, np.nan, dtype=np.float32)
        row = np.zeros(self.vocabulary.num_vocab, dtype=np.float32)
        row[next_token(self.tokens_of(seq_id), self.vocabulary.num_vocab)] = 10.0
        return row
