"""All families, and which of them a chat template belongs to."""

from __future__ import annotations

from worker.chat.tool_calls.apertus import Apertus
from worker.chat.tool_calls.command_r import Cohere2, CommandR, CommandRPlus
from worker.chat.tool_calls.deepseek import DeepSeekR1, DeepSeekV31
from worker.chat.tool_calls.dsml import DeepSeekV4, DeepSeekV32
from worker.chat.tool_calls.family import Family
from worker.chat.tool_calls.functionary import Functionary31, Functionary32
from worker.chat.tool_calls.gemma import FunctionGemma, Gemma4
from worker.chat.tool_calls.generic import Generic
from worker.chat.tool_calls.gigachat import GigaChat3, GigaChat31
from worker.chat.tool_calls.glm import Glm, Hunyuan3
from worker.chat.tool_calls.harmony import Harmony
from worker.chat.tool_calls.hermes import Hermes
from worker.chat.tool_calls.json_lists import Functools, Granite3, HunyuanA13B, Nemotron2, Phi4Mini, ToolCallsList
from worker.chat.tool_calls.kimi import KimiK2
from worker.chat.tool_calls.kimi_k3 import KimiK3
from worker.chat.tool_calls.lfm2 import Lfm2
from worker.chat.tool_calls.llama3 import Llama3, Llama4
from worker.chat.tool_calls.minicpm import MiniCpm5
from worker.chat.tool_calls.minimax import MiniMaxM1, MiniMaxM2
from worker.chat.tool_calls.minimax_m3 import MiniMaxM3
from worker.chat.tool_calls.mistral import Mistral, MistralList
from worker.chat.tool_calls.muse import Muse
from worker.chat.tool_calls.pythonic import Pythonic
from worker.chat.tool_calls.qwen_coder import QwenCoder, SeedOss
from worker.chat.tool_calls.solar import Solar

FAMILIES: tuple[Family, ...] = (
    Harmony(),
    Mistral(),
    MistralList(),
    Gemma4(),
    FunctionGemma(),
    Cohere2(),
    CommandR(),
    CommandRPlus(),
    Functionary32(),
    Functionary31(),
    Llama4(),
    Llama3(),
    Solar(),
    Apertus(),
    Lfm2(),
    MiniCpm5(),
    Muse(),
    Hunyuan3(),
    SeedOss(),
    MiniMaxM3(),
    MiniMaxM2(),
    MiniMaxM1(),
    DeepSeekV32(),
    DeepSeekV4(),
    DeepSeekR1(),
    DeepSeekV31(),
    KimiK2(),
    KimiK3(),
    Glm(),
    QwenCoder(),
    GigaChat31(),
    GigaChat3(),
    Granite3(),
    Phi4Mini(),
    Functools(),
    HunyuanA13B(),
    ToolCallsList(),
    Nemotron2(),
    Hermes(),
    Pythonic(),
    Generic(),
)
"""In the order in which they are asked: those with signs of their own before those that many share."""


def choose_family(source: str) -> Family:
    """Return the first family that a chat template with this source fits; the last one fits all."""
    return next(family for family in FAMILIES if family.fits(source))
