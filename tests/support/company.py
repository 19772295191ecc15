"""An engine that is asked for one answer while others, of all lengths and beginnings, keep it busy."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from worker.engine.engine import Engine
from worker.engine.request import GenerationRequest, Output, Pick, SamplingParams

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


class Company:
    """Others ask for answers to beginnings of `prompt` and to prompts of their own."""

    def __init__(self, engine: Engine, prompt: tuple[int, ...]) -> None:
        self.engine = engine
        self._prompt = prompt

    async def answer(self, wanted: GenerationRequest, seed: int) -> tuple[tuple[int, ...], tuple[Pick, ...]]:
        """Return tokens and picks of `wanted`, asked for amid what `seed` decides; all have ended then."""
        chance = random.Random(seed)
        before = [self._other(chance) for _ in range(chance.randrange(6))]
        after = [self._other(chance) for _ in range(chance.randrange(4))]
        asked = [asyncio.create_task(self._ask(request)) for request in before]
        await asyncio.sleep(chance.random() * 0.05)
        answer = asyncio.create_task(self._ask(replace(wanted, external_id=f"run {seed}")))
        await asyncio.sleep(chance.random() * 0.05)
        asked += [asyncio.create_task(self._ask(request)) for request in after]
        await asyncio.gather(*asked)
        return await answer

    def _other(self, chance: random.Random) -> GenerationRequest:
        own = tuple(chance.choices(self._prompt, k=chance.randrange(1, 50)))
        shared = self._prompt[: chance.choice((0, 0, 9, 33, len(self._prompt)))]
        return GenerationRequest(shared + own, chance.randrange(1, 24), GREEDY, cache_prompt=chance.random() < 0.7)

    async def _ask(self, request: GenerationRequest) -> tuple[tuple[int, ...], tuple[Pick, ...]]:
        outputs: list[Output] = []
        is_over = asyncio.Event()

        def take(output: Output) -> None:
            outputs.append(output)
            if output.finish is not None:
                is_over.set()

        self.engine.submit(request, take)
        async with asyncio.timeout(60):
            await is_over.wait()
        assert outputs[-1].error is None
        tokens = tuple(token for output in outputs for token in output.tokens)
        return tokens, tuple(pick for output in outputs for pick in output.picks)
