"""Models in layers on the command line: partitions, what is shown, what is kept in files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import ppopt
from ppopt.derivation.gpus import gpus
from ppopt.report.numbers import NONE
from tests.cli.cli_run import done, json_of, run
from tests.factories.configs import LLAMA_8B

MODEL = """
stages: 2
batches: 4
layers:
- {name: embed, role: embedding, forward: 1, activation: 1, static: 5}
- {name: block, forward: 2, activation: 3, static: 2, count: 4}
- {name: head, role: head, forward: 4, activation: 2, static: 4}
"""
BALANCED = [4, 2]
"""Work 3, 6 x 4, 12, in all 39: 3 + 3 x 6 = 21 is the least largest half."""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The words that name a model of an embedding, four blocks and a head twice as long."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(MODEL)
    return "--config mine.yaml"


@pytest.mark.parametrize("command", ["solve", "eval 1f1b"])
def test_the_partition_is_balanced_unless_told(config: str, command: str) -> None:
    output = json_of(f"{command} {config}")
    assert (output["partition"], output["layout"]) == (BALANCED, "Et*3|tL")
    assert (output["placement"], output["chunks"]) == ("linear", 1)
    assert output["schedule"]["pipeline"]["forward_times"] == [7, 6]


@pytest.mark.parametrize(
    ("partition", "counts"),
    [
        ("even", [3, 3]),
        ("EVEN", [3, 3]),
        ("balanced", BALANCED),
        ("5,1", [5, 1]),
        ("5, 1", [5, 1]),
        ("Et*4|L", [5, 1]),
        ("E,t|(t)*3,L", [2, 4]),
    ],
)
def test_partitions(config: str, partition: str, counts: list[int]) -> None:
    output = json_of(f"eval gpipe {config} --partition '{partition}'")
    assert output["partition"] == counts


def test_counts_and_layouts_make_chunks(config: str) -> None:
    """Stage mod devices, as Megatron-LM places a layout."""
    output = json_of(f"solve {config} --partition 'Et|t|t|tL'")
    assert (output["placement"], output["chunks"]) == ("interleaved", 2)
    assert output["schedule"]["pipeline"]["placement"] == [0, 1, 0, 1]
    assert json_of(f"solve {config} --partition 2,1,1,2 --placement v --quiet")["chunks"] == 2


RANKS = "--partition-order ranks"


def test_a_list_by_rank(config: str) -> None:
    """Device 0 has stages 0 and 2, or on a v stages 0 and 3: the placement of the strategy."""
    line = f"{config} --partition 2,2,1,1 --quiet"
    assert json_of(f"eval interleaved {line}")["partition"] == [2, 2, 1, 1]
    assert json_of(f"eval interleaved {line} {RANKS}")["partition"] == [2, 1, 2, 1]
    assert json_of(f"eval zbv {line} {RANKS}")["partition"] == [2, 1, 1, 2]
    assert json_of(f"solve {line} --placement v {RANKS}")["partition"] == [2, 1, 1, 2]


def test_a_partition_by_flag_replaces_the_order_of_the_config(config: str) -> None:
    Path("ranks.yaml").write_text(MODEL + "partition: [2, 2, 1, 1]\npartition_order: ranks\n")
    ranks = config.replace("mine", "ranks")
    assert json_of(f"eval interleaved {ranks}")["partition"] == [2, 1, 2, 1]
    line = f"eval interleaved {ranks} --partition 2,2,1,1 --quiet"
    assert json_of(line)["partition"] == [2, 2, 1, 1]
    assert json_of(f"{line} {RANKS}")["partition"] == [2, 1, 2, 1]


def test_a_note_says_how_a_list_is_read_that_implies_chunks(config: str) -> None:
    line = f"eval interleaved {config} --partition 2,2,1,1"
    assert done(line).err == (
        "note: partition: 4 counts for 2 devices are those of stages 0, 1, ..., with 2 chunks per "
        "device; `--partition-order ranks` reads those of device 0 first\n"
    )
    for stated in ("--chunks 2", RANKS, "--partition-order stages", "--quiet"):
        assert done(f"{line} {stated}").err == ""


def test_stages_are_devices_with_a_placement_list_too(config: str) -> None:
    output = json_of(f"solve {config} --placement 0,1,1,0 --partition 1,2,2,1")
    assert output["partition"] == [1, 2, 2, 1]
    assert output["schedule"]["pipeline"]["devices"] == 2


def test_compare_cuts_the_layers_anew_for_every_placement(config: str) -> None:
    output = json_of(f"compare {config}")
    rows = {row["strategy"]: row for row in output["rows"]}
    assert rows["1f1b"]["partition"] == rows["searched"]["partition"] == BALANCED
    assert sum(rows["zbv"]["partition"]) == 6
    assert len(rows["zbv"]["partition"]) == 4
    stdout = done(f"compare {config} --details").out
    assert re.search(r"^1f1b +4 2 +Et\*3\|tL$", stdout, re.MULTILINE)


def test_there_is_no_partition_without_layers() -> None:
    output = json_of("solve --stages 2 --batches 2")
    assert (output["partition"], output["layout"]) == (None, None)


def test_files_keep_the_layers(config: str) -> None:
    done(f"solve {config} --mem-limit -o made.json -o made.html")
    schedule, claims = ppopt.read_schedule("made.json")
    expected = ppopt.read_model("mine.yaml").pipeline(devices=2, batches=4, mem_limit="1f1b")
    assert schedule.pipeline == expected
    assert ppopt.verify(schedule, claims) == []
    assert "made.json: 4 2 layers, Et*3|tL\n" in done("verify made.json").out
    assert json_of("verify made.json")["partition"] == BALANCED
    assert '<dd class="value">4 2 layers</dd>' in Path("made.html").read_text()
    assert done("check made.json").code == 0
    assert json_of("solve --hint made.json")["partition"] == BALANCED


def test_a_search_from_a_hint_may_leave_its_partition_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first layer takes as long as three others: the file's partition is not the best one.

    Two activations of device 0 are over its limit of 3: one of its layers recomputes.
    """
    monkeypatch.chdir(tmp_path)
    layers = "[{forward: 3, activation: 1}, {count: 2, forward: 1, activation: 1}]"
    Path("mine.yaml").write_text(f"{{stages: 2, batches: 2, layers: {layers}}}")
    done("eval 1f1b --config mine.yaml --partition 2,1 -o made.json")
    line = "solve --hint made.json --workers 1"
    closed, searched = json_of(line), json_of(f"{line} --partition search")
    assert (closed["partition"], searched["partition"]) == ([2, 1], [1, 2])
    assert searched["value"] < closed["value"]
    assert "recompute" in done(f"{line} --recompute search --mem-limit 3").out


