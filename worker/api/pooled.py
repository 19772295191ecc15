"""Replies that come from pooled passes: embeddings and scores. Checks of the texts, and one such reply.

Must not know a dialect, nor HTTP: it is given a formatter and something to write to. Runs on the event loop; whichever
way a reply ends, nothing of its texts waits any longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from worker.api.prompt import MAX_TOKEN_CHARS
from worker.api.served import ServedModel
from worker.api.stream import FRAME_BYTES, end_frame
from worker.api.usage import Totals
from worker.api.vectors import Vector, check_finite
from worker.contract import FrameType, encode_frame
from worker.engine.errors import EngineStopped, ForwardError, LoadFailed
from worker.errors import EngineGone, GenerationFailed, NotForThisModel, RequestError, TextTooLong

Write = Callable[[bytes], Awaitable[None]]

MAX_TEXTS = 2048
"""Texts of one request, as in OpenAI's API."""
RANK = "rank"


@dataclass(frozen=True, slots=True)
class PooledJob:
    """One client request, ready for pooled passes."""

    texts: tuple[tuple[int, ...], ...]
    param: str
    """The field that has the texts."""
    whole: Callable[[Sequence[Vector], Totals], bytes]
    """Makes the reply of the pooled rows."""


class PooledReply:
    """The whole answer to one client request."""

    def __init__(self, model: ServedModel, job: PooledJob, write: Write) -> None:
        assert model.embedder is not None
        self._embedder = model.embedder
        self._job = job
        self._write = write
        self._took_s = 0.0

    @property
    def totals(self) -> Totals:
        """Tokens and time so far."""
        return Totals(prompt_tokens=sum(map(len, self._job.texts)), prompt_ms=1e3 * self._took_s)

    async def run(self) -> None:
        """The request has been answered and its last frame written. Raises: RequestError."""
        clock = asyncio.get_running_loop().time
        started_s = clock()
        try:
            rows = await self._embedder.embed(self._job.texts)
        except EngineStopped:
            raise EngineGone("The engine of this model has stopped. Please try again.") from None
        except LoadFailed as error:
            raise GenerationFailed(f"This model cannot embed texts beside what else it does: {error}.") from error
        except ForwardError as error:
            raise GenerationFailed(f"The engine could not compute these texts: {error}.") from error
        self._took_s = clock() - started_s
        check_finite(rows, self._job.param)
        # Half a million numbers take a while to write: other replies go on meanwhile.
        data = await asyncio.to_thread(self._job.whole, rows, self.totals)
        for start in range(0, len(data), FRAME_BYTES):
            await self._write(encode_frame(FrameType.DATA, data[start : start + FRAME_BYTES]))
        await self._write(end_frame("ok", self.totals, []))


def check_can_embed(model: ServedModel) -> None:
    """Return if the model makes vectors. Raises: NotForThisModel."""
    if model.embedder is None:
        raise NotForThisModel(f"The model '{model.name}' does not support embeddings.")
    if model.engine.facts.pooling == RANK:
        raise NotForThisModel(
            f"The model '{model.name}' does not support embeddings: it is a reranker and makes scores. "
            "Use POST /v1/rerank, or an embedding model."
        )


def check_can_rank(model: ServedModel) -> None:
    """Return if the model makes scores. Raises: NotForThisModel."""
    if model.embedder is None or model.pair_prompt is None:
        instead = "Use a reranker: a model whose file says `pooling_type` 4 (rank)."
        if model.embedder is not None and not model.engine.facts.can_generate:
            instead += " This one makes embeddings: compare those by POST /v1/embeddings."
        raise NotForThisModel(f"The model '{model.name}' does not support reranking. {instead}")


def check_can_generate(model: ServedModel) -> None:
    """Return if the model generates text. Raises: NotForThisModel."""
    facts = model.engine.facts
    if not facts.can_generate:
        route = "/v1/rerank" if facts.pooling == RANK else "/v1/embeddings"
        raise NotForThisModel(
            f"The model '{model.name}' does not support generating text: it is an encoder. Use POST {route} with it."
        )


def check_chars(num_chars: int, *, limit: int, place: str, param: str) -> None:
    """Return if a text of so many characters may fit; what surely does not is not worth tokenising.

    Raises: TextTooLong.
    """
    if num_chars > limit * MAX_TOKEN_CHARS:
        raise TextTooLong(place, num_chars // MAX_TOKEN_CHARS, limit, param=param, is_at_least=True)


def check_tokens(tokens: Sequence[int], *, limit: int, place: str, param: str) -> tuple[int, ...]:
    """Return `tokens` if there are any and not too many. Raises: RequestError that names the text."""
    if not tokens:
        raise RequestError(f"'{place}' is empty: this model needs at least one token.", param=param)
    if len(tokens) > limit:
        raise TextTooLong(place, len(tokens), limit, param=param)
    return tuple(tokens)
