"""An Ollama Modelfile: where a model comes from and with which parameters it is asked.

Owns what its instructions mean here. Pure.

Source: Ollama's docs/modelfile.md.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from router.importing.imported import Imported, ImportedModel, NotImportable

_INSTRUCTION = re.compile(r"^\s*([A-Za-z]{2,20})\s+(.*)$")
_KNOWN = frozenset({"FROM", "PARAMETER", "TEMPLATE", "SYSTEM", "ADAPTER", "LICENSE", "MESSAGE", "REQUIRES"})
"""In capitals or not; others must be in capitals to be taken for instructions."""
_REQUEST = {
    **dict.fromkeys(
        ("temperature", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty"), float
    ),
    **dict.fromkeys(("typical_p", "mirostat_tau", "mirostat_eta"), float),
    **dict.fromkeys(("seed", "top_k", "repeat_last_n", "mirostat"), int),
}
_OLD = frozenset({"num_gqa", "num_keep", "penalize_newline", "numa", "low_vram", "vocab_only", "f16_kv", "tfs_z"})


def read_modelfile(text: str, name: str) -> Imported:
    """Return the one model in our words, under `name`. Raises: NotImportable."""
    instructions = list(_instructions(text))
    if not any(word == "FROM" for word, _ in instructions):
        raise NotImportable("it has no line FROM, so it is no Modelfile")
    imported = Imported("an Ollama Modelfile")
    model = ImportedModel(name)
    for word, value in instructions:
        _apply(model, word, value)
    imported.models.append(model)
    return imported


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield instructions with their values; a value in three quotes may have several lines."""
    lines = iter(text.splitlines())
    for line in lines:
        match = _INSTRUCTION.match(line)
        if match is None or not (match[1].isupper() or match[1].upper() in _KNOWN):
            continue
        word, value = match[1].upper(), match[2].strip()
        if value.startswith('"""'):
            value = value[3:]
            parts = [value]
            while '"""' not in parts[-1]:
                following = next(lines, None)
                if following is None:
                    break
                parts.append(following)
            value = "\n".join(parts).partition('"""')[0]
        yield word, value


def _apply(model: ImportedModel, word: str, value: str) -> None:
    match word:
        case "FROM":
            _from(model, value)
        case "PARAMETER":
            name, _, rest = value.partition(" ")
            _parameter(model, name.strip().lower(), rest.strip())
        case "ADAPTER":
            model.options.setdefault("loras", {})["adapter"] = value
            model.note("the adapter is applied where a request or an alias asks for it (`lora: adapter`)")
        case "SYSTEM":
            model.note(
                "SYSTEM: a model has no system prompt of its own here; let requests send it as their first message"
            )
        case "TEMPLATE":
            model.note(
                "TEMPLATE: Ollama's templates are in Go's language, and chat templates here are Jinja: the one in the "
                "model file is used"
            )
        case "MESSAGE":
            model.note("MESSAGE: let requests send the conversation that they begin with")
        case "LICENSE" | "REQUIRES":
            pass  # nothing hangs on them here
        case _:
            model.note(f"{word}: not known here")


def _from(model: ImportedModel, value: str) -> None:
    if value.startswith("hf.co/") or value.startswith("huggingface.co/"):
        repo, _, quant = value.partition("/")[2].partition(":")
        model.options["model"] = f"hf:{repo}:{'Q4_K_M' if quant in ('', 'latest') else quant}"
    elif value.lower().endswith(".gguf") or "/blobs/sha256-" in value or value.startswith(("/", "./", "../", "~")):
        model.options["model"] = value
        if "/blobs/" in value:
            model.note(
                "a blob of Ollama's store goes when Ollama removes its model: copy it to a file that ends in .gguf"
            )
    else:
        model.note(
            f"FROM {value}: names a model of Ollama's; `ollama show {value} --modelfile` prints the file that it "
            "stands for"
        )


def _parameter(model: ImportedModel, name: str, value: str) -> None:  # noqa: PLR0912 - a ladder of names
    try:
        text = shlex.split(value)[0] if value[:1] in "\"'" and value else value
    except ValueError:
        text = value.strip("\"'")
    try:
        if name == "num_ctx":
            model.options["context"] = max(16, int(text))
        elif name == "num_predict":
            if int(text) > 0:
                model.options["max_tokens"] = int(text)
        elif name == "num_gpu":
            number = int(text)
            model.options["gpu_layers"] = "all" if number < 0 or number >= 99 else number
        elif name == "num_thread":
            if int(text) > 0:
                model.options["threads"] = int(text)
        elif name == "num_batch":
            model.options["batch_size"] = max(4, int(text))
        elif name == "main_gpu":
            model.options["main_gpu"] = int(text)
        elif name in ("use_mmap", "use_mlock"):
            model.options[name.removeprefix("use_")] = text.lower() == "true"
        elif name == "stop":
            rules = model.options.setdefault("request", {}).setdefault("defaults", {})
            rules.setdefault("stop", []).append(text)
        elif name in _REQUEST:
            model.set_request("defaults", name, _REQUEST[name](text))
        elif name not in _OLD:
            model.note(f"PARAMETER {name}: not known here")
    except ValueError:
        model.note(f"PARAMETER {name} {text}: must be a number")
