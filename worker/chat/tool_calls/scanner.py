"""The text of one answer as it comes, read by generators that wait for more, and the deltas that are made of it.

A reader is a generator that yields whenever it needs more text. What it makes depends on the text alone and never on
where that was cut, as long as it looks at the text through these methods. Must not know a family.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from typing import TypeVar

from worker.chat.deltas import CallArguments, CallStart, Delta, ReasoningDelta, TextDelta
from worker.chat.marks import Markers, unmarked
from worker.chat.tool_calls.json_text import SPACE, JsonText
from worker.chat.tool_calls.tools import Demand, Tools

T = TypeVar("T")
Reading = Generator[None, None, T]
"""Yields where more text is needed; returns what was read."""
Emit = Callable[[str], None]

MAX_COLLECTED = 256 * 1024
"""Characters that are held back at most until it is clear what they are; more are text."""


class Scanner:
    """What is read, and what comes of it. `make_id` names a call by its place and its tool."""

    def __init__(self, markers: Markers, tools: Tools, make_id: Callable[[int, str], str]) -> None:
        self.markers = markers
        self.tools = tools
        self._by_name = {} if tools.demand is Demand.NONE else tools.by_name
        self._make_id = make_id
        self._buffer = ""
        self._is_over = False
        self.is_cut = False
        """The answer was not ended by the model. Known at its end only."""
        self._deltas: list[Delta] = []
        self._num_calls = 0
        self._trail: list[str] | None = None
        self._space: list[str] = []
        """White space at the end of the text so far: it is no part of the answer where it stands beside a call."""
        self._is_beside = False
        """Whether a call or a thought came last."""
        self._thought_space: list[str] = []
        self._is_thinking = False
        self.thoughts: tuple[str, str] | None = None
        """How thoughts begin and end, in the forms of this vocabulary, where they may come between texts."""

    # --- the side of whoever has the text -----------------------------------------------------------------

    def feed(self, text: str) -> None:
        """There is more text."""
        self._buffer += text

    def end(self, *, is_cut: bool) -> None:
        """There will be no more."""
        self._is_over, self.is_cut = True, is_cut

    def close(self) -> None:
        """All of the answer has been read."""
        if (space := "".join(self._space)) and not self._is_beside:
            self._deltas.append(TextDelta(space))
        self._space = []

    def take_deltas(self) -> list[Delta]:
        """Return what was made since the last time."""
        deltas, self._deltas = self._deltas, []
        return deltas

    # --- what readers make --------------------------------------------------------------------------------

    @property
    def num_calls(self) -> int:
        """Calls so far."""
        return self._num_calls

    def text(self, text: str) -> None:
        """It is text for whoever reads the answer. White space beside calls and thoughts is left out."""
        said, space = _without_space(text)
        if said:
            said = "".join([*self._space, said])
            self._deltas.append(TextDelta(said.lstrip(SPACE) if self._is_beside else said))
            self._space, self._thought_space = [], []
            self._is_beside = self._is_thinking = False
        self._space.append(space)

    def end_thought(self) -> None:
        """A thought ends here, and be it empty: white space behind it is left out."""
        self._space, self._is_beside = [], True

    def reasoning(self, text: str) -> None:
        """It is a thought. White space around it is left out."""
        said, space = _without_space(text)
        if said:
            said = "".join([*self._thought_space, said])
            self._deltas.append(ReasoningDelta(said if self._is_thinking else said.lstrip(SPACE)))
            self._space, self._thought_space = [], []
            self._is_beside = self._is_thinking = True
        self._thought_space.append(space)

    def knows(self, name: str) -> bool:
        """Whether a tool of this name may be called."""
        return name in self._by_name

    def start_call(self, name: str, id_: str | None = None) -> None:
        """A call of the tool begins. Ids that the model gives are kept."""
        self._space, self._is_beside, self._is_thinking = [], True, False
        self._deltas.append(CallStart(self._num_calls, id_ or self._make_id(self._num_calls, name), name))
        self._num_calls += 1

    def arguments(self, text: str) -> None:
        """It is more of the JSON text of the arguments of the call that began last."""
        if text := unmarked(text):
            self._deltas.append(CallArguments(self._num_calls - 1, text))

    def whole_call(self, name: str, arguments: str, id_: str | None = None) -> None:
        """A call with all of its arguments."""
        self.start_call(name, id_)
        self.arguments(arguments)

    # --- what readers ask ---------------------------------------------------------------------------------

    def more(self, count: int = 1) -> Reading[bool]:
        """Return whether there are so many characters to read."""
        while len(self._buffer) < count:
            if self._is_over:
                return False
            yield
        return True

    def peek(self) -> Reading[str]:
        """Return the next character; empty at the end."""
        there = yield from self.more()
        return self._buffer[0] if there else ""

    def until(self, *markers: str, emit: Emit | None = None) -> Reading[str | None]:
        """Pass on what comes before the first of `markers`, read that, and return it; None at the end of the answer.

        `emit` is `text` by default. Of markers at one place the longest counts. Markers are given in their plain form.
        Thoughts between texts go where they belong.
        """
        is_text = emit is None
        emit = emit or self.text
        forms = {self.markers.form(one): one for one in markers}
        if is_text and self.thoughts is not None:
            forms[self.thoughts[0]] = ""
        while True:
            place, form, held = self._find(forms)
            if form is None:
                sure = len(self._buffer) - (0 if self._is_over else held)
                emit(self._read(sure))
                if self._is_over:
                    return None
                yield
                continue
            emit(self._read(place))
            self._read(len(form))
            if is_text and self.thoughts is not None and form == self.thoughts[0]:
                yield from self._until_form(self.thoughts[1], self.reasoning)
                continue
            return forms[form]

    def _until_form(self, form: str, emit: Emit) -> Reading[bool]:
        while True:
            place, found, held = self._find({form: form})
            if found is not None:
                emit(self._read(place))
                self._read(len(form))
                return True
            emit(self._read(len(self._buffer) - (0 if self._is_over else held)))
            if self._is_over:
                return False
            yield

    def collect(self, *markers: str) -> Reading[tuple[str, str | None]]:
        """Return what comes before the first of `markers`, and which it was; None at the end, or when too much comes.

        What was collected is read, and so is the marker.
        """
        collected: list[str] = []
        found = None
        forms = {self.markers.form(one): one for one in markers}
        num_chars = 0
        while num_chars <= MAX_COLLECTED:
            place, form, held = self._find(forms)
            if form is not None:
                collected.append(self._read(place))
                self._read(len(form))
                found = forms[form]
                break
            collected.append(self._read(len(self._buffer) - (0 if self._is_over else held)))
            num_chars += len(collected[-1])
            if self._is_over:
                break
            yield
        return "".join(collected), found

    def skip(self, *markers: str) -> Reading[str | None]:
        """Read the longest of `markers` that stands here and return it; None, and nothing is read, if none does."""
        forms = sorted(((self.markers.form(one), one) for one in markers), key=lambda pair: -len(pair[0]))
        for form, marker in forms:
            while len(self._buffer) < len(form) and form.startswith(self._buffer) and not self._is_over:
                yield
            if self._buffer.startswith(form):
                self._read(len(form))
                return marker
        return None

    def leading(self, *markers: str) -> Reading[str | None]:
        """Read white space and the longest of `markers` behind it; where none stands nothing is read."""
        spaces: list[str] = []
        while True:
            rest = self._buffer.lstrip(SPACE)
            spaces.append(self._buffer[: len(self._buffer) - len(rest)])
            self._buffer = rest
            if rest or self._is_over:
                break
            yield
        marker = yield from self.skip(*markers)
        if marker is None:
            self._buffer = "".join([*spaces, self._buffer])
        return marker

    def space(self) -> Reading[str]:
        """Read the white space that stands here and return it."""
        spaces: list[str] = []
        while (yield from self.more()):
            spaces.append(self._read(len(self._buffer) - len(self._buffer.lstrip(SPACE))))
            if self._buffer:
                break
        return "".join(spaces)

    def json(self, emit: Emit) -> Reading[bool]:
        """Pass on the JSON value that stands here as it comes; return whether it is one, and whole.

        What is wrong begins at the first character that is not read.
        """
        value = JsonText()
        while True:
            num, is_well = value.take(self._buffer)
            emit(self._read(num))
            if not is_well or value.is_complete:
                return is_well
            if self._buffer:
                continue
            if self._is_over:
                return value.end()
            yield

    def json_arguments(self) -> Reading[bool]:
        """Pass on the JSON object that stands here as a call's arguments; return whether it is one, and whole.

        The call has begun. Where the model goes wrong the object is closed, so that the arguments are JSON all the
        same; where the answer was cut they stay cut.
        """
        if (yield from self.peek()) != "{":
            self.arguments("{}")
            return False
        value = JsonText()
        while True:
            num, is_well = value.take(self._buffer)
            self.arguments(self._read(num))
            if value.is_complete:
                return True
            if not is_well:
                break
            if self._is_over:
                if self.is_cut:
                    return False
                break
            yield
        self.arguments(value.closing)
        return False

    def collected_json(self) -> Reading[tuple[str, bool]]:
        """Return the JSON text that stands here, and whether it is one, and whole."""
        pieces: list[str] = []
        is_whole = yield from self.json(pieces.append)
        return "".join(pieces), is_whole

    def skip_cut(self, *markers: str) -> bool:
        """Read what is left of one of `markers` in which the answer was cut here; return whether it was.

        To be asked where `skip` found none of them.
        """
        if not self.is_cut or not any(self.markers.form(one).startswith(self._buffer) for one in markers):
            return False
        self._read(len(self._buffer))
        return True

    # --- what turns out to be no call ---------------------------------------------------------------------

    def remember(self, read: str = "") -> None:
        """Keep what is read from here on, and `read` which was read before, in case that it turns out to be text."""
        self._trail = [read]

    def forget(self) -> None:
        """It is no text."""
        self._trail = None

    def give_back(self) -> None:
        """What was read since `remember` is text; unless it is where the answer was cut: then it is half a call."""
        is_half = self._is_over and self.is_cut and not self._buffer
        if self._trail is not None and not is_half:
            self.text("".join(self._trail))
        self._trail = None

    # --- inside -------------------------------------------------------------------------------------------

    def _read(self, count: int) -> str:
        read, self._buffer = self._buffer[:count], self._buffer[count:]
        if self._trail is not None and read:
            self._trail.append(read)
        return read

    def _find(self, forms: dict[str, str]) -> tuple[int, str | None, int]:
        """Return where the first of `forms` stands and which; None where it is not sure yet.

        The third is how many characters at the end of the text may be the beginning of one.
        """
        buffer = self._buffer
        found = [(place, -len(form), form) for form in forms if (place := buffer.find(form)) >= 0]
        first = min(found) if found else None
        held = max((_overlap(buffer, form) for form in forms), default=0)
        if first is None:
            return len(buffer), None, held
        place, _, form = first
        if not self._is_over and held and len(buffer) - held <= place:
            return place, None, held  # a longer one may stand here, or one that began before
        return place, form, 0


def _overlap(text: str, form: str) -> int:
    """Return the length of the longest end of `text` that begins `form` and is shorter than it."""
    for length in range(min(len(text), len(form) - 1), 0, -1):
        if text.endswith(form[:length]):
            return length
    return 0


def _without_space(text: str) -> tuple[str, str]:
    """Return a piece as people read it without the white space at its end, and that."""
    text = unmarked(text)
    said = text.rstrip(SPACE)
    return said, text[len(said) :]


def json_object(text: str) -> dict[str, object] | None:
    """Return the object that `text` is the JSON of; None if it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
