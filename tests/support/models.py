"""The real models that tests use, fetched once into the user's cache folder.

The references are those of the repository's `models.yaml`, and `ModelStore` finds the files exactly as for
`corral serve`: what one has fetched, the other uses.
"""

from __future__ import annotations

import asyncio
import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import yaml

from router.references import parse_reference
from router.sources import ModelStore, default_cache_dir

_CATALOG: Final = Path(__file__).parents[2] / "models.yaml"


def smollm2_path() -> Path:
    """Return SmolLM2-135M-Instruct (98 MB): a chat model with a template."""
    return _fetched("smollm2")


def gemma3_path() -> Path:
    """Return Gemma 3 270M (253 MB): a base model with sliding-window attention and no template."""
    return _fetched("gemma3")


def qwen_coder_path() -> Path:
    """Return Qwen2.5-Coder-0.5B-Instruct (491 MB)."""
    return _fetched("qwen2.5-coder")


@functools.cache
def _fetched(name: str) -> Path:
    """Return the file; works beside a running event loop too, because it waits in a thread of its own."""
    text = yaml.safe_load(_CATALOG.read_text(encoding="utf-8"))["models"][name]["model"]

    async def fetch() -> Path:
        store = ModelStore(default_cache_dir())
        return await store.fetch(parse_reference(text), Path.cwd(), lambda progress: None)

    with ThreadPoolExecutor(max_workers=1) as executor:
        return executor.submit(asyncio.run, fetch()).result()
