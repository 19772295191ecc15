"""Grammars in llama.cpp's notation: what they take, and what is none."""

from __future__ import annotations

import pytest

from tests.fakes.engine import FakeVocabulary
from tests.support.held_answers import may_be
from worker.api.gbnf import NoGbnf, lark_of_gbnf
from worker.chat.marks import Markers
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.engine.grammar import Grammars

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( pair
    ("," ws pair)*
  )? "}" ws
pair   ::= string ":" ws value
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""
SUMS = 'root ::= (sum "=" term "\\n")+\nsum ::= term ([-+*/] term)*\nterm ::= [0-9]+ | "(" sum ")"'


def takes(grammar: str, text: str) -> bool:
    write = GrammarWriter(Markers())
    whole = write.grammar(write.rule(write.nested(lark_of_gbnf(grammar))))
    return may_be(Grammars(FakeVocabulary(), frozenset()).compile(whole).start, text)


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        (JSON, '{"a": [1, -2.5e3, true, {}], "é": "x\\u00e9\\n"}', '{"a": 01x}'),
        (JSON, "{}", "[]"),
        (SUMS, "1+(2*3)=7\n", "1+=2\n"),
        ('root ::= "a"{2,3} "b"{2} "c"{1,} "d"?', "aaabbcc", "abbc"),
        ('root ::= root "a" | "b"', "baa", "ab"),
        ('root ::= "a" ( | "b")', "a", "b"),
        ("root ::= [^a-z\\n]+ # all but these\n", "12", "ab"),
        ('root ::= [\\x41-\\x43\\n\\t\\]\\\\]+ "\\x41"', "B]\\\n\tA", "D"),
        ('root ::= "\\u00e9" "\\u0022" "\\u005c" "\\u000a" "\\U0001F600"', 'é"\\\n😀', "e"),
        ("root ::= [\\u3041-\\u3096]+", "ひらがな", "カ"),
        ('root ::= "日本" [ぁ-ん]', "日本あ", "日本"),
        ('root ::= "a" . "b"', "a\nb", "ab"),
        ('root ::= "." .* "!"', ". all\nof it!", "all!"),
        ('root ::= start start-0\nstart ::= "a"\nstart-0 ::= "b"', "ab", "aa"),
        ('root ::= TEXT r0 start\nTEXT ::= "a"\nr0 ::= "b"\nstart ::= "c"', "abc", "ab"),
        ('root ::= "# no comment" # "but this"\n', "# no comment", "but this"),
        ('root ::= a-b "/"\na-b ::= [/"]', '"/', "a/"),
    ],
)
def test_texts_are_taken_as_by_llama_cpp(grammar: str, right: str, wrong: str) -> None:
    assert takes(grammar, right)
    assert not takes(grammar, wrong)


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ("", "root"),
        ('main ::= "a"', "root"),
        ("root ::= nobody", "nobody"),
        ('root ::= "a', "line 1"),
        ("root := a", "root"),
        ('root ::= "a"\nb = "c"', "line 2"),
        ('root ::= "\\q"', "escape"),
        ('root ::= "\\xzz"', "escape|hex"),
        ('root ::= "a\\', "escape"),
        ("root ::= [a\\", "escape"),
        ("root ::= [a", "end of input"),
        ('root ::= "a" {2', "line 1"),
        ('root ::= "a"\nroot ::= "b"', "root"),
        ('root ::= "\\ud800"', "no character"),
        ('root ::= "\\UFFFFFFFF"', "no character"),
        ('root ::=\n  <[42]> "a"', "line 2 names a token"),
        ("root ::= !<think>", "line 1 names a token"),
        ("root ::= " + "(" * 5000, "nested too deeply"),
    ],
)
def test_what_is_no_grammar_is_told_why(grammar: str, words: str) -> None:
    with pytest.raises(NoGbnf, match=words):
        lark_of_gbnf(grammar)
