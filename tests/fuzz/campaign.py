"""A campaign: categories take turns on the way to their goals; failing cases become tests."""

from __future__ import annotations

import gc
import signal
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from pprint import pformat
from time import monotonic
from types import FrameType

from tests.fuzz.category import Case, Category, Finding, SkippedError
from tests.fuzz.choices import Compositions, Layers, Mixed, Phases, Placements, Recompute
from tests.fuzz.draws import Draws, Record, simpler
from tests.fuzz.features import Features
from tests.fuzz.files import Files
from tests.fuzz.group_sizes import GroupSizes
from tests.fuzz.interrupted import Interrupted
from tests.fuzz.offload import Offload
from tests.fuzz.plans import Megatron, Plans
from tests.fuzz.searches import Bounds, Pairs, Strategies, Tiny
from tests.fuzz.streams import Streams

CATEGORIES: Mapping[str, Category] = {
    category.name: category
    for category in (
        Tiny(), Mixed(), Placements(), Layers(), Recompute(), Pairs(), Bounds(), Strategies(),
        Streams(), Compositions(), Interrupted(), Phases(), GroupSizes(), Plans(), Megatron(),
        Files(), Offload(), Features(),
    )
}  # fmt: skip
"""All categories by name."""
HANGS = 120
"""Seconds after which a case counts as hanging."""
SHRINKING = 60.0
"""Most seconds to make a case smaller."""


@dataclass
class Tally:
    """What became of the cases of one category."""

    cases: int = 0
    skipped: int = 0
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    """How many findings of each kind."""
    examples: dict[str, tuple[str, Case]] = field(default_factory=dict)
    """Words and case of the first finding of each kind, shrunk."""

    def add(self, tally: Tally) -> None:
        """Take in the tally of another process."""
        self.cases += tally.cases
        self.skipped += tally.skipped
        self.seconds += tally.seconds
        self.kinds += tally.kinds
        self.examples = tally.examples | self.examples


class HangError(Exception):
    """A case took too long."""


@contextmanager
def _alarm(seconds: int) -> Iterator[None]:
    def ring(_: int, frame: FrameType | None) -> None:
        callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}
        if frame is not None and frame.f_code in callbacks:  # Python drops what they raise
            signal.setitimer(signal.ITIMER_REAL, 0.1)
        else:
            raise HangError(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def findings(category: Category, case: Case) -> list[Finding]:
    """Check a case; a crash is a finding. Raises SkippedError."""
    try:
        with _alarm(HANGS):
            return list(category.check(case))
    except SkippedError:
        raise
    except Exception as error:  # any crash of the product, whatever it raises
        frames = traceback.extract_tb(error.__traceback__)
        if isinstance(error, HangError) and any("/oracles/" in frame.filename for frame in frames):
            raise SkippedError("the oracle was not done in time") from None
        where = frames[-1]
        message = f"{error} ({Path(where.filename).name}:{where.lineno})"
        return [Finding(f"crash-{type(error).__name__}", message)]


def shrunk(category: Category, record: Record, kind: str) -> Case:
    """The simplest case found that still gives a finding of this kind."""
    until, case = monotonic() + SHRINKING, category.draw(Draws("", record))
    seen, candidates = {repr(case)}, simpler(record)
    while len(seen) <= category.tries and monotonic() < until:
        repeated = next(candidates, None)
        if repeated is None:
            break
        draws = Draws("", repeated)
        with suppress(SkippedError):
            candidate = category.draw(draws)
            shorter = (len(draws.record), draws.record) < (len(record), record)
            if not shorter or repr(candidate) in seen:
                continue
            seen.add(repr(candidate))
            if any(finding.kind == kind for finding in findings(category, candidate)):
                case, record, candidates = candidate, draws.record, simpler(draws.record)
    return case


def attack(category: Category, seed: str, index: int, tally: Tally) -> None:
    """Draw and check the case of a number, and note what is found."""
    began = monotonic()
    draws = Draws(f"{seed} {category.name} {index}")
    case = category.draw(draws)
    tally.cases += 1
    try:
        findings_ = findings(category, case)
    except SkippedError:
        tally.skipped += 1
        findings_ = []
    for finding in findings_:
        tally.kinds[finding.kind] += 1
        if finding.kind not in tally.examples:
            smallest = shrunk(category, draws.record, finding.kind)
            tally.examples[finding.kind] = finding.description, smallest
            print(_line(category.name, finding.kind, 1, finding.description, smallest), flush=True)
    tally.seconds += monotonic() - began


def campaign(names: Sequence[str], seed: str, seconds: float) -> dict[str, Tally]:
    """Attack for some time: next is the category that is furthest from its goal."""
    tallies = {name: Tally() for name in names}
    until = monotonic() + seconds
    while monotonic() < until:
        name = min(names, key=lambda name: tallies[name].cases / CATEGORIES[name].goal)
        attack(CATEGORIES[name], seed, tallies[name].cases, tallies[name])
    return tallies


def table(tallies: Mapping[str, Tally]) -> str:
    """Counts by category, as Markdown."""
    lines = ["| category | cases | skipped | seconds | findings |", "|---|---|---|---|---|"]
    for name, tally in tallies.items():
        figures = (tally.cases, tally.skipped, f"{tally.seconds:.0f}", tally.kinds.total())
        lines.append(f"| {name} | {' | '.join(map(str, figures))} |")
    return "\n".join(lines)


def listed(tallies: Mapping[str, Tally]) -> Iterator[str]:
    """Every kind of finding in a line, with its number and an example."""
    for name, tally in tallies.items():
        for kind, count in sorted(tally.kinds.items()):
            yield _line(name, kind, count, *tally.examples[kind])


def _line(name: str, kind: str, count: int, description: str, case: Case) -> str:
    return f"- {name}, {kind}, {count} times: {description}\n  {_short(case)}"


def _short(case: Case) -> str:
    text = repr(case)
    return text if len(text) <= 600 else f"{text[:600]}..."


def write_tests(tallies: Mapping[str, Tally], folder: Path) -> list[Path]:
    """Write a test for the first case of every kind; returns the files."""
    written = []
    for name, tally in tallies.items():
        for kind, (description, case) in sorted(tally.examples.items()):
            folder.mkdir(parents=True, exist_ok=True)
            stem = f"{name}_{kind}".replace("-", "_").lower()
            path = folder / f"test_fuzz_{stem}.py"
            path.write_text(_test(name, kind, description, case), encoding="utf-8")
            written.append(path)
    return written


def _test(name: str, kind: str, description: str, case: Case) -> str:
    function = f"{name}_{kind}".replace("-", "_").lower()
    lines = description.replace("\\", "/").replace('"', "'").splitlines() or [""]
    return (
        f'"""Found by `python -m tests.fuzz`, and shrunk.\n\n{kind}: {lines[0]}\n"""\n\n'
        "from tests.fuzz.campaign import CATEGORIES, findings\n\n"
        f"CASE = {pformat(case, width=96, sort_dicts=False)}\n\n\n"
        f"def test_{function}() -> None:\n"
        f'    found = findings(CATEGORIES["{name}"], CASE)\n'
        f'    assert "{kind}" not in [finding.kind for finding in found], found\n'
    )
