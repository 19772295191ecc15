"""The prompts of the bench. Pure."""

from __future__ import annotations

import random

WORDS = tuple(
    """
river stone window garden letter silver morning market castle thunder paper candle bridge forest music winter
harbour pencil mirror orange engine valley story feather copper village shadow island button crystal
""".split()  # noqa: SIM905 - a list of quoted words is harder to read
)

STORY = """The old lighthouse stood at the end of a narrow road that nobody had repaired for years. Every evening Marta
climbed the stairs with a lamp in one hand and a book in the other, although the light had been automatic since her
father's time. She liked to see the boats come home. From the gallery she could count them: the two blue trawlers of the
Hansen brothers, the white ketch that belonged to the doctor, and a dozen small dinghies with patched sails. When the
fog came in, she rang the bell by hand, three strokes and a pause, because the machine that should have done it had
rusted long ago. One night in October there were only eleven dinghies. She counted again, and then she ran down all one
hundred and forty stairs, took the bicycle and rode to the village without a coat. By the time she reached the harbour
the men had already put out the big trawler, and the doctor was warming blankets on the stove of the inn. They found the
twelfth boat behind the sandbank with a broken rudder. The boy in it had tied himself to the mast and was singing,
loudly and out of tune, to keep himself awake. Nobody asked him why he had gone out alone. Marta walked back in the
morning, pushing the bicycle, and for the first time in her life she slept through a whole day. The bell was repaired
the week after that, and a brass plate was fixed below it, but the only thing written on the plate was a number: twelve.
Years later, when visitors asked what it meant, the innkeeper used to pour another glass before answering, and then he
told them about the fog, the bicycle without a light, and the song that could be heard across the water long before the
boat was seen.
"""
"""About 400 tokens."""


def words(count: int, seed: int) -> str:
    """Return so many words of text that differ by seed."""
    generator = random.Random(seed)
    return " ".join(generator.choice(WORDS) for _ in range(count))


def copying_prompt() -> str:
    """Return a prompt that a model answers by copying most of it."""
    story = STORY.replace("\n", " ").strip()
    first = story[: story.index(".") + 1]
    return f"Repeat the following text word for word.\n\nText:\n{story}\n\nThe same text once more:\n{first}"
