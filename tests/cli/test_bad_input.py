"""Everything that can be wrong with what a user gives: one line, exit code 2, nothing written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path

import pytest

from ppopt.cli import files
from ppopt.errors import InputError
from ppopt.formats import fields
from ppopt.formats.config import canonical
from tests.cli.cli_run import process, run
from tests.clock import HANGS
from tests.formats.schedule_text import TWO_BY_ONE
from tests.formats.test_config_refused import ONE_FORMAT
from tests.formats.test_schedule_json_refused import BAD_VALUES, changed
from tests.tiers import first

SIZE = "--stages 2 --batches 2"
HUGE = "9" * 5000
SWEEP = "sweep --stages 2 --jobs 1"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in, with a sound config and a sound schedule file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.yaml").write_text("stages: 2\nbatches: 2\n")
    (tmp_path / "good.json").write_text(TWO_BY_ONE)
    (tmp_path / "folder.json").mkdir()
    return tmp_path


def refused(folder: Path, line: str, message: str) -> None:
    """Run a command that must be refused in one line with these words, and write nothing."""
    before = contents(folder)
    code, out, err = run(line)
    assert (code, out) == (2, ""), err
    assert err.startswith("error: ")
    assert err.removesuffix("\n").isprintable()
    assert len(err) < 400
    assert message in err
    assert contents(folder) == before


def contents(folder: Path) -> Mapping[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


WRITING = "--json -o out.json -o out.html"
LINES = {
    # what to do
    "unknown command": ("sove", "sove"),
    "unknown option of all": ("--verbose", "--verbose"),
    "unknown option": (f"solve {SIZE} --stage 2", "--stage"),
    "unknown short option": (f"solve {SIZE} -x", "-x"),
    "option of another command": ("verify good.json --stages 2", "--stages"),
    "option with its value missing": (f"solve {WRITING} --batches 2 --stages", "--stages"),
    "switch with a value": (f"solve {SIZE} {WRITING} --fused=yes", "--fused"),
    "bare word": (f"solve {SIZE} {WRITING} fast", "fast"),
    "bare word for a strategy": (f"eval 1f1b gpipe {SIZE} {WRITING}", "gpipe"),
    "bare word of a list": ("models zb-1.5b-m24", "zb-1.5b-m24"),
    "no strategy": (f"eval {SIZE} {WRITING}", "STRATEGY"),
    "no file": ("verify", "FILE"),
    "no files": ("view -o out.html", "FILE"),
    "no page": ("view good.json", "-o"),
    # sizes
    "nothing": (f"solve {WRITING}", "--stages"),
    "no stages": (f"solve --batches 2 {WRITING}", "--stages"),
    "no batches": (f"solve --stages 2 {WRITING}", "--batches"),
    "stages: word": (f"solve --stages four --batches 2 {WRITING}", "stages: 'four'"),
    "stages: option": (
        f"solve --stages --batches 2 {WRITING}",
        "--stages: needs a value, and --batches follows",
    ),
    "stages: fraction": (f"solve --stages 2.0 --batches 2 {WRITING}", "stages: '2.0'"),
    "stages: underscore": (f"solve --stages 1_0 --batches 2 {WRITING}", "stages: '1_0'"),
    "stages: zero": (f"solve --stages 0 --batches 2 {WRITING}", "stages: 0"),
    "stages: many": (f"solve --stages 1025 --batches 2 {WRITING}", "stages: 1025"),
    "stages: endless": (f"solve --stages {HUGE} --batches 2 {WRITING}", "stages: '99999"),
    "batches: list": (f"solve --stages 2 --batches 1,2 {WRITING}", "--batches: one number"),
    "batches: many": (f"solve --stages 2 --batches 9000000 {WRITING}", "9000000"),
    "chunks: many": (f"solve {SIZE} --chunks 9000000 {WRITING}", "18000000"),
    # times and memory
    "time: underscore": (f"solve {SIZE} --forward-times 1_0 {WRITING}", "'1_0' is not a number"),
    "time: too fine": (f"solve {SIZE} --forward-times 1e-9 {WRITING}", "finer than 10^-6"),
    "time: empty": (f"solve {SIZE} --forward-times '' {WRITING}", "--forward-times: ''"),
    "time: zero": (f"solve {SIZE} --forward-times 0 {WRITING}", "--forward-times: stage 0: 0"),
    "time: negative": (f"solve {SIZE} --forward-times -1 {WRITING}", "--forward-times: -1"),
    "time: infinite": (f"solve {SIZE} --forward-times inf {WRITING}", "'inf'"),
    "time: huge exponent": (f"solve {SIZE} --forward-times 1e999999999 {WRITING}", "1e999999999"),
    "time: too large a sum": (
        f"solve --stages 4 --batches 99999 --forward-times 999999999999 {WRITING}",
        "2^53",
    ),
    "time: two lines": (f"solve {SIZE} --forward-times '1\n2' {WRITING}", "'1\\n2'"),
    "list: long": (
        f"solve {SIZE} --forward-times 1,2,3 {WRITING}",
        "--forward-times: has 3 entries",
    ),
    "list: short": ("solve --stages 3 --batches 2 --activation 1,2", "activation: has 2 entries"),
    "list: empty entry": (f"solve {SIZE} --forward-times 1, {WRITING}", "--forward-times: ''"),
    "list: empty first entry": (f"solve {SIZE} --static ,1 {WRITING}", "static: ''"),
    "list: other comma": (
        f"solve {SIZE} --forward-times '1;2' {WRITING}",
        "--forward-times: '1;2'",
    ),
    "p2p: list": (f"solve {SIZE} --p2p-time 1,2 {WRITING}", "--p2p-time: '1,2'"),
    "weight above backward": (
        f"solve {SIZE} --backward-times 2 --weight-times 3 {WRITING}",
        "--weight-times: stage 0: 3",
    ),
    "B frees more than F took": (f"solve {SIZE} --memory-b -1.5 {WRITING}", "--memory-b: stage 0"),
    "limit: negative": (f"solve {SIZE} --mem-limit=-1 {WRITING}", "--mem-limit: -1"),
    "limit: word": (f"solve {SIZE} --mem-limit 2f2b {WRITING}", "--mem-limit: '2f2b'"),
    "limit: empty": (f"solve {SIZE} --mem-limit= {WRITING}", "--mem-limit: ''"),
    "limit: long": (f"solve {SIZE} --mem-limit 1,2,3 {WRITING}", "--mem-limit: has 3 entries"),
    "limit: takes the strategy": (f"eval --mem-limit 1f1b {SIZE} {WRITING}", "STRATEGY"),
    # placement
    "placement: word": (f"solve {SIZE} --placement zigzag {WRITING}", "'zigzag'"),
    "placement: empty": (f"solve {SIZE} --placement '' {WRITING}", "placement: ''"),
    "placement: gap": (f"solve --batches 2 --placement 0,2 {WRITING}", "device 1"),
    "placement: endless": (f"solve --batches 2 --placement 0,{'9' * 90} {WRITING}", "stage 1"),
    "placement: empty entry": (f"solve --batches 2 --placement 0,,1 {WRITING}", "stage 1: ''"),
    "placement: not of --stages": (
        f"solve --stages 3 --batches 2 --placement 0,1 {WRITING}",
        "2 entries for 3 stages",
    ),
    "placement with chunks": (
        f"solve --batches 2 --placement 0,1,1,0 --chunks 2 {WRITING}",
        "chunks: ",
    ),
    "linear with chunks": (f"solve {SIZE} --placement linear --chunks 2 {WRITING}", "linear"),
    # strategies
    "strategy: unknown": (f"eval 1f2b {SIZE} {WRITING}", "did you mean 1f1b"),
    "strategy: empty": (f"eval '' {SIZE} {WRITING}", "''"),
    "strategy: two lines": (f"eval '1f1b\n' {SIZE} {WRITING}", "'1f1b\\n'"),
    "strategy and chunks": (f"eval 1f1b --chunks 2 {SIZE} {WRITING}", "chunks: 2"),
    "strategy and placement": (f"eval zb-h1 --placement v {SIZE} {WRITING}", "placement: v"),
    "strategy and list": (f"eval 1f1b --placement 0,1,1,0 --batches 2 {WRITING}", "1f1b"),
    "strategy and fused": (f"eval zb-1p --fused {SIZE} {WRITING}", "zb-1p"),
    "strategy and group size": (
        f"eval 1f1b --group-size 2 {SIZE} {WRITING}",
        "--group-size: strategy 1f1b takes no --group-size",
    ),
    "group size: zero": (f"eval interleaved --group-size 0 {SIZE} {WRITING}", "--group-size: 0"),
    "jitter: zero": (f"eval 1f1b --jitter 0 {SIZE} {WRITING}", "jitter: 0 is not above 0"),
    "jitter: huge": (f"compare --jitter 11 {SIZE}", "jitter: 11 is not above 0 and at most 10"),
    "jitter: text": (f"eval 1f1b --jitter much {SIZE} {WRITING}", "jitter: 'much' is not a number"),
    "group size: deadlock": (
        f"eval interleaved --stages 4 --batches 8 --group-size 2 {WRITING}",
        "group",
    ),
    # search
    "objective": (f"solve {SIZE} --objective speed {WRITING}", "'speed'"),
    "time limit: zero": (f"solve {SIZE} --time-limit 0 {WRITING}", "--time-limit: '0'"),
    "time limit: too fine": (f"solve {SIZE} --time-limit 1e-9 {WRITING}", "below 10^-6"),
    "time limit: underscore": (f"solve {SIZE} --time-limit 1_0 {WRITING}", "'1_0'"),
    "time limit: negative": (f"solve {SIZE} --time-limit -5 {WRITING}", "--time-limit: '-5'"),
    "time limit: word": (f"solve {SIZE} --time-limit 5s {WRITING}", "'5s'"),
    "workers: zero": (f"solve {SIZE} --workers 0 {WRITING}", "workers: 0"),
    "workers: word": (f"solve {SIZE} --workers all {WRITING}", "workers: 'all'"),
    "seed: negative": (f"solve {SIZE} --seed -1 {WRITING}", "seed: -1"),
    # models and configs
    "model: unknown": (f"solve --model zb-1.5b-m25 {WRITING}", "did you mean zb-1.5b-m"),
    "model: empty": (f"solve {SIZE} --model '' {WRITING}", "model: ''"),
    "model: a path": (f"solve --model ../models/zb-1.5b-m24 {WRITING}", "--config"),
    "config: missing": (f"solve --config none.yaml {WRITING}", "none.yaml"),
    "config: folder": (f"solve --config folder.json {WRITING}", "folder.json"),
    "config: empty name": (f"solve {SIZE} --config '' {WRITING}", "is a folder, not a config"),
    "config: of no kind": (f"solve --config /dev/null {WRITING}", "/dev/null"),
    "config: a schedule": (
        f"solve --config good.json {WRITING}",
        "good.json: is a schedule, not a config",
    ),
    # outputs
    "output: unknown ending": (f"solve {SIZE} -o out.xlsx", "out.xlsx"),
    "output: no ending": (f"solve {SIZE} -o out", "out"),
    "output: empty": (f"solve {SIZE} -o ''", "empty"),
    "output: two lines": (f"solve {SIZE} -o 'a\nb.json'", "'a\\nb.json'"),
    "output: no folder": (f"solve {SIZE} -o none/out.json", "none"),
    "output: a folder": (f"solve {SIZE} -o folder.json", "folder.json"),
    "output: below a file": (f"solve {SIZE} -o good.yaml/out.json", "good.yaml"),
    "output: in no real folder": (f"solve {SIZE} -o /proc/out.json", "/proc/out.json"),
    "output: a device": (f"solve {SIZE} -o /dev/full", "/dev/full"),
    "output: long name": (f"solve {SIZE} -o {'a' * 300}.json", "aaa"),
    "output: one of two not real": (f"solve {SIZE} -o out.json -o /proc/a.json", "/proc/a.json"),
    "output: one of two": (f"solve {SIZE} -o out.json -o out.xlsx", "out.xlsx"),
    "output: one of two, folder": (f"solve {SIZE} -o out.html -o none/out.json", "none"),
    "output: a picture, no input": ("solve -o out.png", "--stages"),
    "view: not a page": ("view good.json -o out.json", "out.json"),
    "view: no folder": ("view good.json -o none/out.html", "none"),
    "view: two lines": ("view good.json -o 'a\nb/out.html'", "does not exist"),
    # schedule files
    "verify: missing": ("verify none.json", "none.json"),
    "verify: folder": ("verify folder.json", "folder.json"),
    "verify: not JSON": ("verify good.yaml", "good.yaml: not a schedule file"),
    "verify: as JSON": ("verify none.json --json", "none.json"),
    "verify: two": ("verify good.json good.json", "good.json"),
    "view: one of two missing": ("view good.json none.json -o out.html", "none.json"),
    "view: a page": ("view good.yaml -o out.html", "good.yaml: not a schedule file"),
    # sweeps
    "sweep: large": (f"{SWEEP} batches=1e999999999", "'1e999999999' is out of range"),
    "sweep: fine": (f"{SWEEP} p2p_time=1,1e-999999999", "'1e-999999999' is out of range"),
    "sweep: beyond decimals": (f"{SWEEP} seed=1e{HUGE}", "is out of range"),
    "sweep: many digits": (f"{SWEEP} batches={HUGE}", "is out of range"),
    "sweep: large for a float": (f"{SWEEP} p2p_time=1{'0' * 400}.5", "is out of range"),
    "sweep: range": (f"{SWEEP} 'batches=range(0,1e999999999)'", "'1e999999999' is out of range"),
    "sweep: deep": (f"{SWEEP} partition={'[' * 500}1{']' * 500}", "nested too deeply"),
    "sweep: long": (f"{SWEEP} {'x' * 5000}", "is no sweep of a setting"),
    "studies: unprintable": ("studies '\u202e'", "\\u202e: write `ppopt studies show"),
}


@pytest.mark.parametrize("case", LINES)
def test_lines(case: str, folder: Path) -> None:
    refused(folder, *LINES[case])


CONFIGS: dict[str, tuple[str, str | bytes, str]] = {
    **ONE_FORMAT,
    "yaml: UTF-16": (".yaml", "stages: 2".encode("utf-16"), "not UTF-8"),
    "yaml: very many keys": (
        ".yaml",
        "stages: 2\n" + "".join(f"{i:x}a: 1\n" for i in range(9000)),
        "more than 1000 keys",
    ),
    "json: very many keys": (
        ".json",
        json.dumps({f"{i:x}a": 1 for i in range(8000)}),
        "unknown key '0a'",
    ),
    "yaml: B above BW": (
        ".yaml",
        "stages: 2\nbatches: 2\nbackward_input: 3\nbackward: 2",
        "input_times: stage 0: 3 is above the full backward time 2",
    ),
    "yaml: output": (".yaml", "stages: 2\nbatches: 2\noutput: a.xlsx", "a.xlsx"),
    "yaml: picture, then a fault": (".yaml", "stages: 2\noutput: a.png", "batches: missing"),
    "yaml: seeds": (".yaml", "num_stages: 2\nnum_batches: 2\nforward_times: [1]\nx: 1", "'x'"),
}


@pytest.mark.parametrize(
    ("case", "command"),
    list(zip(CONFIGS, cycle(("solve", "eval 1f1b", "compare")), strict=False)),
)
def test_configs(case: str, command: str, folder: Path) -> None:
    """Commands take turns: all read a config by the same code."""
    suffix, text, message = CONFIGS[case]
    path = folder / f"config{suffix}"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(folder, f"{command} --config {path.name}", message)


@pytest.mark.parametrize("index", first(20, range(len(BAD_VALUES))))
def test_schedule_files(index: int, folder: Path) -> None:
    path, value, message = BAD_VALUES[index]
    (folder / "bad.json").write_text(json.dumps(changed(path, value)))
    for line in (
        "verify bad.json",
        "verify bad.json --json",
        "view good.json bad.json -o out.html",
    ):
        refused(folder, line, message)


@pytest.mark.parametrize("name", ["good.yaml", "config.json"])
@pytest.mark.parametrize(
    "command", ["verify", "check", "view -o x.html", "export --to json -o x.json", "run"]
)
def test_a_config_is_no_schedule_file(command: str, name: str, folder: Path) -> None:
    (folder / "config.json").write_text('{"stages": 2, "batches": 2}')
    message = (
        f"{name}: not a schedule file; `ppopt solve --config {name} -o best.json` makes one of a "
        "config"
    )
    refused(folder, f"{command} {name}", message)


def test_a_page_without_plotly_is_refused_before_the_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "find_spec", lambda _: None)
    for command in (f"solve {SIZE}", "run good.json", "view good.json"):
        message = "-o: x.html: needs plotly; run `pip install plotly`"
        refused(folder, f"{command} -o x.html", message)
    refused(folder, f"solve {SIZE} -o x.png", "x.png: needs resvg-py; run `pip install resvg-py`")


def test_bytes_that_are_no_text(folder: Path) -> None:
    (folder / "bad.json").write_bytes(TWO_BY_ONE.encode("utf-16"))
    refused(folder, "verify bad.json", "not UTF-8")


def test_the_good_files_are_good(folder: Path) -> None:
    """What the tables change is sound before it is changed."""
    assert run("verify good.json").code == 0
    assert run("view good.json good.json -o out.html").code == 0
    assert run(f"solve --config good.yaml {WRITING}").code == 0
    assert json.loads((folder / "out.json").read_text())["schema"] == 2


@pytest.mark.parametrize("case", first(1, ["config: missing", "unknown option", "no file"]))
def test_in_a_process_of_its_own(case: str, folder: Path) -> None:
    line, message = LINES[case]
    command = process(line)
    out, err = command.communicate(timeout=HANGS)
    assert (command.returncode, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err


class TestSeveralFaults:
    """All faults of a file that do not depend on each other, in one line that names the file."""

    def refused(self, tmp_path: Path, text: str, more: str = "") -> str:
        file = tmp_path / "p.yaml"
        file.write_text(f"stages: 2\nbatches: 4\n{text}")
        ran = run(f"solve --config {file} {more}")
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        return ran.err.replace(str(file), "p.yaml").removeprefix("error: ").rstrip()

    def test_of_keys(self, tmp_path: Path) -> None:
        text = "stagez: 2\nseed: x\nforward_times: true\n"
        assert self.refused(tmp_path, text) == (
            "p.yaml: unknown key 'stagez'; did you mean stages?; also seed: 'x' is not a whole "
            "number; also forward_times: True is not a number"
        )

    def test_of_values_the_file_named_once_and_flags_as_flags(self, tmp_path: Path) -> None:
        text = "forward_times: [1, 2, 3]\np2p_time: -1\nmem_limit: [1]\n"
        three = "has 3 entries for 2 stages; give one number, or one per stage"
        fault = "mem_limit: has 1 entries for 2 devices; give one number, or one per device"
        assert self.refused(tmp_path, text) == (
            f"p.yaml: forward_times: {three}; also p2p_time: -1 is negative; also {fault}"
        )
        assert self.refused(tmp_path, text, "--forward-times 1,2,3") == (
            f"--forward-times: {three}; also p.yaml: p2p_time: -1 is negative; also {fault}"
        )

    def test_of_layers(self, tmp_path: Path) -> None:
        layers = "layers:\n- {forwrd: 1}\n- {forward: x y}\n- {forward: 1, static: []}\n"
        error = self.refused(tmp_path, layers)
        assert error == (
            "p.yaml: layers: layer 0: unknown key 'forwrd'; did you mean forward?; also layer 2: "
            "static: [] is not a number"
        )

    @pytest.mark.parametrize(
        ("key", "names"), [("weight", ("weight", "input")), ("input", ("input", "weight"))]
    )
    def test_of_times_of_a_layer_by_the_keys_of_layers(
        self, tmp_path: Path, key: str, names: tuple[str, str]
    ) -> None:
        """`input_times` is a key of stages; a file with the key that is named is accepted."""
        layer = f"forward: 1, backward: 2, {key}: 3"
        first, second = names
        assert self.refused(tmp_path, f"layers: [{{forward: 1}}, {{{layer}}}]\n") == (
            f"p.yaml: layers: layer 1: {first}: 3 is above the full backward time 2, which leaves "
            f"less than 0 for {second}; give {second} too: B, W and BW may be any times"
        )
        mended = f"stages: 1\nbatches: 1\nlayers: [{{{layer}, {second}: 1}}]\n"
        (tmp_path / "mended.yaml").write_text(mended)
        assert run(f"eval 1f1b --config {tmp_path / 'mended.yaml'}").code == 0

    def test_the_first_five_are_named(self, tmp_path: Path) -> None:
        error = self.refused(tmp_path, "".join(f"zz{index}: 1\n" for index in range(8)))
        assert error.count("unknown key") == 5
        assert error.endswith("; also 3 more")

    def test_what_is_not_named_is_only_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The nearest key is sought for five of 100: it took 40 s for 80,000 unknown keys."""
        asked = []
        monkeypatch.setattr(fields, "nearest", lambda key, _: asked.append(key) or "stages")
        with pytest.raises(InputError, match=r"; also 95 more$"):
            canonical({f"zz{index}": 1 for index in range(100)})
        assert asked == [f"zz{index}" for index in range(5)]
