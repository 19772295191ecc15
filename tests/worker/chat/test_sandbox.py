"""A hostile template gets nowhere: not at Python, not at the machine's memory, not at its time."""

from __future__ import annotations

from typing import Any

import pytest

from worker.chat.client_text import Guard
from worker.chat.control_texts import ControlTexts
from worker.chat.errors import LimitExceeded, TemplateError
from worker.chat.limits import MAX_CHARS, Budget
from worker.chat.sandbox import MAX_SOURCE_CHARS, SandboxedTemplate

MESSAGES = [{"role": "user", "content": "hi"}]


def render(source: str, max_work: int = 2_000_000, **variables: Any) -> str:
    guard = Guard(ControlTexts([]), [])
    return SandboxedTemplate(source).render({"messages": guard.wrap(MESSAGES), **variables}, guard, Budget(max_work))


# --- what templates may use -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ {'b': 'ü<&', 'a': [1, none, true]} | tojson }}", '{"b": "ü<&", "a": [1, null, true]}'),
        ("{{ {'b': 1, 'a': 'ü'} | tojson(ensure_ascii=true, sort_keys=true) }}", '{"a": "\\u00fc", "b": 1}'),
        ("{{ [1, 2] | tojson(indent=2) }}", "[\n  1,\n  2\n]"),
        ("{{ {'a': 1, 'b': 2} | tojson(separators=(',', ':')) }}", '{"a":1,"b":2}'),
        ("{{ 'a' ~ 1 ~ none ~ [1, 'x'] ~ {'k': 2.5} }}", "a1None[1, 'x']{'k': 2.5}"),
        ("{{ '{:>4}|{:05.1f}|{a}'.format('x', 2.25, a=1) }}", "   x|002.2|1"),
        ("{{ '%s-%03d' % ('x', 7) }}{{ '%(a)s' % {'a': 1} }}{{ '%s!' | format('y') }}", "x-0071y!"),
        ("{{ 'a,b'.split(',') | join('+') }}{{ '-'.join(['a', 'b']) }}", "a+ba-b"),
        (
            "{{ 'banana' | replace('a', 'o', 2) }}{{ 'banana'.replace('a', 'o') }}{{ 'ab'.replace('', '-') }}",
            "bononabonono-a-b-",
        ),
        (
            "{{ ' x ' | trim }}{{ 'xyx'.strip('x') }}{{ 'ab' | reverse }}{{ 'abc'[::-1] }}{{ 'abc'[1:] }}",
            "xybacbabc",
        ),
        ("{{ 'aB' | upper }}{{ 'aB' | lower }}{{ 'ab cd' | title }}{{ 'ab' | capitalize }}", "ABabAb CdAb"),
        ("{{ 'a\nb\n\nc' | indent(2) }}|{{ 'a' | indent('> ', first=true) }}", "a\n  b\n\n  c|> a"),
        ("{{ '<a>' | e }}{{ '<a>' | safe }}{{ '<' | safe + '<' }}", "&lt;a&gt;<a><<"),
        (
            "{{ [3, 1, 2] | sort | join }}{{ [3, 1] | max }}{{ [3, 1] | min }}{{ [1, 2] | sum }}",
            "123313",
        ),
        ("{{ [1, 1, 2] | unique | list }}", "[1, 2]"),
        ("{{ {'b': 1, 'a': 2} | dictsort }}{{ {'a': 1} | items | list }}", "[('a', 2), ('b', 1)][('a', 1)]"),
        ("{{ [{'a': 1}, {'a': 2}] | selectattr('a', 'equalto', 2) | map(attribute='a') | list }}", "[2]"),
        (
            "{{ none | selectattr('a') | list }}{{ [0, 1] | select | first }}{{ [1, 2] | reject('odd') | list }}",
            "[]1[2]",
        ),
        ("{{ '3' | int + 1 }}{{ '1.5' | float }}{{ 2.567 | round(1) }}{{ -3 | abs }}{{ 'x' | int(7) }}", "41.52.637"),
        ("{{ 2 ** 10 }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 7 / 2 }}{{ 'ab' * 2 }}{{ [1] + [2] * 2 }}", "1024333.5abab[1, 2, 2]"),
        ("{{ nothing }}{{ nothing | default('d') }}{{ '' | default('e', true) }}{{ 'abc' | length }}", "de3"),
        (
            "{% for i in range(5) if i is odd %}{{ loop.index }}/{{ loop.length }}{{ '.' if loop.last }}{% endfor %}",
            "1/22/2.",
        ),
        ("{% for i in [[1, [2]], 3] recursive %}{{ loop(i) if i is iterable else i }}{% endfor %}", "123"),
        (
            "{% for i in 'ab' %}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.changed(i) }}{% else %}no{% endfor %}",
            "bTrueaTrue",
        ),
        (
            "{% for i in [] %}x{% else %}none{% endfor %}{{ 'b' in 'abc' }}{{ 1 in [2] }}{{ 1 < 2 < 3 }}",
            "noneTrueFalseTrue",
        ),
        ("{% set ns = namespace(n=1) %}{% for i in range(3) %}{% set ns.n = ns.n * 2 %}{% endfor %}{{ ns.n }}", "8"),
        (
            "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ caller() if caller }}{% endmacro %}"
            "{{ m(1) }}{% call m(3) %}c{% endcall %}",
            "1232c",
        ),
        (
            "{% set x %}a{{ 1 }}{% endset %}{{ x }}{% filter upper %}q{% endfilter %}"
            "{% with y = 2 %}{{ y }}{% endwith %}",
            "a1Q2",
        ),
        (
            "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{% set j = joiner(';') %}{{ j() }}{{ j() }}",
            "ab;",
        ),
        (
            "{{ dict(a=1).get('a') }}{{ {'a': 1}.items() | list }}{{ [1, 2].index(2) }}{{ messages[0].content }}",
            "1[('a', 1)]1hi",
        ),
        (
            "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% elif i == 3 %}{% break %}{% endif %}"
            "{{ i }}{% endfor %}",
            "02",
        ),
        (
            "{{ messages is sequence }}{{ 'x' is string }}{{ {} is mapping }}{{ 'a' is in 'ab' }}{{ 1 is eq 1 }}",
            "TrueTrueTrueTrueTrue",
        ),
        ("{% set a = [1] %}{% set _ = a.append('b') %}{{ a }}{{ a.pop(0) }}{{ a | length }}", "[1, 'b']11"),
        ("{{ [{'b': 1}, {'b': 2}] | map(attribute='b') | tojson }}", "[1, 2]"),
        ("a\n    {% if true %}\n  b\n    {% endif %}\n{#- c #}\nd\n", "a\n  b\nd"),
    ],
)
def test_templates_can_use(source: str, expected: str) -> None:
    assert render(source) == expected


