"""Configurations of other servers: each becomes a models.yaml that is YAML, or is refused with a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from router.catalog_parser import read_catalog
from router.importing.imported import Imported, NotImportable
from router.importing.llama_swap import read_llama_swap
from router.importing.modelfile import read_modelfile
from router.importing.presets import read_presets
from router.importing.writing import write_catalog
from router.yaml_lines import read_yaml
from tests.fuzz.parsers.subject import Subject

_READERS: tuple[Callable[[str], Imported], ...] = (
    read_llama_swap,
    read_presets,
    lambda text: read_modelfile(text, "model"),
)


def check(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for read in _READERS:
        try:
            imported = read(text)
        except NotImportable as error:
            if not str(error):
                raise AssertionError("no reason is told") from error
            continue
        written = write_catalog(imported)
        document = read_yaml(written)
        assert not document.problems, (document.problems, written)
        assert document.root is not None
        read_catalog(written, Path("/nowhere/models.yaml"))


def seeds() -> Iterator[bytes]:
    from tests.router.importing.test_llama_swap import EVERYTHING
    from tests.router.importing.test_presets_and_modelfiles import MODELFILE, PRESETS

    for text in (EVERYTHING, PRESETS, MODELFILE):
        yield text.encode()
    yield b"models: {a: {cmd: llama-server -m a.gguf -c 4096 --lora-scaled x.gguf:0.5 --temp 0.5}}\n"
    yield b"macros: {a: '${b}${b}', b: '${a}'}\nmodels: {x: {cmd: 'llama-server -m ${a}'}}\n"
    yield b"models: {a: {cmd: 'llama-server -hf a/b:Q4 -ngl 99 --samplers top_k;temp', env: [LLAMA_ARG_CTX_SIZE=1]}}\n"
    yield b"[*]\nc = 1\n[a]\nhf = a/b:Q4\nlogit-bias = 1\n"
    yield b"FROM hf.co/a/b:Q4\nPARAMETER temperature 1\n"


_WORDS = (
    *(
        "models:",
        "cmd: ",
        "macros:",
        "${",
        "}",
        "env: [",
        "aliases: [",
        "ttl: ",
        "groups:",
        "peers:",
        "filters:",
        "profiles:",
    ),
    *("llama-server ", "-m a.gguf ", "--model ", "-hf a/b ", "-c 8k ", "-ngl 99 ", "--lora ", "--temp ", "--samplers "),
    *(
        "--chat-template ",
        "--chat-template-kwargs '{",
        "--tensor-split 1,2 ",
        "--api-key x ",
        "-fa ",
        "--seed -1 ",
        "\\\n",
    ),
    *(
        "--override-kv ",
        "--reasoning-budget ",
        "--rope-scale ",
        "-np ",
        "--no-mmap ",
        "--draft-max ",
        "'",
        '"',
        "#",
        ";",
    ),
    *(
        "[*]\n",
        "[x]\n",
        " = ",
        "LLAMA_ARG_",
        "FROM ",
        "PARAMETER ",
        "SYSTEM ",
        '"""',
        "TEMPLATE ",
        "ADAPTER ",
        "MESSAGE ",
    ),
    *(
        "num_ctx ",
        "stop ",
        "\n",
        "\t",
        "\r",
        "\x85",
        "\u2028",
        "\ufeff",
        "nan",
        "inf",
        "1e999",
        "-0",
        "9" * 30,
        "*a",
        "&a ",
    ),
    *(
        "!!binary ",
        "!!timestamp 2024-99-99",
        "2024-01-01",
        "<<: ",
        "? ",
        ": ",
        "~",
        "null",
        "{",
        "[",
        "\x00",
        "\x1b",
        "🙂",
    ),
)


SUBJECT = Subject("importing", check, seeds, tuple(word.encode() for word in _WORDS))
