"""What would end a process inside llama.cpp, tried through the worker's own doors: `python -m tests.support.abort_cases
FOLDER` prints a line for each case that is refused as it should be. With a name behind it, that one call is made
without any guard.

Must run in a process of its own: a case that is not refused ends it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np

os.environ["GGML_NO_BACKTRACE"] = "1"

from llama_cpp import llama_cpp as lib

from tests.support import tiny_gguf
from tests.support.tiny_bert import write_tiny_bert
from tests.support.tiny_gguf import TokenType, write_tiny_llama
from worker.contract import EngineOptions
from worker.engine.batch import Chunk, Clear, Restore, Save, Share, Trim
from worker.engine.errors import BadModel, InvalidBatch, LoadFailed
from worker.engine.llama import EncoderBackend, LlamaBackend, load_backend
from worker.engine.llama_batch import LlamaBatch
from worker.engine.llama_model import LlamaModel
from worker.engine.pooling import Piece
from worker.engine.request import RequestId

SLOTS = 3
OPTIONS = EngineOptions(context=64, slots=SLOTS, draft_max=0, device="cpu")


def chunk(tokens: list[int], *, seq_id: int = 0, start: int = 0, outputs: int = 1) -> Chunk:
    return Chunk(seq_id, RequestId(1), np.array(tokens, dtype=np.int32), start, num_outputs=outputs)


class Subjects:
    """A model that generates and one that embeds, loaded when they are first needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._backend: LlamaBackend | None = None
        self._encoder: EncoderBackend | None = None

    @property
    def backend(self) -> LlamaBackend:
        if self._backend is None:
            write_tiny_llama(self.folder / "tiny.gguf")
            self._backend = LlamaBackend.load(str(self.folder / "tiny.gguf"), OPTIONS)
        return self._backend

    @property
    def encoder(self) -> EncoderBackend:
        if self._encoder is None:
            write_tiny_bert(self.folder / "bert.gguf")
            encoder = load_backend(str(self.folder / "bert.gguf"), OPTIONS)
            assert isinstance(encoder, EncoderBackend)
            self._encoder = encoder
        return self._encoder

    def without_bytes(self) -> Path:
        """Return a model whose vocabulary cannot spell every byte."""
        whole = tiny_gguf._spm()
        kept = [i for i, kind in enumerate(whole.types) if kind is not TokenType.BYTE]
        fewer = tiny_gguf._Vocabulary(
            tokens=tuple(whole.tokens[i] for i in kept),
            types=tuple(whole.types[i] for i in kept),
            scores=tuple(whole.scores[i] for i in kept),
            merges=(),
        )
        path = self.folder / "wordy.gguf"
        with mock.patch.dict(tiny_gguf._VOCABULARIES, spm=lambda: fewer):
            write_tiny_llama(path)
        return path


def refuses(kind: type[Exception], call: Callable[[], object]) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


# --- guarded ----------------------------------------------------------------------------------------------


def more_rows_than_a_pass_takes(the: Subjects) -> None:
    refuses(InvalidBatch, lambda: the.backend.forward([chunk([1] * 513)]))


def no_rows(the: Subjects) -> None:
    refuses(InvalidBatch, lambda: the.backend.forward([]))


def more_outputs_than_there_is_room_for(the: Subjects) -> None:
    refuses(InvalidBatch, lambda: the.backend.forward([chunk([5] * 9, outputs=9)]))
    refuses(InvalidBatch, lambda: the.backend.forward([chunk([5], outputs=2)]))


def tokens_that_are_none(the: Subjects) -> None:
    for token in (-1, -(2**31), the.backend.vocabulary.num_vocab, 2**31 - 1):
        refuses(InvalidBatch, lambda token=token: the.backend.forward([chunk([1, token])]))


def sequences_that_are_no_slot(the: Subjects) -> None:
    for seq_id in (-1, SLOTS, 255, 256, 2**31 - 1):
        refuses(InvalidBatch, lambda seq_id=seq_id: the.backend.forward([chunk([1], seq_id=seq_id)]))