# --- Python is out of reach -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "{{ cycler.__init__.__globals__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__ }}",
        "{{ (messages | attr('__class__')).__name__ }}",
        "{{ '{0.__class__.__name__}'.format(messages) }}",
        "{{ '{a.__class__.__name__}'.format_map({'a': 1}) }}",
        "{{ (messages | map(attribute='__class__') | first).__name__ }}",
        "{{ (messages | map('upper')).gi_frame.f_globals }}",
        "{{ raise_exception.__globals__.x }}",
        "{{ range.__self__.x }}",
        "{{ namespace.__init__.x }}",
        "{{ self.__init__.x }}",
        "{{ self._TemplateReference__context.x }}",
        "{{ loop.__class__.x }}{% for i in [1] %}{{ loop._iterator.x }}{% endfor %}",
        "{% macro m() %}{% endmacro %}{{ m._func.x }}",
        "{{ dict.fromkeys([1]) }}",
        "{{ messages.clear() }}",
        "{% set a = [] %}{{ a.append(a) }}",
        "{{ messages[0].update({}) }}",
        "{{ messages[0].pop('role') }}",
        "{{ 'x'.encode() }}",
        "{{ 'x'.translate({120: 'y'}) }}",
        "{{ 'x'.maketrans({}) }}",
        "{{ 'x'.expandtabs(9) }}",
        "{{ range(3).count(1) }}",
        "{{ {}.keys().isdisjoint([]) }}",
        "{{ namespace(a=1) }}",
        "{{ range }}",
        "{% macro m() %}{% endmacro %}{{ m }}",
        "{{ messages | map('upper') }}",
        "{{ '%s' % namespace() }}",
        "{{ '{}'.format(range) }}",
    ],
)
def test_private_and_changing_attributes_are_refused(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source)
    assert MESSAGES == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "source",
    [
        "{% include 'x' %}",
        "{% import 'x' as x %}",
        "{% from 'x' import y %}",
        "{% extends 'x' %}",
        "{% autoescape true %}{% endautoescape %}",
        "{{ 'x' | wordwrap }}",
        "{{ [1] | random }}",
        "{{ lipsum() }}",
        "{{ '' | concat }}",
    ],
)
def test_what_chat_templates_do_not_need_is_absent(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source)


