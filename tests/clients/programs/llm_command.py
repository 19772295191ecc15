"""The command line `llm`, set up for this server as its documentation says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from checking import CODER, EXACT, KEY, QUESTION, SMOL, TAGGED, URL, main

HOME = Path(os.environ["HOME"]) / "llm"
MODELS = "\n".join(
    f"- model_id: {model}\n  model_name: {name}\n  api_base: {URL}/v1\n  api_key_name: corral\n{more}"
    for model, name, more in (
        ("smol", EXACT, ""),
        ("tagged", f'"{TAGGED}"', ""),
        ("unstreamed", EXACT, "  can_stream: false\n"),
        ("raw", SMOL, "  completion: true\n"),
        ("coder", CODER, "  supports_schema: true\n  supports_tools: true\n"),
        ("absent", "smoll", ""),
    )
)


def llm(*arguments: str, key: str = KEY) -> subprocess.CompletedProcess[str]:
    """Run the command and return what it has printed."""
    HOME.mkdir(exist_ok=True)
    (HOME / "extra-openai-models.yaml").write_text(MODELS, encoding="utf-8")
    (HOME / "keys.json").write_text(json.dumps({"corral": key}), encoding="utf-8")
    command = [str(Path(sys.executable).with_name("llm")), *arguments]
    environment = os.environ | {"LLM_USER_PATH": str(HOME)}
    return subprocess.run(command, env=environment, text=True, capture_output=True, timeout=120, check=False)


def said(*arguments: str) -> str:
    """Return what the command has printed, having succeeded."""
    done = llm(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


SHORT = ("-o", "temperature", "0", "-o", "max_tokens", "8")


def check_a_question_is_answered_streamed_and_not() -> None:
    answer = said("-m", "smol", *SHORT, QUESTION)
    assert answer
    assert said("-m", "smol", "--no-stream", *SHORT, QUESTION) == answer
    assert said("-m", "unstreamed", *SHORT, QUESTION) == answer
    assert said("-m", "tagged", *SHORT, QUESTION)


def check_its_log_has_the_usage() -> None:
    said("-m", "smol", *SHORT, QUESTION)
    (entry,) = json.loads(said("logs", "list", "-n", "1", "--json"))
    assert entry["output_tokens"] == 8
    assert entry["input_tokens"] > 0


def check_a_conversation_is_continued() -> None:
    said("-m", "smol", *SHORT, "-s", "Answer shortly.", QUESTION)
    assert said("-c", "And more?")


def check_raw_completions() -> None:
    assert said("-m", "raw", *SHORT, "Once upon a time")


def check_seed_and_stop_are_passed_on() -> None:
    whole = said("-m", "smol", "-o", "temperature", "0", "-o", "max_tokens", "24", QUESTION)
    stop = whole[len(whole) // 2 :][:3]
    until = said("-m", "smol", "-o", "temperature", "0", "-o", "max_tokens", "24", "-o", "stop", stop, QUESTION)
    assert until == whole[: whole.index(stop)].strip()


def check_a_form_that_is_asked_for_is_kept_to() -> None:
    told = said("-m", "coder", "--no-stream", "-o", "max_tokens", "64", "--schema", "legs int, tame bool", "A cow.")
    animal = json.loads(told)
    assert animal.keys() >= {"legs", "tame"}  # its schema allows more
    assert (type(animal["legs"]), type(animal["tame"])) == (int, bool)


def check_an_error_is_shown_in_our_words() -> None:
    done = llm("-m", "absent", QUESTION)
    assert done.returncode == 1
    assert "smoll" in done.stderr
    done = llm("-m", "smol", QUESTION, key="wrong")
    assert done.returncode == 1
    assert "API key" in done.stderr


if __name__ == "__main__":
    main(globals())
