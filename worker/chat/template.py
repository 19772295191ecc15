"""Chat messages to the text of a prompt, by the template that comes with a model.

Owns what a template is given and what is made of its answer. What comes out depends on the arguments alone: there is no
clock. Must not know tokens.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any

from worker.chat.client_text import Guard, Segment, texts_of
from worker.chat.control_texts import ControlTexts
from worker.chat.errors import LimitExceeded, TemplateError, UnsupportedContent
from worker.chat.expectations import Expectations, find_expectations
from worker.chat.limits import Budget
from worker.chat.messages import merge_for_template, normalize_messages, without_system
from worker.chat.reasoning import KNOWN_TAGS
from worker.chat.sandbox import SandboxedTemplate
from worker.chat.tool_calls.families import choose_family
from worker.chat.tool_turns import Turn, with_tools_in_system

__all__ = ["ChatTemplate", "LimitExceeded", "Segment", "TemplateError", "UnsupportedContent"]

_MAX_DATE_FORMAT_CHARS = 200
_NO_KWARGS: Mapping[str, Any] = MappingProxyType({})
_OWN_NAMES = ("functions", "datetime")
_PROBE_TIME = datetime(2000, 1, 1)
_OF_THOUGHTS = frozenset(text for tags in KNOWN_TAGS for text in tags.markers)


class ChatTemplate:
    """A compiled template. Rendering keeps no state.

    With a `budget`, all renderings together may cost no more than that, those included that find out how the template
    wants its messages; without, each may cost the usual.

    `marker_texts` are kept from clients like `control_texts`: what begins a call, or the like. Only tags of thoughts
    stay as they are in the content of the assistant's messages: templates look for them there, to leave old thoughts
    out.

    Raises: TemplateError, naming the line, when `source` cannot be compiled.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_text: str,
        eos_text: str,
        control_texts: Sequence[str],
        marker_texts: Collection[str] = (),
        budget: Budget | None = None,
    ) -> None:
        self._source = source
        self._budget = budget
        self._template = SandboxedTemplate(source)
        self._control = ControlTexts([*control_texts, *marker_texts])
        self._control_of_assistant = ControlTexts([*control_texts, *(set(marker_texts) - _OF_THOUGHTS)])
        self._family = choose_family(source)
        self._wants_texts = self._template.reads(*_OWN_NAMES)
        self._wants_xml_tools = self._template.reads("xml_tools") and not self._template.reads("tools")
        self._special = {"bos_token": bos_text, "eos_token": eos_text}
        given = {"messages", "tools", "add_generation_prompt", "strftime_now", *self._special}
        self._reserved_names = given | self._template.global_names

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        now: datetime,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, Any] = _NO_KWARGS,
        continue_final_message: bool = False,
    ) -> list[Segment]:
        """Return the prompt for OpenAI `messages`.

        `now` is what templates that print a date print. With `continue_final_message` the prompt ends inside the last
        message, an assistant's, so that the answer goes on with it. If the template refuses the conversation as it is,
        it gets a second look at it with system messages in front and turns of one role joined, and a third one with the
        system's text in front of the first user's.

        Raises: TemplateError in the template's own words, or naming the message that cannot be used; LimitExceeded.
        """
        turns = normalize_messages(messages)
        self._check_kwargs(kwargs)
        if continue_final_message:
            _check_final(turns[-1])
        turns, own_mark = self._spell_out(turns)
        if tools and self.expectations.takes_tools_in_system:
            turns = with_tools_in_system(turns, tools)
        given = {
            **kwargs,
            "tools": tools or ([] if self.expectations.is_tool_list else None),
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        refusals: list[TemplateError] = []
        for shape in _shapes(turns):
            try:
                fitted = self.expectations.fit(shape)
                return self._render(fitted, given, now, is_continued=continue_final_message, own_mark=own_mark)
            except LimitExceeded:
                raise
            except TemplateError as refusal:
                refusals.append(refusal)
        raise refusals[0]

    @cached_property
    def expectations(self) -> Expectations:
        """How the template wants its messages."""
        return find_expectations(self._probe)

    def _probe(self, turns: Sequence[Turn], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        segments = self._render(turns, {"tools": tools, "add_generation_prompt": True}, _PROBE_TIME)
        return "".join(segment.text for segment in segments)

    def _spell_out(self, turns: Sequence[Turn]) -> tuple[list[Turn], str]:
        """Return the turns as the template has a place for them, and the mark inside control texts that are ours."""
        if self.expectations.shows_calls or not any(turn.get("tool_calls") for turn in turns):
            return self.expectations.spell_out(turns), ""

        def spell(calls: Sequence[Mapping[str, Any]]) -> str:
            return guard.spell(self._family.spell, calls, [{"name": "x", "arguments": {}} for _ in calls])

        try:
            guard = Guard(self._control, texts_of(turns))
            return self.expectations.spell_out(turns, spell), guard.end_mark
        except RecursionError:
            raise TemplateError("The messages or tools are nested too deeply.") from None

    def _render(
        self,
        turns: Sequence[Turn],
        given: Mapping[str, Any],
        now: datetime,
        *,
        is_continued: bool = False,
        own_mark: str = "",
    ) -> list[Segment]:
        try:
            if self._wants_xml_tools:
                given = {"xml_tools": given["tools"], **given}
            if self._wants_texts:
                given = {**_own_variables(given["tools"] or [], now), **given}
            guard = Guard(self._control, [self._source, *texts_of([turns, given])])
            wrapped = [self._wrap(guard, turn, own_mark) for turn in turns]
            variables = {"documents": None, **guard.wrap(given), "messages": wrapped, **self._special}
        except RecursionError:
            raise TemplateError("The messages or tools are nested too deeply.") from None
        variables["strftime_now"] = lambda format_: _date(now, format_)
        if not is_continued:
            return guard.segments(self._template.render(variables, guard, self._budget))
        final = turns[-1]["content"]
        # The space shows whether the template trims its contents: then it is gone.
        _append(wrapped[-1], guard, f"{guard.end_mark} ")
        shown = self._template.render(variables, guard, self._budget)
        before, found, after = shown.rpartition(guard.end_mark)
        if not found:
            raise TemplateError("This model's chat template drops the last message, so it cannot be continued.")
        text = final if isinstance(final, str) else final[-1]["text"]
        if not after.startswith(" ") and text.strip():
            before = before.removesuffix(text[len(text.rstrip()) :])
        # A template that prints the last message twice has ended its first copy with the same characters.
        return guard.segments(guard.without_end_marks(before))

    def _wrap(self, guard: Guard, turn: Turn, own_mark: str) -> Turn:
        own = self._control_of_assistant if turn["role"] == "assistant" else None
        wrapped: Turn = {
            guard.wrap(key): guard.wrap(value, own if key == "content" else None) for key, value in turn.items()
        }
        if own_mark and turn["role"] == "assistant":
            wrapped["content"] = _trusted(wrapped["content"], guard, own_mark)
        return wrapped | {"role": turn["role"]}

    def _check_kwargs(self, kwargs: Mapping[str, Any]) -> None:
        for name in kwargs:
            if name in self._reserved_names:
                raise TemplateError(
                    f"'chat_template_kwargs' cannot set '{name}': it is given to the template already.",
                    param="chat_template_kwargs",
                )


def _shapes(turns: list[Turn]) -> Iterator[list[Turn]]:
    """Yield the forms in which a template may take a conversation, the given one first; each once."""
    yield turns
    merged = merge_for_template(turns)
    if merged != turns:
        yield merged
    if (shorter := without_system(merged)) != merged:
        yield shorter


def _check_final(turn: Turn) -> None:
    if turn["role"] != "assistant" or turn.get("tool_calls"):
        raise TemplateError(
            "Only a message of the assistant that calls no tools can be continued; the last one is none.",
            param="messages",
        )


def _append(turn: Turn, guard: Guard, ending: str) -> None:
    content = turn["content"]
    if isinstance(content, str):
        turn["content"] = guard.own(f"{content}{ending}")
    else:
        content[-1]["text"] = guard.own(f"{content[-1]['text']}{ending}")


def _trusted(content: Any, guard: Guard, own_mark: str) -> Any:
    """Return a content in which what we have spelled out is our own."""
    if isinstance(content, list):
        return [{**part, "text": guard.trust(part["text"], own_mark)} if "text" in part else part for part in content]
    return content if content is None else guard.trust(content, own_mark)


def _own_variables(tools: Sequence[Mapping[str, Any]], now: datetime) -> dict[str, str]:
    """Return what templates want that need tools and time as texts under names of their own."""
    return dict(zip(_OWN_NAMES, (json.dumps(tools, ensure_ascii=False, indent=4), f"{now:%Y-%m-%d}"), strict=True))


def _date(now: datetime, format_: str) -> str:
    if len(format_) > _MAX_DATE_FORMAT_CHARS:
        raise ValueError(f"strftime_now takes at most {_MAX_DATE_FORMAT_CHARS} characters")
    return now.strftime(str.__str__(format_))