# --- limits hold ----------------------------------------------------------------------------------------


def growing(step: str) -> str:
    """Return a template that does `step` sixty times with `ns.s`, a text."""
    return "{% set ns = namespace(s='x') %}{% for i in range(60) %}" + step + "{% endfor %}"


DOUBLING = (
    "{% set ns = namespace(a=['x'], b=['x']) %}"
    "{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}"
)
DOUBLING_TUPLES = "{% set ns = namespace(a='x') %}{% for i in range(60) %}{% set ns.a = (ns.a, ns.a) %}{% endfor %}"
LONG = "{% set s = 'a' * 100000 %}"

BOMBS = {
    "nested loops": "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "filtered loops": "{% for i in range(100000) %}{% for j in range(100000) if false %}{% endfor %}{% endfor %}",
    "recursive loops": "{% for i in range(9999) recursive %}{{ loop(range(9999)) if loop.depth < 4 }}{% endfor %}",
    "recursive macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "lazy filters": "{% for i in range(9999) %}{% set x = range(99999) | select('none') | first %}{% endfor %}",
    "multiplied text": "{{ 'x' * 10 ** 9 }}",
    "multiplied text, other side": "{{ 10 ** 9 * 'x' }}",
    "multiplied list": "{{ [1] * 10 ** 9 }}",
    "multiplied list, other side": "{{ 10 ** 9 * [1] }}",
    "doubled by ~": growing("{% set ns.s = ns.s ~ ns.s %}"),
    "doubled by +": growing("{% set ns.s = ns.s + ns.s %}"),
    "doubled lists": "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "doubled by set blocks": growing("{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}"),
    "doubled by macros": "{% macro d(s) %}{{ s }}{{ s }}{% endmacro %}" + growing("{% set ns.s = d(ns.s) %}"),
    "doubled by join": growing("{% set ns.s = [ns.s, ns.s] | join %}"),
    "doubled by format": growing("{% set ns.s = '{0}{0}'.format(ns.s) %}"),
    "doubled by percent": growing("{% set ns.s = '%(a)s%(a)s' % {'a': ns.s} %}"),
    "printed literal": "{% for i in range(9999) %}" + "y" * 50_000 + "{% endfor %}",
    "captured literal": "{% set x %}{% for i in range(9999) %}" + "y" * 50_000 + "{% endfor %}{% endset %}",
    "replaced": LONG + "{{ s.replace('a', s) }}",
    "replaced by filter": LONG + "{{ s | replace('a', s) }}",
    "replaced nothing": LONG + "{{ s.replace('', s) }}",
    "joined letters": LONG + "{{ s.join(s) }}",
    "joined letters by filter": LONG + "{{ s | list | join(s) }}",
    "centred": "{{ 'a' | center(10 ** 9) }}",
    "centred by method": "{{ 'a'.center(10 ** 9) }}",
    "padded left": "{{ 'a'.ljust(10 ** 9) }}",
    "padded with zeros": "{{ 'a'.zfill(10 ** 9) }}",
    "format width": "{{ '{:>999999999}'.format('a') }}",
    "format width as value": "{{ '{:>{}}'.format('a', 999999999) }}",
    "percent width": "{{ '%999999999s' % 'a' }}",
    "percent width as value": "{{ '%*d' % (999999999, 1) }}",
    "percent precision": "{{ '%.999999999f' % 1.0 }}",
    "format filter width": "{{ '%999999999s' | format('a') }}",
    "indented": "{{ 'a\nb' | indent(10 ** 9) }}",
    "indented many lines": "{{ ('\n' * 10000) | indent('x' * 9999, true, true) }}",
    "json separators": LONG + "{{ (range(10000) | list) | tojson(separators=(s, s)) }}",
    "power": "{% set n = 10 ** 9 %}{{ n ** n }}",
    "power tower": "{{ 7 ** 7 ** 7 ** 7 ** 7 }}",
    "squared numbers": "{% set ns = namespace(n=3) %}{% for i in [1] * 64 %}{% set ns.n = ns.n ** 2 %}{% endfor %}",
    "multiplied numbers": "{% set n = 10 ** 1000 %}{{ n * n }}",
    "parsed number": "{{ ('f' * 10000) | int(0, 16) }}",
    "printed doubling": DOUBLING + "{{ ns.a }}",
    "compared doubling": DOUBLING + "{{ ns.a == ns.b }}",
    "searched doubling": DOUBLING + "{{ ns.a in [ns.b] }}",
    "tested doubling": DOUBLING + "{{ ns.a is eq ns.b }}",
    "selected doubling": DOUBLING + "{{ [ns.a] | select('equalto', ns.b) | list }}",
    "dumped doubling": DOUBLING + "{{ ns.a | tojson }}",
    "formatted doubling": DOUBLING + "{{ '{}'.format(ns.a) }}",
    "percent doubling": DOUBLING + "{{ '%s' % [ns.a] }}",
    "mapped doubling": DOUBLING + "{{ [ns.a] | map('string') | list | length }}",
    "joined doubling": DOUBLING + "{{ [ns.a] | join }}",
    "sorted doubling": DOUBLING + "{{ [ns.a, ns.b] | sort | length }}",
    "changed doubling": DOUBLING + "{% for i in [ns.a, ns.b] %}{{ loop.changed(i) }}{% endfor %}",
    "counted doubling": DOUBLING + "{{ [ns.a].count(ns.b) }}",
    "filter block doubling": DOUBLING + "{% filter default(ns.a, true) %}{% endfilter %}",
    "key doubling": DOUBLING_TUPLES + "{{ {ns.a: 1} | length }}",
    "subscript doubling": DOUBLING_TUPLES + "{{ {}[ns.a] }}",
    "get doubling": DOUBLING_TUPLES + "{{ {}.get(ns.a) }}",
    "dict doubling": DOUBLING_TUPLES + "{{ dict([(ns.a, 1)]) | length }}",
    "unique doubling": DOUBLING_TUPLES + "{{ [ns.a] | unique | list | length }}",
    "slices": LONG + "{% for i in range(9999) %}{% set x = s[1:] %}{% endfor %}",
    "searches": LONG + "{% for i in range(9999) %}{% set x = 'ab' in s %}{% endfor %}",
    "searches by method": LONG + "{% for i in range(9999) %}{% set x = s.find('ab') %}{% endfor %}",
    "searches in ranges": "{% for i in range(9999) %}{% set x = 'a' in range(99999) %}{% endfor %}",
    "splits": LONG + "{% for i in range(9999) %}{% set x = s.split('a') %}{% endfor %}",
    "titles": LONG + "{% for i in range(9999) %}{% set x = s | title %}{% endfor %}",
    "a list that grows while it is walked": "{% set a = [1] %}{% for x in a %}{% set _ = a.append(x) %}{% endfor %}",
    "deep value": growing("{% set ns.s = [[[ns.s]]] %}") + "{{ ns.s }}",
}


