"""The documents are easy to read, and names and docstrings keep to the vocabulary."""

from __future__ import annotations

import pytest

from tests.end_to_end.documents import load

prose = load("prose")
MAX_LONG = 10


def test_long_sentences_are_few_and_odd_words_none() -> None:
    places = list(prose.hard(prose.documents()))
    odd = [str(place) for place in places if not place.reason.endswith(" words")]
    assert odd == []
    assert len(places) <= MAX_LONG, "\n".join(map(str, places))


@pytest.mark.slow
def test_docstrings_and_messages_have_neither_long_sentences_nor_odd_words() -> None:
    assert [str(place) for place in prose.hard(prose.modules())] == []


def test_a_docstring_that_is_hard_to_read_is_seen(tmp_path, monkeypatch) -> None:
    long = "word " * 46
    (tmp_path / "a.py").write_text(f'"""Fine."""\n\nX = 1\n"""{long}"""\nY = "anew"\n"""Anew."""\n')
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    places = [(place.line, place.reason) for place in prose.hard([tmp_path / "a.py"])]
    assert places == [(4, "46 words"), (6, "Anew")]


def test_a_message_that_is_hard_to_read_is_seen(tmp_path, monkeypatch) -> None:
    lines = (
        'raise ValueError(f"{x} was told twice")',
        'option(help="Cut it anew.")',
        'key = "told"',
    )
    (tmp_path / "a.py").write_text("\n".join(lines))
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    places = [(place.line, place.reason) for place in prose.hard([tmp_path / "a.py"])]
    assert places == [(1, "told"), (2, "anew")]


def test_sentences_are_told_apart() -> None:
    text = "# Head\n\nOne `x` here. Two\nmore words! And\n\n| a | b |\n|---|---|\n| Three. | 4 |\n"
    sentences = [sentence for _, sentence in prose.sentences(text)]
    assert sentences == ["Head", "One CODE here.", "Two more words!", "And", *"ab", "Three.", "4"]


def test_what_is_hard_to_read_is_seen(tmp_path, monkeypatch) -> None:
    (tmp_path / "a.md").write_text("Fine.\n\n" + "word " * 31 + "\n\nWhatever it is told.\n")
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    places = [(place.line, place.reason) for place in prose.hard([tmp_path / "a.md"])]
    assert places == [(3, "31 words"), (5, "Whatever it"), (5, "told")]


def test_names_and_docstrings_keep_to_the_vocabulary() -> None:
    assert [str(place) for place in prose.vocabulary(prose.files(prose.CHECKED))] == []


NAMES = """
from hypothesis import given
from ppopt import words as made

class Found:
    least: int

    def __eq__(self, other, again=()):
        return self.least == other.least

    def compare(self, other, *, one_stage):
        self._moved = [given for given, (*others, one_left) in other]

async def layer_words(MOST):
    def test_words_of_one_word(): ...
    match MOST:
        case [held, *kept] as told:
            pass
"""


def test_names_that_do_not_say_what_a_value_is_are_seen(tmp_path) -> None:
    (tmp_path / "a.py").write_text(NAMES)
    assert sorted(prose.names(tmp_path / "a.py")) == [
        (3, "made"),
        (5, "Found"),
        (6, "least"),
        (8, "again"),
        (11, "other"),
        (12, "_moved"),
        (12, "given"),
        (12, "others"),
        (14, "MOST"),
        (14, "layer_words"),
        (17, "held"),
        (17, "kept"),
        (17, "told"),
    ]


def test_house_terms_of_documents_and_docstrings_are_seen(tmp_path, monkeypatch) -> None:
    (tmp_path / "a.py").write_text('"""W gives back what is owed."""\nX = "beside"\n')
    (tmp_path / "a.md").write_text("Fine.\n\nA hand strategy\nbeside `mine`.\n")
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    places = list(prose.vocabulary([tmp_path / "a.py", tmp_path / "a.md"]))
    assert [(place.line, place.reason) for place in places] == [
        (1, "gives back"),
        (1, "owed"),
        (3, "hand strategy"),
        (3, "beside"),
    ]
