"""Grammars in llama.cpp's notation: what they take, and what is none."""

from __future__ import annotations

from time import process_time

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
        ('root ::= a-b a_b A-B\na-b ::= "x"\na_b ::= "y"\nA-B ::= "z"', "xyz", "xxz"),
        ('root ::= 1a\n1a ::= "x"', "x", "1a"),
        ('root ::= ("a" | "b"){2} [0-9]{2,} [x-]', "ab123-", "a12-"),
        ('root ::= "a" |\n  "b"\n\n', "b", "c"),
        ('root ::= [^]{2} "\x7f"', "a\n\x7f", "a\x7fb"),
    ],
)
def test_texts_are_taken_as_by_llama_cpp(grammar: str, right: str, wrong: str) -> None:
    assert takes(grammar, right)
    assert not takes(grammar, wrong)


@pytest.mark.parametrize(
    ("grammar", "texts"),
    [
        ('root ::= "ab" "c" | "a" "bd"', ["abc", "abd"]),
        ('root ::= ws " x"\nws ::= [ ]*', [" x", "   x"]),
        ('root ::= "if" " " | [a-z]+ " "', ["if ", "ifs ", "i "]),
        ('root ::= "ab" root | "abc" | "a" "d"', ["ababc", "abad", "ad"]),
    ],
)
def test_a_longer_text_does_not_hide_a_shorter_one(grammar: str, texts: list[str]) -> None:
    assert [takes(grammar, text) for text in texts] == [True] * len(texts)


@pytest.mark.parametrize(
    "grammar",
    [
        "root ::= r0\n" + "\n".join(f'r{at} ::= r{at + 1} | "x"' for at in range(9_000)) + '\nr9000 ::= "y"',
        "root ::= " + " | ".join(f'"w{at}"' for at in range(20_000)),
        "root ::= [" + "a" * 200_000 + "]",
        'root ::= "' + "a" * 200_000 + '"',
    ],
)
def test_a_grammar_that_is_too_large_is_told_so_at_once(grammar: str) -> None:
    begun_s = process_time()
    with pytest.raises(NoGbnf, match="it has more than"):
        lark_of_gbnf(grammar)
    assert process_time() - begun_s < 3.0


def test_a_rule_without_recursion_is_a_terminal_and_others_are_none() -> None:
    lark = lark_of_gbnf('root ::= "[" item* "]"\nitem ::= word | root\nword ::= letter+\nletter ::= [a-z]')
    assert [line.split(":")[0] for line in lark.splitlines()[2:]] == ["r0", "r1", "T2", "T3"]


def test_a_grammar_of_thousands_of_texts_is_taken() -> None:
    grammar = "root ::= " + " | ".join(f'"w{at}"' for at in range(1_500))
    assert takes(grammar, "w1499")
    assert not takes(grammar, "w1500")


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ("", "root"),
        ('main ::= "a"', "root"),
        ("root ::= nobody", "nobody"),
        ('root ::= "a', "line 1"),
        ("root := a", "line 1 has ':= a'"),
        ("root a", "line 1 is no rule"),
        ('root ::= "a" ::= b', "'::=' where it cannot stand"),
        ('root ::= "a"\nb = "c"', "line 2"),
        ('root ::= "\\q"', "escape"),
        ('root ::= "\\xzz"', "escape|hex"),
        ('root ::= "a\\', "a text that does not end"),
        ("root ::= [a\\", "does not end"),
        ("root ::= [a", "a class of characters that does not end"),
        ("root ::= []", "a class without characters"),
        ("root ::= [z-a]", "'z' to 'a'"),
        ("root ::= [\\-]", "escape"),
        ('root ::= "a" {2', "line 1"),
        ('root ::= "a"{3,2}', "a count that ends before it begins"),
        ('root ::= "a"{12345678}', "a count that is too large"),
        ('root ::= ("a"{20}){20}', "repetitions inside repetitions"),
        ('root ::= ("a"', "a bracket that is not closed"),
        ('root ::= "a")', "a bracket that is not open"),
        ("root ::= | *", "nothing stands before it"),
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