@pytest.mark.parametrize("source", BOMBS.values(), ids=BOMBS.keys())
def test_bomb_is_stopped(source: str) -> None:
    with pytest.raises(LimitExceeded) as caught:
        render(source)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% block a %}{{ self.a() }}{% endblock %}",
        "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{{ 1 / 0 }}",
        "{{ 'x' + 1 }}",
        "{{ [1][0](2) }}",
        "{{ {[]: 1} }}",
        "{{ 1.5 | round(10 ** 9, 'ceil') }}",
        "{{ [] | tojson(indent=10 ** 9) }}",
        "{{ {'a': range} | tojson }}",
        "{{ nothing.x }}",
        "{{ 'a'.join([1]) }}",
        "{{ ['a'] | sum }}",
    ],
)
def test_failing_template_is_a_template_error_that_names_the_line(source: str) -> None:
    with pytest.raises(TemplateError, match="line 1: "):
        render(source)


def test_printing_what_is_no_text_is_a_template_error() -> None:
    with pytest.raises(TemplateError, match="failed on these messages: "):
        render("{% call dict() %}{% endcall %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 100_000 + ")" * 100_000 + " }}",
        "{{ " + "1+" * 20_000 + "1 }}",
        "{{ " + "not " * 20_000 + "1 }}",
        "{{ " + "[" * 20_000 + "]" * 20_000 + " }}",
        "{% for i in [] %}" * 30 + "{% endfor %}" * 30,
        "{% if 1 %}" * 200 + "{% endif %}" * 200,
        "x" * (MAX_SOURCE_CHARS + 1),
    ],
)
def test_source_that_breaks_compilers_is_a_template_error(source: str) -> None:
    with pytest.raises(TemplateError, match="chat template"):
        SandboxedTemplate(source)


