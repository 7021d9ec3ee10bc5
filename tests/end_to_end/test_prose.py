"""The documents are easy to read: long sentences are few, and odd words are none."""

from __future__ import annotations

import pytest

from tests.end_to_end.documents import load

prose = load("prose")
FEW = 10


def test_long_sentences_are_few_and_odd_words_none() -> None:
    found = list(prose.hard(prose.documents()))
    odd = [str(place) for place in found if not place.reason.endswith(" words")]
    assert odd == []
    assert len(found) <= FEW, "\n".join(map(str, found))


@pytest.mark.slow
def test_docstrings_and_messages_have_neither_long_sentences_nor_odd_words() -> None:
    assert [str(place) for place in prose.hard(prose.modules())] == []


def test_a_docstring_that_is_hard_to_read_is_seen(tmp_path, monkeypatch) -> None:
    long = "word " * 46
    (tmp_path / "a.py").write_text(f'"""Fine."""\n\nX = 1\n"""{long}"""\nY = "anew"\n"""Anew."""\n')
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    found = [(place.line, place.reason) for place in prose.hard([tmp_path / "a.py"])]
    assert found == [(4, "46 words"), (6, "Anew")]


def test_a_message_that_is_hard_to_read_is_seen(tmp_path, monkeypatch) -> None:
    lines = (
        'raise ValueError(f"{x} was told twice")',
        'option(help="Cut it anew.")',
        'key = "told"',
    )
    (tmp_path / "a.py").write_text("\n".join(lines))
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    found = [(place.line, place.reason) for place in prose.hard([tmp_path / "a.py"])]
    assert found == [(1, "told"), (2, "anew")]


def test_sentences_are_told_apart() -> None:
    text = "# Head\n\nOne `x` here. Two\nmore words! And\n\n| a | b |\n|---|---|\n| Three. | 4 |\n"
    words = [sentence for _, sentence in prose.sentences(text)]
    assert words == ["Head", "One CODE here.", "Two more words!", "And", *"ab", "Three.", "4"]


def test_what_is_hard_to_read_is_seen(tmp_path, monkeypatch) -> None:
    (tmp_path / "a.md").write_text("Fine.\n\n" + "word " * 31 + "\n\nWhatever it is told.\n")
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    found = [(place.line, place.reason) for place in prose.hard([tmp_path / "a.md"])]
    assert found == [(3, "31 words"), (5, "Whatever it"), (5, "told")]