def test_a_hint_has_the_pipeline(config: str) -> None:
    done(f"eval 1f1b {config} -o made.json")
    refused = run("solve --hint made.json --p2p-time 1")
    assert refused.code == 2
    assert refused.err.startswith("error: --p2p-time: of the pipeline of the hint only")


def test_readers_that_know_no_layers_find_the_costs_of_stages(config: str) -> None:
    """All that a file says of layers is a member of its origin."""
    done(f"solve {config} -o made.json")
    file = json.loads(Path("made.json").read_text())
    assert file["origin"].pop("model")["counts"] == BALANCED
    Path("plain.json").write_text(json.dumps(file))
    plain, claims = ppopt.read_schedule("plain.json")
    assert plain.pipeline == ppopt.read_schedule("made.json")[0].pipeline.without_model()
    assert ppopt.verify(plain, claims) == []


REFUSED = {
    "rule": ("--partition serch", "'serch' is unknown; use even, balanced, search"),
    "rule of DeepSpeed": ("--partition type:block", "a rule of DeepSpeed's; give what it makes"),
    "empty": ("--partition ''", "stage 0 of 1 is empty"),
    "empty stage": ("--partition 'EttttL|'", "stage 1 of 2 is empty; only stages between"),
    "count of nothing": ("--partition 6,0", "stage 1 of 2 is empty; only stages between"),
    "negative": ("--partition -1,7", "stage 0: -1 layers is below 0"),
    "no count": ("--partition 3,,3", "'' is not a whole number"),
    "too few layers counted": (
        "--partition 3,2",
        "add up to 5; count all layers, 6, or the decoder layers alone, 4",
    ),
    "stages": (
        "--partition 2,2,2",
        "has 3 stages, the placement 2; give one count per stage, devices x chunks, or `balanced` "
        "or `search` in place of counts",
    ),
    "other layers": ("--partition 'Ett|ttmL'", "the layout names 1 E, 4 t, 1 m, 1 L; the model"),
    "order": ("--partition 'ttE|ttL'", "the layout's order is ttEttL; the model's Et*4L"),
    "letter": ("--partition 'Ett|xxL'", "at 'xxL': layers are E (embedding)"),
    "bracket": ("--partition '(Ett|ttL'", "a bracket is open"),
    "huge": ("--partition 'Et*999999999L'", "more than 4096 layers"),
    "devices": ("--stages 7", "6 layers for 7 stages"),
    "chunks": ("--chunks 4", "6 layers for 8 stages"),
    "devices of a list": ("--placement 0,1,2,1", "the list has 3 devices; stages says 2"),
    "times": ("--forward-times 2", "forward-times: the layers give the costs; leave it out"),
    "memory": ("--activation 2,3", "activation: the layers give the costs; leave it out"),
    "strategy": ("--partition 3,3 --chunks 2", "has 2 stages, the placement 4"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(config: str, case: str) -> None:
    flags, message = REFUSED[case]
    ran = run(f"solve {config} --json -o out.json {flags}")
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert not Path("out.json").exists()


FILES = {
    "not a list": ("layers: 3", "layers: 3 is not a list of layers"),
    "no layer": ("layers: [3]", "layers: layer 0: 3 is no layer"),
    "empty": ("layers: []", "layers: the list is empty"),
    "no forward": ("layers: [{name: x}]", "layer 0 (x): forward: missing"),
    "unknown key": ("layers: [{foward: 1}]", "layer 0: unknown key 'foward'; did you mean forward"),
    "twice": ("layers: [{input: 1, backward_input: 1}]", "input is given twice"),
    "no number": ("layers: [{forward: x}]", "layer 0: forward: 'x' is not a number"),
    "boolean": ("layers: [{forward: true}]", "layer 0: forward: True is not a number"),
    "zero": ("layers: [{forward: 0}]", "layer 0: forward: 0 is not above 0"),
    "negative": ("layers: [{forward: 1, static: -1}]", "layer 0: static: -1 is negative"),
    "role": ("layers: [{forward: 1, role: encoder}]", "'encoder' is unknown; use embedding,"),
    "count": ("layers: [{forward: 1, count: 0}]", "layer 0: count: 0 is below 1"),
    "counts": ("layers: [{forward: 1, count: 5000}]", "count: 5000 is not within 1 .. 4096"),
    "name": ("layers: [{forward: 1, name: 3}]", "layer 0: name: 3 is not text"),
    "partition": ("layers: [{forward: 1}]\npartition: 3", "partition: 3 is not text"),
    "counts of text": ("layers: [{forward: 1}]\npartition: [a]", "'a' is not a whole number"),
    "limit": (
        "stages: 1\nbatches: 2\nlayers: [{forward: 1}]\nmem_limit: 3",
        "mem_limit: no layer gives its activation",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_refused_files(tmp_path: Path, case: str) -> None:
    text, message = FILES[case]
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    ran = run("solve --stages 1 --batches 1 --config", path)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_partition_without_layers() -> None:
    ran = run("solve --stages 2 --batches 2 --partition even")
    assert ran.code == 2
    assert "partition: needs a model in layers" in ran.err


UNEQUAL = "--stages 2 --batches 2 --forward-times 1,2"


@pytest.mark.parametrize(
    "line",
    [
        f"solve {UNEQUAL} --chunks 2",
        f"solve {UNEQUAL} --placement v",
        "eval zbv --stages 2 --batches 2 --static 0,1",
    ],
)
def test_a_note_says_that_unequal_shares_are_cut_equally(line: str) -> None:
    (notes,) = done(line).err.splitlines()
    assert notes == (
        "note: chunks: stages differ, and each is cut into 2 equal chunks; a model in `layers:` is "
        "cut where its layers are"
    )


@pytest.mark.parametrize(
    "line", [f"solve {UNEQUAL}", "solve --stages 2 --batches 2 --chunks 2", f"eval gpipe {UNEQUAL}"]
)
def test_no_note_where_nothing_is_assumed(line: str) -> None:
    assert done(line).err == ""


class TestInit:
    def test_the_file_runs_as_it_is(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert done("init mine.yaml").err.startswith("mine.yaml: written")
        text = Path("mine.yaml").read_text()
        assert "ppopt solve --config mine.yaml" in text
        assert json_of("solve --config mine.yaml --time-limit 30")["status"] == "optimal"

    def test_what_is_commented_out_runs_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every line of the form `# key: value` is a setting that may be used."""
        monkeypatch.chdir(tmp_path)
        text = done("init").out
        keys = ("placement", "chunks", "partition", "mem_limit")
        lines = [
            line.removeprefix("# ")
            for line in text.splitlines()
            if line.removeprefix("# ").partition(":")[0] in keys
        ]
        assert len(lines) == 6
        for line in lines:
            Path("tried.yaml").write_text(f"{text}{line}\n")
            strategy = {"placement: v": "zbv", "chunks: 2": "interleaved"}
            done(f"eval {strategy.get(line.split('  ')[0].strip(), '1f1b')} --config tried.yaml")

    def test_costs_of_layers_that_are_commented_out_run_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        keys = ("unshard", "unshard_memory", "gradient_sync", "optimizer", "optimizer_barrier")
        text, used = done("init").out, set()
        for line in text.splitlines():
            key = line.lstrip().removeprefix("# ").partition(":")[0]
            if line.lstrip().startswith("#") and key in keys:
                used.add(key)
                text = text.replace(line, line.replace("# ", "", 1))
        Path("tried.yaml").write_text(text)
        output = json_of("eval 1f1b --config tried.yaml")
        assert used == {*keys}
        assert output["exposed"] > 0

    def test_phases_that_are_commented_out_run_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        text = done("init").out
        before = text[: text.index("    forward: 1.1")]
        phases = text[text.index("    # phases:") : text.index("    # workspace: 20")]
        after = text[text.index("    # workspace: 20") :]
        tried = f"{before}    activation: 170\n{phases.replace('# ', '')}{after}"
        Path("tried.yaml").write_text(tried)
        whole, paired = (
            json_of(f"eval {name} --config tried.yaml") for name in ("1f1b", "1f1b-overlap")
        )
        assert paired["makespan"] < whole["makespan"]

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("there.yaml", "there.yaml: exists already"),
            ("mine.json", "the file is YAML"),
            ("nowhere/mine.yaml", "the folder nowhere does not exist"),
        ],
    )
    def test_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "there.yaml").write_text("mine")
        ran = run(f"init {name}")
        assert (ran.code, ran.out) == (2, "")
        assert message in ran.err
        assert (tmp_path / "there.yaml").read_text() == "mine"


@pytest.fixture
def llama_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The config.json of Llama 3.1 8B, in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = Path("config.json")
    path.write_text(json.dumps(LLAMA_8B))
    return path


class TestInitFromAConfiguration:
    def test_the_file_runs_as_it_is(self, llama_json: Path) -> None:
        Path("alone.toml").write_text('like = "h100"\nmatrix_efficiency = 0.748\nlaunch_time = 0\n')
        line = f"init mine.yaml --from {llama_json} --gpu alone.toml --data 8 --sequence 8192"
        stderr = done(line).err
        assert "8,030,261,248 parameters; 32 GPUs" in stderr
        installed, derived = (
            json_of(f"eval 1f1b {source}")
            for source in ("--model llama-3.1-8b", "--config mine.yaml")
        )
        # Its transfers wait, and it has what happens once in a step
        assert derived["exposed"] > 0 and installed["exposed"] is None
        without = derived["makespan"] - derived["exposed"]
        assert installed["makespan"] < without < 1.01 * installed["makespan"]
        assert derived["mem_limit"] == [75366] * 4  # 0.92 x 80 GiB

    def test_the_file_names_the_command_that_lists_its_kernels(self, llama_json: Path) -> None:
        """With every option of the file, quoted for a shell; it runs as it is."""
        folder = Path("my model")
        folder.mkdir()
        llama_json.rename(folder / "config.json")
        options = "--gpu h100 --tensor 2 --freeze embedding,head --no-sequence-parallel"
        done(f"init mine.yaml --from 'my model' {options}")
        (line,) = re.findall(r"^#   ppopt (init .*)$", Path("mine.yaml").read_text(), re.MULTILINE)
        assert "'my model'" in line and all(word in line for word in options.split())
        listed, expected = (
            done(text).out for text in (line, f"init --explain --from 'my model' {options}")
        )
        assert listed == expected and "block" in listed

    def test_a_command_that_is_not_one_line_is_no_comment(self, llama_json: Path) -> None:
        Path("a\nb").mkdir()
        llama_json.rename("a\nb/config.json")
        done("init mine.yaml --from 'a\nb' --gpu h100")
        assert "--explain" not in Path("mine.yaml").read_text()
        assert json_of("eval 1f1b --config mine.yaml")["makespan"] > 0

    def test_a_measured_step_sets_the_efficiency(self, llama_json: Path) -> None:
        line = f"init mine.yaml --from {llama_json} --gpu h100 --calibrate 3000"
        done(f"{line} --partition Et*8|t*8|t*8|t*8L --link bandwidth=900GB/s")
        output = json_of("eval 1f1b --config mine.yaml")
        assert output["makespan"] == pytest.approx(3000, rel=1e-4)
        assert output["partition"] == [9, 8, 8, 9]

    def test_a_gpu_of_ones_own(self, llama_json: Path) -> None:
        Path("my-gpu.toml").write_text('like = "h100"\nmemory = "96GiB"')
        done(f"init mine.yaml --from {llama_json} --gpu my-gpu.toml")
        assert json_of("eval 1f1b --config mine.yaml")["mem_limit"] == [90439] * 4  # 0.92 x 96

    def test_a_bare_gpu_lists_the_gpus(self) -> None:
        lines = done("init --gpu").out.splitlines()
        rows = {cells[0]: cells[1:] for cells in map(str.split, lines) if cells}
        assert set(gpus()) <= set(rows)
        assert rows["h100"][:8] == ["989.4", "1978.9", NONE, "80", "3.35", "8", "450", "50"]

    def test_without_a_file_it_is_printed(self, llama_json: Path) -> None:
        assert "layers:" in done(f"init --from {llama_json} --gpu b200").out

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ("--from config.json", "gpu: missing; give --gpu h100"),
            ("--from nowhere.json --gpu h100", "nowhere.json: cannot be read"),
            ("--gpu h100 --calibrate 3", "gpu, calibrate: only with --from config.json"),
            ("--gpu", "gpu: only with --from config.json"),
            ("--gpu --from config.json", "gpu: name one; known are v100, a100"),
            ("--from config.json --gpu own.toml", "own.toml: cannot be read"),
            ("--from config.json --gpu typo.toml", "typo.toml: unknown key 'memroy'; did you"),
            ("--from config.json --gpu h10", "did you mean h100"),
            (
                "--from config.json --gpu h100 --efficiency 0.3 --calibrate 3",
                "leave one of them out",
            ),
            (
                "--from config.json --gpu h100 --calibrate 3",
                "3 ms is over 20 times faster than derived",
            ),
            ("--from config.json --gpu h100 --partition 9,9", "partition"),
        ],
    )
    @pytest.mark.usefixtures("llama_json")
    def test_refused(self, options: str, message: str) -> None:
        Path("typo.toml").write_text("memroy = 80")
        ran = run(f"init mine.yaml {options}")
        assert (ran.code, ran.out) == (2, "")
        assert message in ran.err and ran.err.count("\n") == 1
        assert not Path("mine.yaml").exists()