def test_constants_are_not_computed_while_compiling() -> None:
    SandboxedTemplate(
        "{{ 'x' * 10 ** 9 }}{{ 'x' | center(10 ** 9) }}{{ 'x' ~ 'y' * 10 ** 9 }}{% if 9 ** 9 ** 9 %}{% endif %}"
    )


def test_prompt_of_many_characters_is_rendered_and_one_beyond_the_limit_is_not() -> None:
    guard = Guard(ControlTexts([]), [])
    template = SandboxedTemplate("{% for m in messages %}{{ m }}{% endfor %}")
    half = guard.own("x" * (MAX_CHARS // 2))
    assert len(template.render({"messages": [half, half]}, guard)) == MAX_CHARS
    with pytest.raises(LimitExceeded):
        template.render({"messages": [half] * 5}, guard)


def test_thousand_turns_are_far_from_the_limits() -> None:
    source = (
        "{% set ns = namespace(last=0) %}{% for m in messages[::-1] %}"
        "{% if m.role == 'user' %}{% set ns.last = loop.index %}{% endif %}{% endfor %}"
        "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ m.content | trim }}"
        "{% if '</think>' in m.content %}{{ m.content.split('</think>')[-1] }}{% endif %}{% endfor %}"
    )
    guard = Guard(ControlTexts([]), [])
    messages = guard.wrap([{"role": "user", "content": "word " * 400}] * 1000)
    assert len(SandboxedTemplate(source).render({"messages": messages}, guard, Budget(60_000_000))) > 1_900_000


def test_a_list_may_be_put_together_of_thousands_of_entries() -> None:
    source = "{% set a = [] %}{% for i in range(20000) %}{% set _ = a.append(i) %}{% endfor %}{{ a | length }}"
    assert render(source, 60_000_000) == "20000"


def test_rendering_leaves_no_state_behind() -> None:
    guard = Guard(ControlTexts([]), [])
    template = SandboxedTemplate(
        "{% set ns = namespace(n=0) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ x | default('') }}"
    )
    assert template.render({"x": "a"}, guard) == "1a"
    assert template.render({}, guard) == "1"
