"""`ppopt export` and `ppopt import`: formats by name, refusals that write nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ppopt.cli.schedule_files import ExportFormat
from ppopt.formats import perfetto, schedule_json, torch_comms, torch_csv
from ppopt.formats.schedule_json import read_schedule
from tests.cli.cli_json import EVALUATED, assert_types
from tests.cli.cli_run import done, json_of, run

FLAGS = "--stages 3 --batches 4 --forward-times 3,5,4 --backward-times 7,9,11 --p2p-time 0.5"


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("native") / "a.json"
    done(f"eval 1f1b {FLAGS} --mem-limit --quiet -o", path)
    return path


WRITERS = {
    "torch-csv": torch_csv.order_csv,
    "torch-comms": torch_comms.communication_csv,
    "perfetto": perfetto.chrome_trace,
    "json": schedule_json.dumps,
}


OF_TRAINERS = {"megatron-arguments", "torchtitan", "primus"}
"""What trainers read: `test_trainer_partition.py` and `test_primus_schedule.py` of formats."""


def test_every_writer_has_its_name() -> None:
    assert {str(entry) for entry in ExportFormat} == {*WRITERS, *OF_TRAINERS}


@pytest.mark.parametrize("name", WRITERS)
def test_export(name: str, native: Path, tmp_path: Path) -> None:
    """Any name of the file will do: the format says what is in it."""
    out = tmp_path / "order"
    assert done(f"export --to {name}", native, "-o", out) == (0, "", "")
    schedule, _ = read_schedule(native)
    assert out.read_text() == WRITERS[name](schedule)


def test_operations_alone_say_what_they_lose(tmp_path: Path) -> None:
    """ZB-V at p2p 0.3: 28.9 in the order of its own times, 29.1 as PyTorch lowers it."""
    line = f"eval zbv --stages 4 --batches 8 --p2p-time 0.3 -o {tmp_path / 'a.json'}"
    output = json_of(line)["operations_alone"]
    assert output == {"own": 28.9, "lowered": 29.1, "loss": round(29.1 / 28.9 - 1, 6)}
    stdout = " ".join(done(f"{line} --details").out.split())
    assert "exported as torch-csv (PyTorch orders the transfers): 29.1 instead of 28.9;" in stdout
    err = done("export --to torch-csv", tmp_path / "a.json", "-o", tmp_path / "a.csv").err
    assert "0.69 % less throughput" in err
    assert "--to torch-comms writes that order" in err


def test_json_comes_back_as_it_was(native: Path, tmp_path: Path) -> None:
    done("export --to json", native, "-o", tmp_path / "b.json")
    assert (tmp_path / "b.json").read_bytes() == native.read_bytes()


def test_primus_has_three_files_and_what_they_lack(native: Path, tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    done("eval zb-1p --stages 2 --batches 4 --quiet --gradient-sync 1 -o", path)
    err = done("export --to primus", path, "-o", tmp_path / "run.yaml").err
    assert "Primus places unshard, gradient sync and optimizer itself" in err
    names = {"run.yaml", "run.table.json", "ppopt_schedule_patch.py", "split.json"}
    assert {file.name for file in tmp_path.iterdir()} == names
    assert "pp_algorithm: zero-bubble\n" in (tmp_path / "run.yaml").read_text()


def test_a_trace_in_seconds(native: Path, tmp_path: Path) -> None:
    done("export --to perfetto --time-unit s", native, "-o", tmp_path / "t")
    events = json.loads((tmp_path / "t").read_text())["traceEvents"]
    assert next(e["dur"] for e in events if e["name"] == "0F0") == 3e6


def test_import_is_the_inverse(native: Path, tmp_path: Path) -> None:
    done("export --to torch-csv", native, "-o", tmp_path / "a.csv")
    line = f"import --from torch-csv --mem-limit --placement linear --chunks 1 {FLAGS}"
    output = json_of(line, tmp_path / "a.csv", "-o", tmp_path / "b.json")
    assert_types(output, EVALUATED)
    assert output["strategy"] == "torch-csv"
    assert read_schedule(tmp_path / "b.json")[0] == read_schedule(native)[0]
    assert done("verify", tmp_path / "b.json").code == 0


def test_import_needs_the_file_alone(tmp_path: Path) -> None:
    """Unit costs; 1F1B of 2 x 2 ends at 9."""
    (tmp_path / "a.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    ran = done("import --from torch-csv", tmp_path / "a.csv")
    assert "makespan  9\n" in ran.out


ORDERED = "--stages 2 --batches 4 --microbatch-times 1,4,1,2"


@pytest.mark.parametrize("to", ["torch-csv", "torch-comms", "torchtitan", "megatron-arguments"])
def test_an_export_says_the_order_of_the_data_loader(to: str, tmp_path: Path) -> None:
    """In a file next to it, on stderr, and in the file of a format that has comments."""
    model = {"layers": [{"forward": 1, "role": role} for role in ("embedding", "decoder", "head")]}
    config = tmp_path / "model.json"
    config.write_text(json.dumps(model))
    line = f"eval 1f1b {ORDERED} --order search --quiet --config"
    done(line, config, "-o", tmp_path / "a.json")
    order = read_schedule(tmp_path / "a.json")[0].pipeline.order
    assert order != "given"
    order_text = f"microbatches of a step in the order {', '.join(map(str, order))}"
    ran = done(f"export --to {to}", tmp_path / "a.json", "-o", tmp_path / "out.toml")
    assert (
        f"note: the data loader must hand out the {order_text}: {tmp_path / 'out.order.json'}\n"
        in ran.err
    )
    assert json.loads((tmp_path / "out.order.json").read_text()) == {"order": list(order)}
    assert ((tmp_path / "out.toml").read_text().count(order_text)) == (to == "torchtitan")


@pytest.mark.parametrize("to", ["torch-csv", "torch-comms"])
def test_import_reads_the_order_of_microbatches(to: str, tmp_path: Path) -> None:
    """The factors are given as listed; the schedule is the one that was exported."""
    done(f"eval 1f1b {ORDERED} --order search --quiet -o", tmp_path / "a.json")
    done(f"export --to {to}", tmp_path / "a.json", "-o", tmp_path / "a.csv")
    links = "" if to == "torch-csv" else "--p2p-time 0"
    output = json_of(f"import --from {to} {ORDERED} {links}", tmp_path / "a.csv")
    read = read_schedule(tmp_path / "a.json")[0]
    assert (output["order"], output["value"]) == (list(read.pipeline.order), read.makespan)


def test_orders_that_are_written_with_a_result(tmp_path: Path) -> None:
    ran = done(f"eval 1f1b {ORDERED} --order search --quiet -o", tmp_path / "a.csv")
    assert "in the order" in ran.err
    assert sorted(json.loads((tmp_path / "a.order.json").read_text())["order"]) == [0, 1, 2, 3]
    assert done(f"eval 1f1b {ORDERED} --quiet -o", tmp_path / "b.csv").err == ""
    assert not (tmp_path / "b.order.json").exists()


def test_import_by_device_span(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    output = json_of("import --from torch-csv --objective device-span", tmp_path / "a.csv")
    assert (output["objective"], output["value"]) == ("device-span", output["device_span"])


REFUSED = {
    "unknown format": ("export {file} --to pickle -o {out}", "--to"),
    "no format": ("export {file} -o {out}", "--to"),
    "no output": ("export {file} --to json", "-o"),
    "no such folder": ("export {file} --to json -o nowhere/a", "the folder nowhere does not exist"),
    "a folder": ("export {file} --to json -o {folder}", "is a folder; name a file"),
    "a device": ("export {file} --to json -o /dev/null", "no regular file"),
    "no such file": ("export nowhere.json --to json -o {out}", "cannot be read"),
    "unit of an order": ("export {file} --to torch-csv --time-unit s -o {out}", "time-unit"),
    "unknown unit": ("export {file} --to perfetto --time-unit h -o {out}", "'h' is unknown"),
    "no schedule": ("export {broken} --to perfetto -o {out}", "lists all violations"),
    "unknown source": ("import {file} --from pickle -o {out}.json", "--from"),
    "not an order": ("import {file} --from torch-csv -o {out}.json", "a.json: rank 0: cell 0"),
    "no such order": ("import nowhere --from torch-csv -o {out}.json", "cannot be read"),
    "other costs": ("import {csv} --from torch-csv --batches 3 -o {out}.json", "2 microbatches"),
    "a deadlock": (
        "import {cycle} --from torch-csv -o {out}.json",
        "cycle.csv: the order deadl",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, native: Path, tmp_path: Path) -> None:
    line, message = REFUSED[name]
    file = json.loads(native.read_text())
    file["ops"].pop()
    (tmp_path / "broken.json").write_text(json.dumps(file))
    (tmp_path / "a.csv").write_text("0F0,0F1,0B0,0B1\n")
    (tmp_path / "cycle.csv").write_text("0B0,0F0\n")
    out = tmp_path / "out"
    places = {"file": native, "broken": tmp_path / "broken.json", "csv": tmp_path / "a.csv"}
    places |= {"cycle": tmp_path / "cycle.csv", "out": out, "folder": tmp_path}
    before = set(tmp_path.iterdir())
    ran = run(line.format(**places))
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert set(tmp_path.iterdir()) == before


def test_a_link_is_followed(native: Path, tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    done("export --to json", native, "-o", link)
    assert link.is_symlink()
    assert target.read_bytes() == native.read_bytes()