def positions_that_do_not_follow(the: Subjects) -> None:
    the.backend.apply(Clear(0))
    the.backend.forward([chunk([5, 6, 7])])
    for start in (-1, 0, 2, 4, 2**30):
        refuses(InvalidBatch, lambda start=start: the.backend.forward([chunk([1], start=start)]))
    refuses(InvalidBatch, lambda: the.backend.forward([chunk([1], seq_id=1, start=3)]))


def operations_on_ids_beyond_the_last(the: Subjects) -> None:
    for bad in (-1, 256, 2**31 - 1):
        for op in (Clear(bad), Trim(bad, 1), Share(0, bad, 1), Share(bad, 0, 1), Save(bad, 1)):
            refuses(ValueError, lambda op=op: the.backend.apply(op))
        refuses(ValueError, lambda bad=bad: the.backend.num_cached(bad))
        refuses(ValueError, lambda bad=bad: the.backend.first_cached(bad))


def bytes_that_are_no_saved_sequence(the: Subjects) -> None:
    backend = the.backend
    backend.apply(Clear(0))
    backend.forward([chunk([5, 6, 7, 8])])
    assert backend.apply(Save(0, 1))
    whole = backend.blob(1)
    assert whole is not None
    noise = np.random.RandomState(1).randint(0, 256, len(whole)).astype(np.uint8)
    lengths = [whole[:length] for length in (0, 1, 3, 8, 40, len(whole) // 2, len(whole) - 1)]
    flipped = [whole.copy() for _ in range(64)]
    for index, one in enumerate(flipped):
        one[index] ^= 0xFF
    for data in (*lengths, noise, np.zeros_like(whole), *flipped):
        backend.put_blob(2, np.ascontiguousarray(data))
        backend.apply(Restore(2, 1, 4))
        backend.apply(Clear(1))
    assert not backend.apply(Restore(77, 1, 4))
    assert backend.apply(Restore(1, 1, 4))
    backend.apply(Clear(1))


def adapters_that_are_not_there(the: Subjects) -> None:
    for index in (-1, 0, 10**6):
        refuses(InvalidBatch, lambda index=index: the.backend.use_adapters(((index, 1.0),)))


def texts_of_every_kind(the: Subjects) -> None:
    vocabulary = the.backend.vocabulary
    every_byte = "".join(map(chr, range(0x300)))
    texts = (
        "",
        "\0",
        "\0" * 1000,
        "\ud800",
        "\udfff\ud800",
        every_byte,
        "😀" * 5000,
        " " * 50_000,
        "\u2581",
        "</s><s>",
    )
    for text in texts:
        for special in (False, True):
            vocabulary.tokenize(text, add_special=special, parse_special=special)


def pieces_of_tokens_that_are_none(the: Subjects) -> None:
    for token in (-1, the.backend.vocabulary.num_vocab, 2**31 - 1):
        for special in (False, True):
            refuses(ValueError, lambda t=token, s=special: the.backend.vocabulary.piece(t, special=s))


def texts_to_embed_beyond_a_pass(the: Subjects) -> None:
    pooled = the.encoder.pooled
    most, row = pooled.shape.max_rows, np.array([5], dtype=np.int32)
    for pieces in (
        [],
        [Piece(np.full(most + 1, 5, dtype=np.int32))],
        [Piece(row)] * (pooled.shape.max_documents + 1),
        [Piece(np.array([-1], dtype=np.int32))],
        [Piece(np.array([10**6], dtype=np.int32))],
        [Piece(np.empty(0, dtype=np.int32)), Piece(row)],
        [Piece(row, start=5)],
    ):
        refuses(InvalidBatch, lambda pieces=pieces: pooled.forward(pieces))


def generating_with_what_cannot(the: Subjects) -> None:
    refuses(InvalidBatch, lambda: the.encoder.forward([chunk([1])]))
    assert not the.encoder.apply(Clear(0))


def more_slots_than_there_are_ids(the: Subjects) -> None:
    path = str(the.backend and the.folder / "tiny.gguf")
    options = EngineOptions(context=16, slots=300, kv_tokens=256, draft_max=0, device="cpu")
    refuses(LoadFailed, lambda: LlamaBackend.load(path, options))


def a_vocabulary_that_cannot_spell_every_byte(the: Subjects) -> None:
    refuses(BadModel, lambda: LlamaModel.load(str(the.without_bytes()), OPTIONS))


GUARDED: tuple[Callable[[Subjects], None], ...] = (
    more_rows_than_a_pass_takes,
    no_rows,
    more_outputs_than_there_is_room_for,
    tokens_that_are_none,
    sequences_that_are_no_slot,
    positions_that_do_not_follow,
    operations_on_ids_beyond_the_last,
    bytes_that_are_no_saved_sequence,
    adapters_that_are_not_there,
    texts_of_every_kind,
    pieces_of_tokens_that_are_none,
    texts_to_embed_beyond_a_pass,
    generating_with_what_cannot,
    more_slots_than_there_are_ids,
    a_vocabulary_that_cannot_spell_every_byte,
)


# --- without a guard: each of these ends the process ------------------------------------------------------


def _decode(the: Subjects, chunks: list[Chunk]) -> None:
    batch = LlamaBatch(4096)
    batch.fill(chunks)
    lib.llama_decode(the.backend.context._context, batch.struct)


def raw_rows(the: Subjects) -> None:
    _decode(the, [chunk([5] * 600)])


def raw_outputs(the: Subjects) -> None:
    _decode(the, [chunk([5] * 9, outputs=9)])


def raw_sequence_removal(the: Subjects) -> None:
    lib.llama_memory_seq_rm(the.backend.context._memory, 256, -1, -1)


def raw_sequence_copy(the: Subjects) -> None:
    lib.llama_memory_seq_cp(the.backend.context._memory, 0, 256, 0, 1)


def raw_last_position(the: Subjects) -> None:
    lib.llama_memory_seq_pos_max(the.backend.context._memory, 256)


def raw_piece(the: Subjects) -> None:
    vocabulary = the.backend.vocabulary
    buffer = ctypes.create_string_buffer(64)
    lib.llama_token_to_piece(vocabulary.native, vocabulary.num_vocab, buffer, 64, 0, False)


def raw_embedding_rows(the: Subjects) -> None:
    pooled = the.encoder.pooled
    pooled.open()
    batch = LlamaBatch(2 * pooled.shape.max_rows)
    rows = [5] * (pooled.shape.max_rows + 1)
    batch.fill([chunk(rows, outputs=len(rows))])
    lib.llama_decode(pooled._context, batch.struct)


def raw_byte(the: Subjects) -> None:
    with mock.patch("worker.engine.llama_vocabulary.LlamaVocabulary.lacks_bytes", new=False):
        model = LlamaModel.load(str(the.without_bytes()), OPTIONS)
    model.vocabulary.tokenize("\x01", add_special=False, parse_special=False)


RAW: tuple[Callable[[Subjects], None], ...] = (
    raw_rows,
    raw_outputs,
    raw_sequence_removal,
    raw_sequence_copy,
    raw_last_position,
    raw_piece,
    raw_embedding_rows,
    raw_byte,
)


def main() -> None:
    subjects = Subjects(Path(sys.argv[1]))
    if len(sys.argv) > 2:
        next(one for one in RAW if one.__name__ == sys.argv[2])(subjects)
        return
    for case in GUARDED:
        sys.stdout.write(f"begun {case.__name__}\n")
        sys.stdout.flush()
        with contextlib.suppress(AssertionError):
            case(subjects)
            sys.stdout.write(f"held {case.__name__}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
