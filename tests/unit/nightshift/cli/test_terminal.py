"""The output of commands cannot act on the terminal, whatever is in it."""

import json
import unicodedata

import pytest

from nightshift.cli.terminal import print_json, print_table, printable

ACTS = [
    *("\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\r", "\n", "\x08"),
    *("\u202e", "\u2066", "\u200b", "\ufeff", "\u2028"),
]


@pytest.mark.parametrize("text", ACTS, ids=map(ascii, ACTS))
def test_what_acts_is_shown_as_a_sign(text):
    shown = printable(f"a{text}b")
    assert shown.startswith("a\ufffd")
    assert all(character == "\ufffd" or character.isprintable() for character in shown)


@pytest.mark.parametrize("text", ["plain", "Größe", "日本語", "हिन्दी", "עברית", "naïve e\u0301", "🚀", ""])
def test_text_of_any_language_stays(text):
    assert printable(text) == unicodedata.normalize("NFC", text)


def test_piles_of_accents_are_cut():
    assert len(printable("a" + "\u0316" * 1000)) == 3


def test_a_table_is_one_line_for_each_row(capsys):
    print_table(("NAME", "N"), [("evil\n\x1b[2Jname", 1), ("other", 2)])
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 3
    assert "\x1b" not in out


@pytest.mark.parametrize("text", [*ACTS, "日本語"], ids=ascii)
def test_json_means_the_same_and_acts_on_no_terminal(capsys, text):
    print_json({text: [text]})
    out = capsys.readouterr().out
    assert json.loads(out) == {text: [text]}
    assert all(character == "\n" or character.isprintable() for character in out)
