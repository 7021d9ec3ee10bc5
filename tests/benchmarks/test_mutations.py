"""The script of the mutation check: what it draws, puts into a checkout and reports."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import mutations
from benchmarks.mutations import KINDS, PACKAGES, ROOT, Mutation

pytestmark = pytest.mark.slow

CODE = """def later(start: int, by: int) -> int:
    \"\"\"0 is not drawn here.\"\"\"
    if by < 0:
        log(by)
    return max(start + by, 0)
"""
CHANGED = {
    "off by one": ["if by < 1:", "return max(start + by, 1)"],
    "boundary": ["if by <= 0:"],
    "negated": ["if not (by < 0):"],
    "sign": ["return max((start - by), 0)"],
    "extreme": ["return min(start + by, 0)"],
    "dropped condition": ["if False:"],
    "dropped statement": ["pass"],
    "one tick more": ["return (max(start + by, 0)) + 1"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_mutation_changes_one_line(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutations, "ROOT", tmp_path)
    file = tmp_path / "later.py"
    file.write_text(CODE)
    changed = []
    for mutation in mutations.places(file, KINDS[kind]):
        mutation.apply(tmp_path)
        lines = zip(CODE.splitlines(), file.read_text().splitlines(), strict=True)
        (line,) = [new.strip() for old, new in lines if old != new]
        changed.append(line)
        with pytest.raises(ValueError, match="not there any more"):
            mutation.apply(tmp_path)
        file.write_text(CODE)
    assert changed == CHANGED[kind]


def test_the_draw_repeats_and_has_every_package_and_kind() -> None:
    drawn = mutations.draw(34)
    assert drawn == mutations.draw(34)
    assert drawn != mutations.draw(35)
    first = {mutation.number: mutation for mutation in reversed(drawn)}
    assert sorted(first) == list(range(1, 41))
    assert set(Counter(one.kind for one in first.values()).values()) == {5}
    assert {kind for kind, _ in Counter(one.kind for one in drawn).items()} == set(KINDS)
    folders = Counter(Path(one.file).parent.as_posix() for one in first.values())
    assert folders == {f"ppopt/{package}": count for package, count in PACKAGES.items()}
    for mutation in drawn:
        text = (ROOT / mutation.file).read_text(encoding="utf-8")
        assert text.count(mutation.before) > mutation.nth
        ast.parse(text)


def test_an_equivalent_mutation_or_one_of_lines_that_are_gone_gives_way_to_its_spare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutations, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text("b + c\nd + e\n")
    texts = ("a + b\n", "b + c\n", "d + e\n")
    drawn = [Mutation(1, "sign", "a.py", "f", 1, text, "pass\n", 0) for text in texts]
    assert list(mutations.chosen(drawn)) == [(1, drawn[1])]
    drawn[1] = drawn[1]._replace(equivalent="c is 0")
    assert list(mutations.chosen(drawn)) == [(2, drawn[2])]
    assert list(mutations.chosen([drawn[0], drawn[2]._replace(number=2)])) == [
        (0, drawn[2]._replace(number=2))
    ]
