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

    def __init__(self, engine: Engine, prompt: tuple[int, ...], *, is_small: bool = False) -> None:
        """`is_small`: for models that take their time."""
        self.engine = engine
        self._prompt = prompt
        self._most_others = 3 if is_small else 5
        self._longest_own = 12 if is_small else 50
        self._longest_answer = 8 if is_small else 24

    async def answer(self, wanted: GenerationRequest, seed: int) -> tuple[tuple[int, ...], tuple[Pick, ...]]:
        """Return tokens and picks of `wanted`, asked for amid what `seed` decides; all have ended then."""
        chance = random.Random(seed)
        before = [self._other(chance) for _ in range(chance.randint(0, self._most_others))]
        after = [self._other(chance) for _ in range(chance.randint(0, self._most_others - 1))]
        asked = [asyncio.create_task(self._ask(request)) for request in before]
        await asyncio.sleep(chance.random() * 0.05)
        answer = asyncio.create_task(self._ask(replace(wanted, external_id=f"run {seed}")))
        await asyncio.sleep(chance.random() * 0.05)
        asked += [asyncio.create_task(self._ask(request)) for request in after]
        await asyncio.gather(*asked)
        return await answer

    def _other(self, chance: random.Random) -> GenerationRequest:
        own = tuple(chance.choices(self._prompt, k=chance.randint(1, self._longest_own)))
        shared = self._prompt[: chance.choice((0, 0, 9, 33, len(self._prompt)))]
        max_tokens = chance.randint(1, self._longest_answer)
        return GenerationRequest(shared + own, max_tokens, GREEDY, cache_prompt=chance.random() < 0.7)

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
