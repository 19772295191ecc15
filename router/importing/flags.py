"""A command line of llama-server, or the same options out of a file: what each one is called here.

Owns what becomes of every option. Options that llama.cpp and `models.yaml` share are taken by the table of keys, so
that a key that is new there is carried over at once. Pure: no program is run, no file looked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from router.catalog_keys import MODEL_KEYS
from router.catalog_kinds import Choice, Flag, Number, Proportions, Whole
from router.catalog_refusals import explain_model_key
from router.importing.flag_names import BOOLEAN, IGNORED, REQUEST_FLOATS, REQUEST_INTEGERS, canonical
from router.importing.imported import ImportedModel
from router.importing.special_flags import NUMBER, OFF, ON, SPECIAL, hub_reference, shown

Pairs = Sequence[tuple[str, str | None]]
"""Options by their canonical names, in the order they were given; None = without a value."""

_HUB_URL = re.compile(r"https?://huggingface\.co/([^/]+)/([^/]+)/(?:resolve|blob)/([^/]+)/(.+\.gguf)(?:\?.*)?")


def read_words(words: Sequence[str]) -> tuple[list[tuple[str, str | None]], list[str]]:
    """Return the options among the words of a command line, and the words that are none."""
    pairs: list[tuple[str, str | None]] = []
    others: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not _is_flag(word):
            others.append(word)
            continue
        flag, equals, value = word.partition("=")
        name = canonical(flag)
        if equals and flag.startswith("--"):
            pairs.append((name, value))
        elif at < len(words) and _takes_value(name) and not _is_flag(words[at]):
            following = words[at]
            if name == "flash_attn" and following.lower() not in ON | OFF | {"auto"}:
                pairs.append((name, None))
                continue
            pairs.append((name, following))
            at += 1
        else:
            pairs.append((name, None))
    return pairs, others


def apply_options(model: ImportedModel, pairs: Pairs) -> None:
    """The model has everything that the options say; what it cannot have is noted. Mutates: `model`."""
    given: dict[str, str | None] = {}
    several: dict[str, list[str]] = {}
    for name, value in pairs:
        given[name] = value
        several.setdefault(name, []).append(value or "")
    for name, value in given.items():
        if name in _TOGETHER:
            continue
        special = SPECIAL.get(name)
        if special is not None:
            special(model, value or "", several[name])
        elif name in REQUEST_FLOATS:
            _request_number(model, name, REQUEST_FLOATS[name], value, float)
        elif name in REQUEST_INTEGERS:
            _request_number(model, name, REQUEST_INTEGERS[name], value, int)
        elif name in MODEL_KEYS and MODEL_KEYS[name].engine is not None:
            _option(model, name, value)
        elif name not in IGNORED:
            _refuse(model, name, value)
    _source(model, given)
    _context(model, given)


# --- the words of a command line ---------------------------------------------------------------------------


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and not NUMBER.fullmatch(word)


def _takes_value(name: str) -> bool:
    if name in BOOLEAN:
        return False
    key = MODEL_KEYS.get(name)
    return key is None or not isinstance(key.kind, Flag)


class _Wrong(ValueError):
    """A value cannot be taken over; says why."""


class _AsUsual(Exception):
    """llama-server's way to say "whatever is usual": nothing is to be written."""


# --- single options ----------------------------------------------------------------------------------------


def _option(model: ImportedModel, name: str, value: str | None) -> None:
    """Take an option that has the same name here."""
    key = MODEL_KEYS[name]
    try:
        model.options[name] = _converted(key.kind, value)
    except _AsUsual:
        pass
    except _Wrong as wrong:
        model.note(f"{shown(name, value)}: {wrong}")
    except ValueError:
        model.note(f"{shown(name, value)}: must be a number")


