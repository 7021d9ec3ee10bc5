"""Schedule files in which one number is changed, against a reader in plain Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

import ppopt
from ppopt.errors import ConflictError, NotApplicableError
from ppopt.formats.schedule_json import schedule_to_object
from tests.fuzz import pipelines
from tests.fuzz.category import Case, Category, Finding, SkippedError
from tests.fuzz.searches import Strategies
from tests.oracles.changed_numbers import changed, differences, numbers_for, places

CHANGES = 20
"""Changes of each file."""


class Files(Category):
    """Files of strategies on pipelines of every kind, each with some changes of one number."""

    name = "files"
    goal = 300

    def draw(self, rng: Random) -> Case:
        """Draw a strategy, a pipeline whose microbatches may differ, and changes."""
        case = Strategies().draw(rng)
        fields = case["pipeline"]
        if rng.random() < 0.5:
            for field in ("microbatch_times", "microbatch_memory"):
                fields[field] = [rng.choice((1, 2, "0.5", "1.5")) for _ in range(fields["batches"])]
        changes = [[rng.randrange(2**16), rng.randrange(2**8)] for _ in range(CHANGES)]
        return case | {"changes": changes}

    def check(self, case: Case) -> Iterator[Finding]:
        """Read and verify the file, and again after each change."""
        try:
            schedule = ppopt.evaluate(pipelines.pipeline_of(case), case["strategy"])
        except (ConflictError, NotApplicableError) as refused:
            raise SkippedError(str(refused)) from None
        document = json.loads(json.dumps(schedule_to_object(schedule)))
        if not schedule.fits_limits:
            document["pipeline"] |= {"mem_limit": None, "mem_limit_given": None}
        if differences(document) != []:
            yield Finding("right-file-refused", str(differences(document)))
        spots = list(places(document))
        for spot, choice in case["changes"]:
            place = spots[spot % len(spots)]
            numbers = numbers_for(document, place)
            number = numbers[choice % len(numbers)]
            faults = differences(changed(document, place, number))
            if faults:
                yield Finding("file-read-otherwise", f"{place}: {number}: {faults}")
            if faults == [] and place[0] in ("ops", "claims"):
                yield Finding("false-file-accepted", f"{place}: {number}")
