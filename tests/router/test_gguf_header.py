"""The header scanner: what it reads, what it refuses, and that no bytes whatever surprise it."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router import gguf_cursor, gguf_header
from router.gguf_header import (
    GgufError,
    GgufHeader,
    GgufTexts,
    read_gguf_header,
    read_gguf_texts,
    read_tensor_sums,
)
from router.tensor_sums import TENSOR_BLOCKS
from tests.support.gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    LLAMA,
    STRING,
    U8,
    U16,
    U32,
    U64,
    Key,
    gguf_bytes,
    string,
)

Reader = Callable[[bytes], GgufHeader]


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    def write_and_read(content: bytes) -> GgufHeader:
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        return read_gguf_header(path)

    return write_and_read


def test_header_tells_what_the_file_says(read: Reader) -> None:
    content = gguf_bytes()
    header = read(content)
    assert header.architecture == "llama"
    assert header.name == "Tiny"
    assert header.trained_context == 2048
    assert header.num_layers == 2
    assert header.file_type == 0
    assert header.size_bytes == len(content)
    assert header.split_count == 1
    assert header.num_tensors == 1
    assert header.num_params == 32
    assert not header.has_chat_template


@pytest.mark.parametrize("version", [2, 3])
def test_versions_2_and_3_are_read(read: Reader, version: int) -> None:
    assert read(gguf_bytes(version=version)).architecture == "llama"


def test_lists_are_stepped_over_and_what_follows_is_read(read: Reader) -> None:
    tokens = [f"token {number}" * (number % 7) for number in range(5000)]
    keys = [
        ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
        ("tokenizer.ggml.scores", ARRAY, (F32, [0.5] * 5000)),
        ("tokenizer.ggml.flags", ARRAY, (BOOL, [True, False])),
        ("nested", ARRAY, (ARRAY, [(U8, [1, 2]), (STRING, ["a", ""])])),
        ("empty", ARRAY, (STRING, [])),
        *LLAMA,
    ]
    header = read(gguf_bytes(keys))
    assert header.trained_context == 2048
    assert not any("token" in key for key in header.metadata)


def test_short_lists_of_numbers_and_the_size_of_the_vocabulary_are_kept(read: Reader) -> None:
    keys = [
        ("tokenizer.ggml.tokens", ARRAY, (STRING, ["a", "b", "c"])),
        ("tokenizer.ggml.scores", ARRAY, (F32, [0.5] * 5000)),
        ("llama.attention.head_count_kv", ARRAY, (U32, [4, 0, 4])),
        *LLAMA,
    ]
    header = read(gguf_bytes(keys))
    assert header.num_vocab == 3
    assert dict(header.lists) == {"llama.attention.head_count_kv": (4, 0, 4)}


def test_lists_of_a_hostile_file_do_not_fill_the_memory(read: Reader) -> None:
    keys = [(f"list.{number}", ARRAY, (U32, [1] * 1000)) for number in range(1000)]
    assert len(read(gguf_bytes([*keys, *LLAMA])).lists) == gguf_header.MAX_KEPT_LISTS


def test_bytes_of_tensors_are_summed_up_by_layer(read: Reader, tmp_path: Path) -> None:
    tensors = [
        ("token_embd.weight", (8, 2), 0, 0),
        ("blk.0.attn_k.weight", (32, 1), 8, 64),
        ("blk.0.ffn_up.weight", (4, 1), 1, 98),
        ("output.weight", (2, 1), 0, 106),
    ]
    header = read(gguf_bytes(tensors=tensors))
    assert (header.tensors.input_bytes, header.tensors.output_bytes) == (64, 8)
    assert header.tensors.layer_bytes == {0: 34 + 8}
    part = tmp_path / "part.gguf"
    part.write_bytes(gguf_bytes([("split.no", U16, 1)], tensors))
    assert read_tensor_sums(part) == header.tensors


def test_a_string_longer_than_the_window_is_stepped_over(read: Reader) -> None:
    long = "x" * (3 * 2**20)
    keys = [("tokens", ARRAY, (STRING, ["a", long, "b"])), ("tokenizer.chat_template", STRING, long), *LLAMA]
    header = read(gguf_bytes(keys))
    assert header.name == "Tiny"
    assert header.has_chat_template
    assert "tokenizer.chat_template" not in header.metadata


def test_an_empty_chat_template_is_none(read: Reader) -> None:
    assert not read(gguf_bytes([*LLAMA, ("tokenizer.chat_template", STRING, "")])).has_chat_template


def test_a_split_model_tells_its_number_of_files(read: Reader) -> None:
    assert read(gguf_bytes([*LLAMA, ("split.count", U16, 3)])).split_count == 3


def test_the_size_of_a_split_model_is_that_of_all_its_files(tmp_path: Path) -> None:
    first, second, third = (tmp_path / f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3))
    first.write_bytes(gguf_bytes([*LLAMA, ("split.count", U16, 3)]))
    own = first.stat().st_size
    assert read_gguf_header(first).size_bytes == own, "the others are not here yet"
    second.write_bytes(b"x" * 100)
    third.write_bytes(b"x" * 20)
    assert read_gguf_header(first).size_bytes == own + 120


def test_numbers_that_make_no_sense_are_left_out(read: Reader) -> None:
    keys = [("general.architecture", STRING, "llama"), ("llama.context_length", STRING, "many")]
    header = read(gguf_bytes(keys))
    assert header.trained_context is None
    assert header.name is None


def test_metadata_has_only_so_many_keys(read: Reader) -> None:
    keys = [*LLAMA, *((f"k{number}", U32, number) for number in range(2000))]
    assert len(read(gguf_bytes(keys)).metadata) == gguf_header.MAX_KEPT_KEYS


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"GG", "far too short"),
        (b"GGUF", "truncated"),
        (b"<!DOCTYPE html>" + bytes(64), "web page"),
        (b"PK\x03\x04" + bytes(64), "zip archive"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (struct.pack("<I", 0x67676A74) + bytes(64), "older GGML format"),
        (b"\x00\x01\x02\x03" * 16, "not a GGUF file"),
        (gguf_bytes(version=1), "GGUF version 1;"),
        (gguf_bytes(version=99), "GGUF version 99;"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (gguf_bytes(num_keys=2**62), "claims 4611686018427387904 metadata keys"),
        (gguf_bytes(num_tensors=2**63), "tensors (at most"),
        (gguf_bytes([("general.name", STRING, "no architecture")]), "general.architecture"),
        (gguf_bytes([*LLAMA, ("llama.block_count", U32, 3)]), "'llama.block_count' is there twice"),
        (gguf_bytes([*LLAMA, ("general.alignment", U32, 33)]), "alignment of 33"),
        (gguf_bytes(tensors=[("w", (8, 4), 0, 64)]), "'w' ends at byte"),
        (gguf_bytes(tensors=[("w", (7, 4), 2, 0)]), "do not fit its type"),
        (gguf_bytes(tensors=[("w", (1,) * 9, 0, 0)]), "9 dimensions"),
        (gguf_bytes(data=b""), "truncated"),
    ],
)
def test_a_file_that_cannot_be_a_model_is_refused_with_the_reason(read: Reader, content: bytes, reason: str) -> None:
    with pytest.raises(GgufError) as caught:
        read(content)
    assert reason in str(caught.value)


def test_an_unknown_value_type_is_refused(read: Reader) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    for tail in (struct.pack("<I", 77), struct.pack("<IIQ", ARRAY, 77, 5)):
        with pytest.raises(GgufError, match="value type 77"):
            read(head + string("key") + tail + bytes(64))


def test_lists_nested_too_deep_are_refused(read: Reader) -> None:
    nested: object = (U8, [1])
    for _ in range(gguf_cursor.MAX_ARRAY_DEPTH):
        nested = (ARRAY, [nested])
    with pytest.raises(GgufError, match="nested"):
        read(gguf_bytes([*LLAMA, ("deep", ARRAY, nested)]))


@pytest.mark.parametrize("item_type", [STRING, ARRAY, U8, U64])
def test_a_huge_list_is_refused_at_once(read: Reader, item_type: int) -> None:
    content = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("key")
    content += struct.pack("<IIQ", ARRAY, item_type, 2**60) + bytes(4096)
    started = time.perf_counter()
    with pytest.raises(GgufError):
        read(content)
    assert time.perf_counter() - started < 1.0


def test_a_huge_string_is_refused_without_reading_it(read: Reader) -> None:
    content = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("key")
    with pytest.raises(GgufError, match="bytes long"):
        read(content + struct.pack("<IQ", STRING, 2**50) + bytes(64))


def test_a_header_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("key")
    with path.open("wb") as stream:
        stream.write(head + struct.pack("<IIQ", ARRAY, U8, gguf_cursor.MAX_HEADER_BYTES))
        stream.truncate(2 * gguf_cursor.MAX_HEADER_BYTES)
    with pytest.raises(GgufError, match="longer than 128 MiB"):
        read_gguf_header(path)


def test_files_that_are_no_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(GgufError, match="not a regular file"):
        read_gguf_header(tmp_path / "fifo")
    with pytest.raises(GgufError, match="not a regular file"):
        read_gguf_header(tmp_path)
    with pytest.raises(GgufError, match="cannot be opened: No such file"):
        read_gguf_header(tmp_path / "missing")


def test_the_block_table_agrees_with_the_gguf_package() -> None:
    known = {int(kind): tuple(sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    ours = {kind: sizes for kind, sizes in TENSOR_BLOCKS.items() if kind in known}
    assert ours == {kind: known[kind] for kind in ours}
    assert len(ours) >= 28


def test_a_tensor_of_a_newer_type_is_checked_by_its_offset(read: Reader) -> None:
    assert read(gguf_bytes(tensors=[("w", (8, 4), 999, 128)])).num_tensors == 1
    with pytest.raises(GgufError, match="truncated"):
        read(gguf_bytes(tensors=[("w", (8, 4), 999, 160)]))


def test_a_file_of_another_writer_is_read(tmp_path: Path) -> None:
    import numpy as np

    path = tmp_path / "written.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_block_count(7)
    writer.add_token_list(["<s>", "</s>", "é"])
    writer.add_chat_template("{{ messages }}")
    writer.add_tensor("token_embd.weight", np.zeros((3, 32), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_gguf_header(path)
    assert (header.trained_context, header.num_layers, header.num_params) == (4096, 7, 96)
    assert header.has_chat_template
    for missing in (1, 31, 100):
        os.truncate(path, header.size_bytes - missing)
        with pytest.raises(GgufError, match="truncated"):
            read_gguf_header(path)


def test_a_vocabulary_of_a_quarter_million_is_stepped_over_quickly(read: Reader) -> None:
    content = gguf_bytes([*LLAMA, ("tokens", ARRAY, (STRING, ["abcdef"] * 262_144))], ())
    best = min(_timed(read, content) for _ in range(5))
    assert best < 0.25  # some 25 ms on an idle core; the margin is for a busy machine


def _timed(read: Reader, content: bytes) -> float:
    started = time.process_time()
    assert read(content).architecture == "llama"
    return time.process_time() - started


_SAMPLE = gguf_bytes(
    [
        *LLAMA,
        ("tokens", ARRAY, (STRING, ["a", "bc", ""] * 20)),
        ("scores", ARRAY, (F32, [1.0] * 60)),
        ("nested", ARRAY, (ARRAY, [(U8, [1, 2]), (STRING, ["a"])])),
    ],
    [("a", (32, 2), 0, 0), ("b", (32,), 8, 256)],
    data=bytes(300),
)


@settings(max_examples=400, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_bytes_never_raise_anything_but_gguf_error(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(_SAMPLE)
    for _ in range(data.draw(st.integers(0, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    reason = ""
    try:
        assert read_gguf_header(path).size_bytes == len(content)
    except GgufError as error:
        reason = str(error)
    assert reason == "" or reason.startswith(("it ", "its "))


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(_SAMPLE)
    needed = len(_SAMPLE) - 300 + 256 + 34
    os.truncate(path, needed)
    assert read_gguf_header(path).num_tensors == 2
    for length in reversed(range(needed)):
        os.truncate(path, length)
        with pytest.raises(GgufError):
            read_gguf_header(path)


def test_reading_keeps_no_file_open(tmp_path: Path) -> None:
    folder = Path("/dev/fd")
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes())
    before = len(list(folder.iterdir()))
    for _ in range(20):
        read_gguf_header(path)
    path.write_bytes(b"nonsense")
    for _ in range(20):
        with pytest.raises(GgufError):
            read_gguf_header(path)
    assert len(list(folder.iterdir())) == before


# --- texts ------------------------------------------------------------------------------------------------


def test_texts_are_read_when_they_are_wanted(tmp_path: Path) -> None:
    template = "x" * 5000
    keys: list[Key] = [
        *LLAMA,
        ("tokenizer.ggml.tokens", ARRAY, (STRING, ["a", "<s>", "b", "</s>", "c"])),
        ("tokenizer.ggml.scores", ARRAY, (F32, [0.0] * 5)),
        ("tokenizer.ggml.eos_token_id", U32, 3),
        ("tokenizer.chat_template", STRING, template),
        ("tokenizer.ggml.bos_token_id", U32, 1),
    ]
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(keys))
    texts = read_gguf_texts(read_gguf_header(path))
    assert (texts.chat_template, texts.bos, texts.eos) == (template, "<s>", "</s>")


def test_texts_that_the_file_does_not_tell_are_none(tmp_path: Path) -> None:
    keys: list[Key] = [
        *LLAMA,
        ("tokenizer.ggml.tokens", ARRAY, (STRING, ["a"])),
        ("tokenizer.ggml.eos_token_id", U32, 7),
    ]
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(keys))
    assert read_gguf_texts(read_gguf_header(path)) == GgufTexts(None, None, None)


def test_texts_of_a_file_that_is_gone_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes())
    header = read_gguf_header(path)
    path.unlink()
    with pytest.raises(GgufError):
        read_gguf_texts(header)
