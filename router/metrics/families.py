"""Families of metrics and their samples: counters, gauges and histograms that are cheap to feed and to show.

Owns how samples become bytes in the three forms of the page. A block, the samples of one set of labels, is written once
for each change: of a thousand models that were ever used most have not been since the last scrape, and a page of 20 MB
must not hold up the event loop. Must not know which families there are, or any clock.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import orjson


class Kind(StrEnum):
    """What the numbers of a family are, in OpenMetrics' words."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


class Exemplar(NamedTuple):
    """One of the observations behind a number."""

    request_id: str
    value: float
    at_s: float
    """Since the Unix epoch."""


class Sample(NamedTuple):
    """One line of the page."""

    name: str
    labels: Mapping[str, str]
    value: float
    exemplar: Exemplar | None = None


class Block(ABC):
    """The samples of one family with the same labels."""

    __slots__ = ("_json", "_openmetrics", "_text", "labels", "name")

    def __init__(self, name: str, labels: Mapping[str, str]) -> None:
        self.name = name
        """Of the family."""
        self.labels = labels
        self._text: bytes | None = None
        self._openmetrics: bytes | None = None
        self._json: bytes | None = None

    @abstractmethod
    def samples(self) -> Iterator[Sample]:
        """Yield all of them, in the order of the page."""

    def changed(self) -> None:
        """Numbers have changed: what was written of them is no longer true."""
        self._text = self._openmetrics = self._json = None

    @property
    def text(self) -> bytes:
        """The lines in Prometheus' text format."""
        if self._text is None:
            self._text = "".join(
                f"{name}{_labels(labels)} {_number(value)}\n" for name, labels, value, _ in self.samples()
            ).encode()
        return self._text

    @property
    def openmetrics(self) -> bytes:
        """The same lines with exemplars."""
        if self._openmetrics is None:
            found = list(self.samples())
            if all(sample.exemplar is None for sample in found):
                self._openmetrics = self.text
            else:
                self._openmetrics = "".join(
                    f"{name}{_labels(labels)} {_number(value)}{_exemplar(exemplar)}\n"
                    for name, labels, value, exemplar in found
                ).encode()
        return self._openmetrics

    @property
    def json(self) -> bytes:
        """Objects with commas between them."""
        if self._json is None:
            objects = [{"name": name, "labels": labels, "value": value} for name, labels, value, _ in self.samples()]
            self._json = orjson.dumps(objects)[1:-1]
        return self._json


class Number(Block):
    """A counter, a gauge or an info: one sample, whose name may have a suffix."""

    __slots__ = ("suffix", "value")

    def __init__(self, name: str, labels: Mapping[str, str], value: float = 0.0, suffix: str = "") -> None:
        super().__init__(name, labels)
        self.value = value
        self.suffix = suffix

    def samples(self) -> Iterator[Sample]:
        yield Sample(self.name + self.suffix, self.labels, self.value)

    def add(self, amount: float = 1.0) -> None:
        """It is so much more."""
        self.set(self.value + amount)

    def set(self, value: float) -> None:
        """It is `value`."""
        if value != self.value:
            self.value = value
            self.changed()


class Buckets(Block):
    """A histogram. `counts` has one more entry than `bounds`, for what exceeds them all."""

    __slots__ = ("_exemplars", "bounds", "counts", "total")

    def __init__(
        self,
        name: str,
        labels: Mapping[str, str],
        bounds: tuple[float, ...],
        counts: Iterable[int] = (),
        total: float = 0.0,
    ) -> None:
        super().__init__(name, labels)
        self.bounds = bounds
        self.counts = list(counts) or [0] * (len(bounds) + 1)
        self.total = total
        self._exemplars: dict[int, Exemplar] = {}

    def samples(self) -> Iterator[Sample]:
        running = 0
        for index, count in enumerate(self.counts):
            running += count
            bound = repr(float(self.bounds[index])) if index < len(self.bounds) else "+Inf"
            labels = {**self.labels, "le": bound}
            yield Sample(f"{self.name}_bucket", labels, running, self._exemplars.get(index))
        yield Sample(f"{self.name}_count", self.labels, running)
        yield Sample(f"{self.name}_sum", self.labels, self.total)

    def observe(self, value: float, exemplar: Exemplar | None = None) -> None:
        """Count `value`; the last exemplar of each bucket is shown."""
        index = bisect_left(self.bounds, value)
        self.counts[index] += 1
        self.total += value
        if exemplar is not None:
            self._exemplars[index] = exemplar
        self.changed()


@dataclass(frozen=True, slots=True)
class Family:
    """All that is shown under one name. `name` is OpenMetrics', which leaves out `_total` and `_info`."""

    name: str
    kind: Kind
    help: str
    blocks: Iterable[Block]

    @property
    def text_name(self) -> str:
        """Its name in the text format and in JSON."""
        suffix = {Kind.COUNTER: "_total", Kind.INFO: "_info"}.get(self.kind, "")
        return self.name + suffix

    @property
    def text_type(self) -> str:
        """Its type there."""
        return Kind.GAUGE.value if self.kind is Kind.INFO else self.kind.value


class Counters:
    """A family of counters that grow by what happens; a set of labels is there from its first use."""

    def __init__(self, name: str, help_: str, *label_names: str) -> None:
        self._name, self._help, self._label_names = name, help_, label_names
        self._blocks: dict[tuple[str, ...], Number] = {}

    def of(self, *values: str) -> Number:
        """Return the counter with these label values."""
        block = self._blocks.get(values)
        if block is None:
            labels = dict(zip(self._label_names, values, strict=True))
            block = self._blocks[values] = Number(self._name, labels, suffix="_total")
        return block

    def has(self, *values: str) -> bool:
        """Return whether there is a counter with these label values."""
        return values in self._blocks

    @property
    def family(self) -> Family:
        """As it stands now."""
        return Family(self._name, Kind.COUNTER, self._help, self._blocks.values())


class Histograms:
    """A family of histograms that grow by what happens."""

    def __init__(self, name: str, help_: str, bounds: tuple[float, ...], *label_names: str) -> None:
        self._name, self._help, self._label_names, self._bounds = name, help_, label_names, bounds
        self._blocks: dict[tuple[str, ...], Buckets] = {}

    def of(self, *values: str) -> Buckets:
        """Return the histogram with these label values."""
        block = self._blocks.get(values)
        if block is None:
            labels = dict(zip(self._label_names, values, strict=True))
            block = self._blocks[values] = Buckets(self._name, labels, self._bounds)
        return block

    @property
    def family(self) -> Family:
        """As it stands now."""
        return Family(self._name, Kind.HISTOGRAM, self._help, self._blocks.values())


def gauge(name: str, help_: str, *blocks: Number) -> Family:
    """Return a family of gauges."""
    return Family(name, Kind.GAUGE, help_, blocks)


def gauge_of(name: str, help_: str, value: float | None) -> Family:
    """Return a gauge without labels; None = there is no sample."""
    return gauge(name, help_, *([] if value is None else [Number(name, {}, value)]))


def counter_of(name: str, help_: str, value: float) -> Family:
    """Return a counter without labels."""
    return Family(name, Kind.COUNTER, help_, [Number(name, {}, value, "_total")])


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join([f'{name}="{_escaped(value)}"' for name, value in labels.items()]) + "}" if labels else ""


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value


def _exemplar(shown: Exemplar | None) -> str:
    if shown is None:
        return ""
    return f' # {{request_id="{_escaped(shown.request_id)}"}} {_number(shown.value)} {shown.at_s:.3f}'


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
