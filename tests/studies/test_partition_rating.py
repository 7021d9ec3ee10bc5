"""Ratings of partitions, against enumeration; the command and its exit codes."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from ppopt import InputError, Layer, Model, evaluate
from ppopt.problem import layout
from ppopt.problem.layer_settings import LETTERS
from ppopt.problem.partition import normal
from ppopt.problem.pipeline import Pipeline
from ppopt.studies.partition_rating import PartitionRating, rate_partition
from tests.cli.cli_run import done, run
from tests.factories.bridge_layouts import LAYOUTS, RecipeLayout
from tests.oracles.configurations import partitions

MODEL = Model(
    (
        Layer(forward=1, role="embedding"),
        *(Layer(forward=2, activation=number) for number in (1, 1, 2, 1, 1)),
        Layer(forward=3, role="head"),
    )
)


def pipeline_of(partition: object, **fields: object) -> Pipeline:
    return MODEL.pipeline(devices=3, batches=4, partition=partition, **fields)


@pytest.mark.parametrize("partition", ["3,2,2", "1,1,5", "even", "Ett|tt|tL"])
def test_the_gain_is_that_of_the_best_of_all(partition: str) -> None:
    cut = [int(count) for count in partition.split(",")] if "," in partition else partition
    rating = rate_partition(pipeline_of(cut), "1f1b")
    best = min(evaluate(pipeline_of(counts), "1f1b").makespan for counts in partitions(7, 3))
    assert rating.choice.proved
    assert rating.choice.value == Fraction(best)
    assert rating.gain == rating.max_gain == pytest.approx(rating.schedule.makespan / best - 1)


def test_the_best_partition_is_itself_the_best() -> None:
    """Of several best ones, the rated one is named."""
    best = rate_partition(pipeline_of("balanced"), "1f1b").choice.schedule.pipeline.counts
    rating = rate_partition(pipeline_of(best), "1f1b")
    assert rating.gain == 0
    assert rating.choice.schedule == rating.schedule


def test_a_faster_partition_beyond_the_limit_has_no_gain() -> None:
    fastest = rate_partition(pipeline_of("balanced"), "1f1b").choice.schedule
    limit = max(fastest.peak_memory) - 1
    rating = rate_partition(
        pipeline_of(fastest.pipeline.counts, mem_limit=[limit, limit, limit]), "1f1b"
    )
    assert not rating.schedule.fits_limits
    assert rating.gain <= 0


def test_what_is_no_partition_is_refused() -> None:
    with pytest.raises(InputError, match="the partition of a model in layers is rated"):
        rate_partition(pipeline_of("search"), "1f1b")
    with pytest.raises(InputError, match="the partition of a model in layers is rated"):
        rate_partition(Pipeline(stages=2, batches=2), "1f1b")


def test_several_losses_have_no_memory_limit() -> None:
    layers = (*MODEL.layers[:-1], Layer(forward=1, role="mtp"), MODEL.layers[-1])
    divided = Model(layers).pipeline(devices=3, batches=2, partition="Ettt|ttmL|L")
    assert rate_partition(divided, "1f1b").gain >= 0
    with pytest.raises(InputError, match="several L is rated without a memory limit"):
        rate_partition(
            Model(layers).pipeline(devices=3, batches=2, partition="Ettt|ttmL|L", mem_limit=99),
            "1f1b",
        )


SHORT = [name for name, recipe in LAYOUTS.items() if recipe.ranks * recipe.chunks <= 4]
TIMES = {"embedding": 0.25, "decoder": 1, "mtp": 1.5, "head": 2}


def rated(recipe: RecipeLayout) -> PartitionRating:
    """The layout of a recipe with twice as many microbatches as ranks, the head of two layers."""
    roles = [layer for stage in layout.stages(str(normal(recipe.layout))) for layer in stage]
    names = {letter: role for role, letter in LETTERS.items()}
    model = Model(tuple(Layer(TIMES[names[role]], role=names[role]) for role in roles))
    chunks = {"chunks": recipe.chunks, "placement": "interleaved"} if recipe.chunks > 1 else {}
    pipeline = model.pipeline(
        devices=recipe.ranks, batches=2 * recipe.ranks, partition=recipe.layout, **chunks
    )
    strategy = "interleaved" if recipe.chunks > 1 else "1f1b"
    rating = rate_partition(pipeline, strategy, time_limit=3)
    assert rating.schedule.pipeline.counts == pipeline.counts
    assert rating.schedule.makespan == evaluate(pipeline, strategy).makespan
    assert rating.value_ticks >= rating.choice.value_ticks
    assert rating.max_gain is None or rating.gain <= rating.max_gain
    return rating


@pytest.mark.parametrize("name", SHORT)
def test_short_layouts_of_recipes_are_rated_with_a_proof(name: str) -> None:
    assert rated(LAYOUTS[name]).choice.proved


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LAYOUTS if name not in SHORT])
def test_layouts_of_recipes_are_rated(name: str) -> None:
    """Each within three seconds, also the one with empty stages."""
    assert rated(LAYOUTS[name]).gain >= 0


@pytest.fixture
def line(tmp_path: Path) -> str:
    path = tmp_path / "model.yaml"
    path.write_text(
        "stages: 3\nbatches: 4\nlayers:\n- {role: embedding, forward: 1}\n"
        "- {forward: 2, count: 5}\n- {role: head, forward: 3}\n"
    )
    return f"rate 1f1b --config {path} --partition"


def test_lines_and_codes(line: str) -> None:
    ran = run(f"{line} 5,1,1 --tolerance 5%")
    assert ran.code == 8
    assert "rating     the best has" in ran.out
    assert "proved: none of 15 is better with this strategy" in ran.out
    assert "tolerance  above 5 %: exit code 8" in ran.out
    assert done(f"{line} 5,1,1").code == 0
    assert run(f"{line} 3,2,2 --tolerance 50%").code == 0


def test_json(line: str) -> None:
    ran = run(f"{line} 5,1,1 --tolerance 5% --json")
    assert ran.code == 8
    output = ran.json
    assert output["partition"] == [5, 1, 1]
    assert output["layout"] == "Et*4|t|L"
    assert output["gain"] == pytest.approx(output["value"] / output["best"]["value"] - 1)
    assert (output["proved"], output["accepted"], output["tolerance"]) == (True, False, 0.05)