def _converted(kind: Any, value: str | None) -> Any:  # noqa: PLR0911, PLR0912 - a ladder of kinds
    """Return the value in the form that our key takes. Raises: _AsUsual, _Wrong; ValueError for what is no number."""
    match kind:
        case Flag():
            return _flag(value)
        case Whole():
            if value is not None and value.lower() in kind.words:
                return value.lower()
            number = int(value or "")
            if number < 0 and kind.minimum >= 0:
                raise _AsUsual
            if number == 0 and kind.minimum > 0:
                raise _AsUsual
            if not kind.minimum <= number <= kind.maximum:
                raise _Wrong(f"must be from {kind.minimum} to {kind.maximum} here")
            return number
        case Number():
            real = float(value or "")
            if not kind.minimum <= real <= kind.maximum or (kind.is_open and real == kind.minimum):
                if real <= 0:
                    raise _AsUsual
                raise _Wrong(f"must be from {kind.minimum:g} to {kind.maximum:g} here")
            return int(real) if real.is_integer() else real
        case Choice():
            word = (value or "on").lower()
            if kind.flags:
                word = kind.flags[True] if word in ON else kind.flags[False] if word in OFF else word
            if word not in kind.values:
                raise _Wrong(f"must be one of {', '.join(kind.values)} here")
            return word
        case Proportions():
            numbers = [float(part) for part in re.split(r"[,/]", value or "")]
            if not all(map(math.isfinite, numbers)):
                raise _Wrong("must be a list of numbers")
            return [int(number) if number.is_integer() else number for number in numbers]
        case _:
            return value


def _flag(value: str | None) -> bool:
    if value is None or value.lower() in ON:
        return True
    if value.lower() in OFF:
        return False
    raise _Wrong("must be true or false")


def _request_number(
    model: ImportedModel, name: str, field: str, value: str | None, convert: Callable[[str], int | float]
) -> None:
    try:
        number = convert(value or "")
        if not math.isfinite(number):
            raise ValueError
    except ValueError:
        model.note(f"{shown(name, value)}: must be a number")
        return
    if number < 0 and name in ("seed", "reasoning_budget", "adaptive_target", "top_nsigma"):
        return  # the usual
    model.set_request("defaults", field, number)


_NOT_YET: Final[Mapping[str, str]] = dict.fromkeys(
    ("mmproj", "mm"), "image input is not available in this release yet; the model answers text"
)


def _refuse(model: ImportedModel, name: str, value: str | None) -> None:
    reason = explain_model_key(name, value)
    if "leave it out" in reason:
        return
    if reason.startswith("unknown key"):
        reason = "not known here"
    # Here the option is not a key of somebody's models.yaml: what is said of the key is left out.
    reason = reason.removeprefix(f"`{name}` is not a key here: ")
    if name in _NOT_YET:
        reason = _NOT_YET[name]
    model.note(f"{shown(name, value)}: {reason}")


# --- options that mean something together ------------------------------------------------------------------

_TOGETHER: Final = frozenset({"model", "model_url", "hf_repo", "hf_file", "ctx_size", "parallel", "kv_unified"})


def _source(model: ImportedModel, given: Mapping[str, str | None]) -> None:
    if given.get("model"):
        model.options["model"] = given["model"]
    elif given.get("hf_repo"):
        model.options["model"] = hub_reference(given["hf_repo"] or "", given.get("hf_file"))
    elif given.get("model_url"):
        match = _HUB_URL.fullmatch(given["model_url"] or "")
        if match is None:
            model.note(f"{shown('model_url', given['model_url'])}: download the file, and write its path as `model`")
        else:
            owner, repo, revision, file = match.groups()
            model.options["model"] = f"hf:{owner}/{repo}/{file}" + ("" if revision == "main" else f"@{revision}")


def _context(model: ImportedModel, given: Mapping[str, str | None]) -> None:
    """Divide the context as llama-server does: slots share `kv_tokens`, and one request may use `context`."""
    slots, total = _whole(given.get("parallel")), _whole(given.get("ctx_size"))
    if slots is not None and slots > 0:
        model.options["slots"] = min(slots, 64)
    if total is None or total <= 0:
        if "ctx_size" in given:
            model.note(
                "--ctx-size 0, all that the model was trained for: `context: auto` takes at most 8192; write a number "
                "for more"
            )
        return
    if slots is not None and slots > 1 and "kv_unified" not in given:
        model.options["context"] = max(16, total // slots)
        return
    model.options["context"] = total
    if slots != 1:
        model.options["kv_tokens"] = total  # the slots share it


def _whole(value: str | None) -> int | None:
    return int(float(value)) if value is not None and NUMBER.fullmatch(value) else None
