"""Turns that call tools and those that answer them: which belong together, and other arrangements of the same.

Templates differ in which arrangements they take. Must not know templates.
"""

from __future__ import annotations

import itertools
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Turn = dict[str, Any]
"""One message in the form that templates get."""


def with_ids(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns with an id for each call and each answer that has none; answers without one come in order."""
    taken = {call.get("id") for turn in turns for call in turn.get("tool_calls", ())}
    fresh = (id_ for number in itertools.count(1) if (id_ := short_id(number)) not in taken)
    # In order, and yet taken out anywhere at once: there may be tens of thousands.
    waiting: OrderedDict[str, None] = OrderedDict()
    found = []
    for turn in turns:
        if "tool_calls" in turn:
            calls = [call if call.get("id") else {**call, "id": next(fresh)} for call in turn["tool_calls"]]
            waiting = OrderedDict.fromkeys(call["id"] for call in calls)
            found.append({**turn, "tool_calls": calls})
        elif turn["role"] == "tool":
            id_ = turn.get("tool_call_id") or (next(iter(waiting)) if waiting else next(fresh))
            waiting.pop(id_, None)
            found.append({**turn, "tool_call_id": id_})
        else:
            found.append(turn)
    return found


def short_id(number: int) -> str:
    """Return an id of nine letters and digits, which all templates take."""
    return f"call{number:05d}"


def with_short_ids(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns with ids of nine letters and digits, those of answers like those of their calls."""
    ids: dict[str, str] = {}

    def short(id_: str) -> str:
        return ids.setdefault(id_, short_id(len(ids) + 1))

    found = []
    for turn in turns:
        if "tool_calls" in turn:
            calls = [{**call, "id": short(call["id"])} for call in turn["tool_calls"]]
            found.append({**turn, "tool_calls": calls})
        elif "tool_call_id" in turn:
            found.append({**turn, "tool_call_id": short(turn["tool_call_id"])})
        else:
            found.append(turn)
    return found


def one_by_one(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns with one call in each, and its answer behind it."""
    found: list[Turn] = []
    for calling, answers in _rounds(turns):
        calls = calling.get("tool_calls", ())
        if len(calls) < 2:
            found += [calling, *answers]
            continue
        by_id: dict[Any, list[Turn]] = {}
        for answer in answers:
            by_id.setdefault(answer.get("tool_call_id"), []).append(answer)
        for place, call in enumerate(calls):
            found.append({**calling, "tool_calls": [call]} if place == 0 else _calling(call))
            found += by_id.pop(call.get("id"), [])
        found += (answer for answer in answers if answer.get("tool_call_id") in by_id)
    return found


def said_apart(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns with what is said beside calls in a turn of its own in front."""
    found: list[Turn] = []
    for turn in turns:
        if turn.get("tool_calls") and turn["content"]:
            said = {key: value for key, value in turn.items() if key != "tool_calls"}
            found += [said, {**turn, "content": None}]
            found[-1].pop("reasoning_content", None)
        else:
            found.append(turn)
    return found


def with_tools_in_system(turns: Sequence[Turn], tools: Sequence[Mapping[str, Any]]) -> list[Turn]:
    """Return the turns with the tools as JSON in the system's turn, which is added where there is none."""
    has_system = bool(turns) and turns[0]["role"] == "system"
    system = turns[0] if has_system else {"role": "system", "content": ""}
    functions = json.dumps([tool.get("function", tool) for tool in tools], ensure_ascii=False)
    return [{**system, "tools": functions}, *turns[1 if has_system else 0 :]]


def _calling(call: Turn) -> Turn:
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _rounds(turns: Sequence[Turn]) -> Iterator[tuple[Turn, list[Turn]]]:
    """Yield each turn with the answers of tools behind it; those in front of all turns come one by one."""
    at = 0
    while at < len(turns):
        end = at + 1
        while end < len(turns) and turns[end]["role"] == "tool":
            end += 1
        yield turns[at], list(turns[at + 1 : end])
        at = end
