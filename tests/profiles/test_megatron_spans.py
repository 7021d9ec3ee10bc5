"""OpenTelemetry spans of Megatron-LM: real ones in both forms, their order, defects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppopt.errors import InputError
from ppopt.problem.operation import Op, OpKind
from ppopt.profiles.estimate import Record, profile
from ppopt.profiles.reader import Recording
from ppopt.profiles.readers import megatron_spans
from ppopt.profiles.readers.megatron_spans import read_spans
from tests.cli.cli_run import done

DATA = Path(__file__).parent / "data"
PLAIN, INTERLEAVED, PRINTED = (
    DATA / f"megatron_spans{name}" for name in (".jsonl", "_interleaved.jsonl", "_console.log")
)


def key(record: Record) -> tuple[int, Op]:
    return record.step, record.op


def unaligned(path: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """The spans by the clock of their host, which both ranks share."""
    same = megatron_spans.aligned([]).__class__
    monkeypatch.setattr(megatron_spans, "aligned", lambda records: same(list(records), 0))
    return read_spans([path])


@pytest.mark.parametrize(("path", "stages"), [(PLAIN, 2), (INTERLEAVED, 4)])
def test_passes_have_the_order_of_megatron(
    path: Path, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pass begins before its input exists: so the k-th pass is of that chunk and microbatch."""
    profiled = profile(read_spans([path]).records)
    assert profiled.hosts == (0, 1) * (stages // 2)
    assert (profiled.batches, profiled.steps) == (4, 2)
    records = unaligned(path, monkeypatch).records
    ends = {(record.step, record.op): record.end for record in records}
    for record in records:
        before = record.stage - 1 if record.kind is OpKind.F else record.stage + 1
        source = record.step, Op(record.kind, before, record.microbatch)
        assert record.start >= ends.get(source, 0), record


@pytest.mark.parametrize("path", [PLAIN, INTERLEAVED])
def test_clocks_are_aligned_within_the_stated_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ranks ran on one host: the clock of rank 1 needs no offset."""
    read = read_spans([path])
    (stated,) = (line for line in read.comments if "neighbours are off by at most" in line)
    stated_error = float(stated.split()[-2]) * 10**6
    on_hosts = sorted(unaligned(path, monkeypatch).records, key=key)
    for record, on_host in zip(sorted(read.records, key=key), on_hosts, strict=True):
        assert record.op == on_host.op
        assert abs(record.start - on_host.start) <= stated_error + 1000


def test_printed_spans_are_those_of_otlp(tmp_path: Path) -> None:
    """The console prints microseconds; rank 0 is in OTLP in a file of its own."""
    first = tmp_path / "rank0.json"
    first.write_text(PLAIN.read_text().splitlines()[0])
    printed, otlp = (
        sorted(read_spans(paths).records, key=key) for paths in ([first, PRINTED], [PLAIN])
    )
    assert len(printed) == 32
    for span, same in zip(printed, otlp, strict=True):
        assert (span.op, span.step) == (same.op, same.step)
        assert abs(span.end - span.start - (same.end - same.start)) < 2000


def changed(path: Path, **resource: Any) -> str:
    """The text of a file with other attributes of resources."""
    lines = []
    for line in path.read_text().splitlines():
        document = json.loads(line)
        for group in document["resourceSpans"]:
            attributes = group["resource"]["attributes"]
            unchanged = [entry for entry in attributes if entry["key"] not in resource]
            new = [{"key": key, "value": value} for key, value in resource.items() if value]
            group["resource"]["attributes"] = unchanged + new
        lines.append(json.dumps(document))
    return "\n".join(lines)


def test_the_first_of_the_ranks_that_share_a_stage_counts(tmp_path: Path) -> None:
    """Ranks 0 and 1 of four are of pipeline rank 0, ranks 2 and 3 of the other."""
    path = tmp_path / "spans.jsonl"
    lines = []
    for rank in range(4):
        line = changed(
            PLAIN,
            **{"dl.rank": {"intValue": str(rank)}, "dl.world_size": {"intValue": "4"}},
        ).splitlines()[rank // 2]
        lines.append(line)
    path.write_text("\n".join(lines[::-1]))
    assert read_spans([path]).records == read_spans([PLAIN]).records


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "holds no spans megatron.microbatch.forward and megatron.microbatch.backward"),
        (changed(PLAIN, **{"dl.rank": None}), "dl.rank: None is not a whole number"),
        (PLAIN.read_text().replace("startTimeUnixNano", "start"), "a span is neither in OTLP nor"),
        (PLAIN.read_text().replace("iteration.forward", "step.forward"), "0 to 0 training steps"),
        (PLAIN.read_text().splitlines()[1], "pipeline rank 0 has no spans; export those of all"),
        (
            PLAIN.read_text().replace('"intValue":"4"', '"intValue":"3"'),
            "rank 0: 4 passes of kind F in a step of 3 microbatches; give whole steps",
        ),
    ],
)
def test_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_spans([path])
    assert message in str(caught.value)


def test_from_spans_to_a_pipeline(tmp_path: Path) -> None:
    out = tmp_path / "measured.yaml"
    assert "A span ends when the CPU has launched" in done("profile", PLAIN, "-o", out).err
    assert 'source: "megatron-spans"' in out.read_text()
