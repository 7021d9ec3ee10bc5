"""Every way in which a config file can be wrong is told on one line that names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppopt.errors import InputError
from ppopt.formats.config import LARGEST_FILE, parse_config, pipeline_of, read_config
from tests.formats.config_text import as_text, refuse, write

ANY_FORMAT = {
    "unknown key": (("num_stage", 4), "unknown key 'num_stage'; did you mean num_stages?"),
    "unknown key, dashed": (("p2p-tme", 4), "unknown key 'p2p-tme'; did you mean p2p_time?"),
    "unknown key, case": (("Batches", 4), "unknown key 'Batches'; did you mean batches?"),
    "bool for an int": (("stages", True), "stages: True is not a whole number"),
    "text for an int": (("stages", "4"), "stages: '4' is not a whole number"),
    "fraction for an int": (("num_stages", 4.5), "num_stages: 4.5 is not a whole number"),
    "whole fraction for an int": (("batches", 8.0), "batches: 8.0 is not a whole number"),
    "list for an int": (("chunks", [2]), "chunks: [2] is not a whole number"),
    "huge int": (("stages", 10**30), "stages: the number is out of range"),
    "huge time": (("forward", 10**13), "forward: the number is too large"),
    "overlap": (("overlap", True), "overlap: True is not a number"),
    "slices": (("slices", 1.5), "slices: 1.5 is not a whole number"),
    "routes": (("routes", "two"), "routes: 'two' is not a whole number"),
    "bool for a number": (("p2p", False), "p2p: False is not a number"),
    "bool in a list": (("forward", [1, True]), "forward: entry 1: True is not a number"),
    "mapping for a number": (("forward", {"0": 1}), "forward: {'0': 1} is not a number"),
    "list in a list": (("activation", [[1]]), "activation: entry 0: [1] is not a number"),
    "too deep a matrix": (("p2p", [[0, [1]]]), "p2p: entry 0: entry 1: [1] is not a number"),
    "long text for a number": (("static", "1" * 61), "static: '11111"),
    "bool for a limit": (("mem_limit", False), "mem_limit: False is not a number"),
    "fraction in a placement": (("placement", [0, 1.5]), "placement: entry 1: 1.5 is not a whole"),
    "number for a placement": (("placement", 2), "placement: 2 is not text"),
    "number for text": (("name", 5), "name: 5 is not text"),
    "two lines of text": (("name", "a\nb"), "name: 'a\\nb' holds a control character"),
    "source": (("source", ["a"]), "source: ['a'] is not text"),
    "objective": (
        ("objective", "speed"),
        "objective: 'speed' is unknown; use makespan or device-sp",
    ),
    "objective of no type": (("objective", ["a"]), "objective: ['a'] is unknown"),
    "text for a bool": (("fused", "yes"), "fused: 'yes' is neither true nor false"),
    "int for a bool": (("fused", 1), "fused: 1 is neither true nor false"),
    "no workers": (("workers", 0), "workers: 0 is below 1"),
    "negative seed": (("seed", -1), "seed: -1 is below 0"),
    "group size": (("group_size", 0), "group_size: 0 is below 1"),
    "waves": (("waves", 0), "waves: 0 is below 1"),
    "no time": (("time_limit", 0), "time_limit: 0 is not above 0"),
    "negative time": (("time_limit", -1.5), "time_limit: -1.5 is not above 0"),
    "time": (("time_limit", "soon"), "time_limit: seconds: 'soon' is not a number"),
    "file": (("output", 5), "output: 5 is not text"),
    "file in a list": (("output", ["a", 5]), "output: 5 is not text"),
    "empty file name": (("output", ""), "output: a file name is empty"),
}


@pytest.mark.parametrize("suffix", [".yaml", ".json", ".toml"])
@pytest.mark.parametrize("case", ANY_FORMAT)
def test_refused_in_any_format(suffix: str, case: str) -> None:
    (key, value), expected = ANY_FORMAT[case]
    text = as_text(suffix, key, value)
    if suffix == ".toml" and isinstance(value, dict):
        text = 'forward = {"0" = 1}'
    assert f"conf/x.cfg: {expected}" in refuse(text, suffix)


DEEP = "[" * 100_000
DIGITS = "9" * 5000
ONE_FORMAT = {
    "yaml: list": (".yaml", "- 1\n- 2", "holds [1, 2], not settings"),
    "yaml: text": (".yaml", "hello", "holds 'hello', not settings"),
    "yaml: comment": (".yaml", "# nothing\n", "holds no settings"),
    "yaml: malformed": (".yaml", "stages: 4\nbatches: [1, 2\n", "line 3: "),
    "yaml: tab": (".yaml", "stages: 4\n\tbatches: 2", "line 2: "),
    "yaml: twice": (".yaml", "stages: 4\n\nstages: 4", "line 3: key 'stages' is given twice"),
    "yaml: two documents": (".yaml", "stages: 4\n---\nstages: 4", "another document"),
    "yaml: alias": (".yaml", "forward: &a [1]\nweight: *a", "line 2: aliases (*name) are not"),
    "yaml: bomb": (".yaml", "a: &a [1]\nb: &b [*a, *a]\nc: [*b, *b]", "line 2: aliases"),
    "yaml: loop": (".yaml", "forward: &a [*a]", "line 1: aliases"),
    "yaml: merge": (".yaml", "<<: {stages: 4}", "unknown key '<<'"),
    "yaml: object": (".yaml", "a: !!python/object/apply:os.system [ls]", "line 1: tags (!name)"),
    "yaml: tag": (".yaml", "stages: !!int '4'", "line 1: tags (!name) are not accepted"),
    "yaml: key is a number": (".yaml", "4: stages", "line 1: key 4 is not a word"),
    "yaml: key is a list": (".yaml", "? [1]\n: 2", "line 1: key [1] is not a word"),
    "yaml: key twice within": (".yaml", "p2p: {a: 1, a: 2}", "line 1: key 'a' is given twice"),
    "yaml: control": (".yaml", "stages: 4\nname: \x07", "line 2: not YAML: special characters"),
    "yaml: deep": (".yaml", f"p2p: {DEEP[:1000]}", "nested too deeply"),
    "yaml: digits": (".yaml", f"stages: {DIGITS}", "a number or a character code is out of ran"),
    "yaml: exponent": (".yaml", f"p2p: 1e{DIGITS}", "a number or a character code is out of ra"),
    "yaml: no character": (".yaml", 'name: "\\U00110000"', "a character code is out of range"),
    "yaml: half a pair": (".yaml", 'name: "\\ud800"', "half of a surrogate pair"),
    "yaml: null in a list": (".yaml", "forward: [1, null]", "forward: entry 1: None is not a nu"),
    "yaml: null key": (".yaml", "~: 3", "key None is not a word"),
    "json: list": (".json", "[1, 2]", "holds [1, 2], not settings"),
    "json: number": (".json", "4", "holds 4, not settings"),
    "json: null": (".json", "null", "holds no settings"),
    "json: malformed": (".json", '{"stages": 4,\n"batches" 2}', "line 2: not JSON: Expecting ':'"),
    "json: cut short": (".json", '{"stages": 4', "line 1: not JSON"),
    "json: twice": (".json", '{"stages": 4, "stages": 4}', "key 'stages' is given twice"),
    "json: NaN": (".json", '{"p2p": NaN}', "NaN is not a number that JSON knows"),
    "json: infinity": (".json", '{"p2p": -Infinity}', "-Infinity is not a number that JSON"),
    "json: deep": (".json", f'{{"p2p": {DEEP}', "nested too deeply"),
    "json: digits": (".json", f'{{"stages": {DIGITS}}}', "a number or a character code is out"),
    "json: exponent": (".json", f'{{"p2p": 1e{DIGITS}}}', "a number or a character code is out"),
    "json: half a pair": (".json", '{"name": "\\ud800"}', "half of a surrogate pair"),
    "json: empty key": (".json", '{"": 1}', "unknown key ''; did you mean"),
    "json: long key": (".json", f'{{"{"x" * 10**5}": 1}}', "unknown key 'xxxxx"),
    "toml: malformed": (".toml", "stages = 4\nbatches = = 2", "not TOML: Invalid value (at line 2"),
    "toml: twice": (".toml", "stages = 4\nstages = 4", "not TOML: Cannot overwrite a value (at"),
    "toml: table": (".toml", "[stages]\na = 1", "stages: {'a': 1} is not a whole number"),
    "toml: deep": (".toml", f"p2p = {DEEP}", "nested too deeply"),
    "toml: digits": (".toml", f"stages = {DIGITS}", "a number or a character code is out of ra"),
    "toml: exponent": (".toml", f"p2p = 1e{DIGITS}", "a number or a character code is out of r"),
    "toml: date": (".toml", "stages = 2024-05-01", "is not a whole number"),
    "suffix": (
        ".ini",
        "stages=4",
        "unknown kind of config; name it .yaml, .yml, .json, .toml, .csv",
    ),
    "no suffix": ("", "stages: 4", "unknown kind of config"),
}


@pytest.mark.parametrize("case", ONE_FORMAT)
def test_refused(case: str) -> None:
    suffix, text, expected = ONE_FORMAT[case]
    assert expected in refuse(text, suffix)


@pytest.mark.parametrize(
    ("suffix", "word"), [(".yaml", ".inf"), (".toml", "nan"), (".toml", "inf")]
)
def test_what_is_no_finite_number_is_refused_by_the_pipeline(suffix: str, word: str) -> None:
    text = f"p2p: {word}" if suffix == ".yaml" else f"p2p = {word}"
    with pytest.raises(InputError, match=r"p2p: .* is not a (finite )?number"):
        pipeline_of({"stages": 1, "batches": 1, **parse_config(text, suffix, "x")})


class TestFiles:
    def refuse(self, path: Path) -> str:
        with pytest.raises(InputError) as caught:
            read_config(path)
        assert str(caught.value).isprintable()
        return str(caught.value)

    def test_missing(self, tmp_path: Path) -> None:
        path = tmp_path / "none.yaml"
        assert self.refuse(path) == f"{path}: cannot be read: No such file or directory"

    def test_directory(self, tmp_path: Path) -> None:
        assert "is a folder, not a config" in self.refuse(tmp_path)

    def test_file_as_a_directory(self, tmp_path: Path) -> None:
        path = write(tmp_path, ".yaml", "stages: 4") / "x.yaml"
        assert "cannot be read: Not a directory" in self.refuse(path)

    def test_unreadable(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def denied(*_: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "open", denied)
        assert "cannot be read: Permission denied" in self.refuse(tmp_path / "x.yaml")

    def test_no_file_name(self) -> None:
        assert "not a file name" in self.refuse(Path("a\0b.yaml"))

    def test_name_of_two_lines(self, tmp_path: Path) -> None:
        assert "a\\nb.yaml': cannot be read" in self.refuse(tmp_path / "a\nb.yaml")

    @pytest.mark.parametrize("text", ["", "\n \n"])
    @pytest.mark.parametrize("suffix", [".yaml", ".json", ".toml"])
    def test_empty(self, tmp_path: Path, suffix: str, text: str) -> None:
        path = write(tmp_path, suffix, text)
        assert self.refuse(path) == f"{path}: the file is empty"

    def test_not_utf8(self, tmp_path: Path) -> None:
        path = tmp_path / "x.yaml"
        path.write_bytes(b"stages: 4\nname: \xff\n")
        assert self.refuse(path) == f"{path}: line 2: not UTF-8 text; save the file as UTF-8"

    def test_too_large(self, tmp_path: Path) -> None:
        path = write(tmp_path, ".yaml", "#" * (LARGEST_FILE + 1))
        assert "larger than 1 MiB" in self.refuse(path)

    @pytest.mark.parametrize("suffix", [".yaml", ".json", ".toml"])
    def test_byte_order_mark_is_let_through(self, tmp_path: Path, suffix: str) -> None:
        path = write(tmp_path, suffix, "\ufeff" + as_text(suffix, "stages", 4))
        assert read_config(path) == {"stages": 4}

    @pytest.mark.parametrize("suffix", [".yaml", ".json", ".toml"])
    def test_an_empty_mapping_holds_no_settings(self, suffix: str) -> None:
        text = {".yaml": "{}", ".json": "{}", ".toml": "# nothing"}[suffix]
        assert parse_config(text, suffix, "x") == {}


def test_a_schedule_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    path.write_text('{"schema": 1, "pipeline": {}, "ops": []}', encoding="utf-8")
    with pytest.raises(InputError, match=r"best\.json: is a schedule, not a config; .*--hint"):
        read_config(path)


def test_the_config_of_a_model_is_recognised(tmp_path: Path) -> None:
    """One fault, not one for each of its keys; also where its folder is given."""
    path = tmp_path / "config.json"
    path.write_text('{"architectures": ["LlamaForCausalLM"], "vocab_size": 8}', encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_config(path)
    way = "`ppopt init model.yaml --from {} --gpu h100` derives a config from it"
    assert str(error.value) == f"{path}: is a model's config.json; {way.format(path)}"
    with pytest.raises(InputError) as error:
        read_config(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}: is a folder, not a config; if it is that of a Hugging Face model, "
        f"{way.format(tmp_path)}"
    )
