"""How a model makes one vector, or one score, of a text: which rows it pools, and how much fits one pass.

Pure arithmetic over what the file says. Must not know llama.cpp or requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

MAX_UNDECLARED_TOKENS = 2048
"""Longest text of a model that was not made for embeddings: its second context stays small beside the first one."""
MAX_DOCUMENTS = 64
"""Texts of one pass; each is a sequence. More would hardly fill a pass better."""
MAX_RECURRENT_DOCUMENTS = 8
"""The same for recurrent models, which keep a state of each."""
CPU_ROWS = 128
GPU_ROWS = 2048
"""Rows of a usual pass. All texts of a pass pay for each other, because attention is computed between all of its rows
and then masked: measured on a CPU, all-MiniLM-L6-v2 reads short texts a third slower at 512 rows than at 128."""


class Pooling(StrEnum):
    """What is made of the rows of a text."""

    MEAN = "mean"
    CLS = "cls"
    LAST = "last"
    RANK = "rank"
    """A classification head: scores instead of a vector."""


_BY_NUMBER = {"1": Pooling.MEAN, "2": Pooling.CLS, "3": Pooling.LAST, "4": Pooling.RANK}
"""As in GGUF's key `pooling_type`. Source: enum llama_pooling_type in llama.h."""


@dataclass(frozen=True, slots=True)
class PoolingShape:
    """What one pooled pass may hold."""

    pooling: Pooling
    size: int
    """Numbers in a vector; of a reranker, its scores."""
    max_document: int
    """Tokens of the longest text."""
    max_rows: int
    """Of one pass; a multiple of `max_documents`. llama.cpp ends the process when there are more, and for a context
    where this is no such multiple. Source: llama-context.cpp, graph_reserve, which rounds rows up, but not outputs."""
    usual_rows: int
    """Of a pass that nobody else waits for, unless a single text is longer."""
    max_documents: int
    is_divisible: bool
    """Whether a text may come in several passes: only if all its earlier rows stay in a cache and only the last
    one is pooled."""

    @property
    def num_cells(self) -> int:
        """Cells of the context."""
        return max(self.max_document, self.max_rows)


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive tokens of one text in one pass."""

    tokens: npt.NDArray[np.int32]
    start: int = 0
    """Tokens of the text that earlier passes have had."""


def pooling_shape(
    declared: str | None,
    *,
    configured: str | None = None,
    size: int,
    num_scores: int,
    trained_context: int,
    context: int,
    is_encoder: bool,
    is_recurrent: bool,
    uses_gpu: bool,
) -> PoolingShape:
    """Return the shape of pooled passes. `declared` is the `pooling_type` of the file, if any; `configured` wins.

    Files that name none: an encoder's rows are averaged, as most were trained for; of other models the last row is
    taken, the only one that has seen the whole text.
    """
    by_file = _BY_NUMBER.get(declared or "")
    pooling = Pooling(configured) if configured else by_file or (Pooling.MEAN if is_encoder else Pooling.LAST)
    max_document = min(context, trained_context) if trained_context > 0 else context
    if not is_encoder and not configured and by_file is None:
        max_document = min(max_document, MAX_UNDECLARED_TOKENS)
    usual_rows = GPU_ROWS if uses_gpu else CPU_ROWS
    max_documents = MAX_RECURRENT_DOCUMENTS if is_recurrent else MAX_DOCUMENTS
    is_divisible = not is_encoder and pooling in {Pooling.LAST, Pooling.RANK}
    max_rows = usual_rows if is_divisible else max(usual_rows, max_document)
    return PoolingShape(
        pooling=pooling,
        size=max(1, num_scores) if pooling is Pooling.RANK else size,
        max_document=max_document,
        max_rows=-(-max_rows // max_documents) * max_documents,
        usual_rows=usual_rows,
        max_documents=max_documents,
        is_divisible=is_divisible,
    )
