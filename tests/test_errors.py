"""Exceptions: how faults of one input are told, and where errors may be caught."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import ppopt
from ppopt import ConflictError, InputError, NotApplicableError
from ppopt.errors import Faults, not_applicable

PACKAGE = Path(ppopt.__file__).parent

CAUGHT = {
    # Where input enters: one line for the user, and an exit code or a failed row.
    "app/server.py _events": "a search of the app: told at its field",
    "app/server.py _page": "the app opens with other schedules, and its form tells the fault",
    "app/search_process.py perform": "goes to the server that asked, which tells it",
    "cli/application.py main": "the command line: one line and exit code 2",
    "cli/commands.py _of_all_placements": "a placement that the settings rule out: named in a note",
    "cli/commands.py _strategies": "names the flag that was typed",
    "cli/ordering.py _parsed": "names the line of a file of steps once",
    "cli/output.py write_each": "writes the other files, and exits with an error",
    "cli/studies_output.py schedule_of": "leaves a damaged row out of a page, and says so",
    "studies/records.py renamed_rows": "a damaged row of a storage stays as it is",
    "studies/sweep.py _following": "a row of a sweep: the settings of this row",
    "studies/task.py perform": "a row of a sweep: its search or evaluation",
    "studies/task.py solve_stored": "a storage that fails: the result is given anyway",
    "studies/outcome.py reused_or_run": "a stored result that is damaged: it is searched again",
    "studies/sweep.py _task": "a storage that fails: the sweep ends with what is stored",
    "studies/sweep.py _end": "a storage that fails: the sweep ends with what is stored",
    "studies/parallel_task.py perform": "a combination of a plan: its search",
    "studies/parallel_set_up.py perform": "combinations of a plan: their costs, perhaps in another "
    "process",
    "studies/parallel_set_up.py set_up": "a combination of one device: no plan space goes with it",
    "studies/parallel_task.py load": "a stored result that is damaged: it is searched again",
    "studies/parallel_task.py save": "a storage that fails: the plan is given anyway",
    "derivation/config_json.py _similar": "a family that does not read the keys is left out",
    "studies/storage.py _sound_results": "a stored result that is damaged: merging leaves it out",
    "studies/storage.py sound_result": "a stored result that is damaged: it is made again",
    "testing/plugin.py load": "a test fails with the line",
    "torch/world.py _serve": "goes to the process that asked, which raises it",
    # Readers that add the place to the message.
    "errors.py collected": "collects the faults of one input, which `check` raises",
    "formats/fields.py within": "adds the place in a file",
    "formats/schedule_json.py _operations": "adds the number of the operation",
    "formats/torch_csv.py schedule": "names operations by the letters of the file",
    "formats/torch_csv.py _row": "adds the number of the cell",
    "studies/records.py damage": "adds the record of a storage",
    "problem/layout.py _read": "adds the name of the setting or the option",
    "problem/layers.py _read": "adds the number and the name of the layer",
    "problem/layer.py _named": "adds the name of the setting",
    "problem/phases.py _at": "adds the operation and the number of the phase",
    "problem/link.py read_link": "adds the name of the setting",
    # What is too fine for an exact grid.
    "problem/pipeline.py _set_grid": "a grid that is too fine: the input is rounded",
    "problem/rounding.py rounded": "digits that are too many: fewer are tried",
    # The one door from a conflict to what does not apply.
    "errors.py not_applicable": "parts that ppopt chose do not go with the input",
}
"""Where an InputError, or a subclass of it, may be caught, and why."""

ANYTHING_CAUGHT = {
    "solver/engines/dask.py _done": "a row of a sweep: its task failed on another machine",
    "torch/job.py _built": "the user's own code: becomes an InputError that says where",
    "torch/job.py _function": "the user's own code: becomes an InputError that says where",
    "torch/job.py boundaries": "the user's own code: becomes an InputError that says where",
    "torch/job.py _check_loss": "the user's own code: becomes an InputError that says where",
    "torch/world.py _serve": "goes to the process that asked, which raises it",
}
"""Where any exception may be caught and not be raised again, and why."""


@cache
def input_errors() -> set[str]:
    """InputError and its subclasses in the whole package, by name."""
    names_ = {"InputError"}
    for tree in (parsed()["errors.py"], *parsed().values()):
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and names_ & {
                ast.unparse(base) for base in node.bases
            }:
                names_.add(node.name)
    return names_


@cache
def parsed() -> dict[str, ast.Module]:
    """Every file of the package, by its path in it."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text())
        for path in PACKAGE.rglob("*.py")
    }


def caught(tree: ast.Module) -> Iterator[tuple[str, set[str], str]]:
    """Every place in a file that catches exceptions: its function, their names, and how."""

    def visit(node: ast.AST, function: str) -> Iterator[tuple[str, set[str], str]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        if isinstance(node, ast.ExceptHandler):
            reraised = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            yield function, names(node.type), "raised again" if reraised else "except"
        if isinstance(node, ast.Call) and "suppress" in vars(node.func).values():
            yield function, set().union(*map(names, node.args)), "suppress"
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function)

    yield from visit(tree, "")


def names(node: ast.expr | None) -> set[str]:
    """The exceptions that a handler names; a bare one catches all."""
    if node is None:
        return {"BaseException"}
    if isinstance(node, ast.Tuple):
        return set().union(*map(names, node.elts))
    name = ast.unparse(node).split(".")[-1]
    assert not name.isupper(), f"{name}: a constant hides what is caught"
    return {name}


@cache
def every() -> list[tuple[str, set[str], str]]:
    """Every place of the package that catches exceptions: its file and function, names, and how."""
    return [
        (f"{file} {function}", errors, how)
        for file, tree in parsed().items()
        for function, errors, how in caught(tree)
    ]


def places(errors: set[str], how: str) -> set[str]:
    """Where some of these exceptions are caught so, by file and function."""
    return {
        location
        for location, caught_errors, way in every()
        if way == how and caught_errors & errors
    }


ANYTHING = {"Exception", "BaseException", "PpoptError"}


def test_an_input_error_is_caught_only_where_input_enters() -> None:
    """Elsewhere it may come from a mistake of ours, and must not be taken for "does not fit"."""
    assert {"InputError", "ConflictError", "DeadlockError"} <= input_errors()
    assert places(input_errors(), "except") == set(CAUGHT)


def test_an_input_error_is_suppressed_nowhere() -> None:
    assert places(input_errors() | ANYTHING, "suppress") == set()


def test_anything_is_caught_only_where_it_is_told() -> None:
    assert places(ANYTHING, "except") == set(ANYTHING_CAUGHT)


def test_the_scan_sees_every_way_to_catch() -> None:
    tree = ast.parse(
        "def one():\n    try:\n        pass\n"
        "    except (ValueError, ppopt.InputError):\n        pass\n"
        "    with contextlib.suppress(KeyError), suppress(InputError):\n        pass\n"
        "def two():\n    try:\n        pass\n    except:\n        pass\n"
        "    try:\n        pass\n    except OSError:\n        pass\n        raise\n"
    )
    assert list(caught(tree)) == [
        ("one", {"ValueError", "InputError"}, "except"),
        ("one", {"KeyError"}, "suppress"),
        ("one", {"InputError"}, "suppress"),
        ("two", {"BaseException"}, "except"),
        ("two", {"OSError"}, "raised again"),
    ]


def test_what_does_not_apply_is_no_input_error() -> None:
    assert not issubclass(NotApplicableError, InputError)
    assert issubclass(NotApplicableError, ppopt.PpoptError)


def test_a_conflict_does_not_apply_and_another_fault_stays_what_it_is() -> None:
    with pytest.raises(NotApplicableError, match=r"^two routes$"), not_applicable():
        raise ConflictError("two routes")
    with pytest.raises(InputError, match=r"^no number$"), not_applicable():
        raise InputError("no number")


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((ConflictError, ConflictError), ConflictError),
        ((ConflictError, InputError), InputError),
    ],
)
def test_faults_are_a_conflict_only_if_all_are(
    kinds: tuple[type[InputError], ...], expected: type[InputError]
) -> None:
    faults = Faults()
    for index, kind in enumerate(kinds):
        with faults.collected():
            raise kind(str(index))
    with pytest.raises(InputError) as raised:
        faults.check()
    assert type(raised.value) is expected
    assert str(raised.value) == "0; also 1"


def test_faults_that_say_the_same_are_named_once() -> None:
    """As where several fields of a pipeline follow from one that is wrong."""
    faults = Faults()
    for text in ("one", "two", "one", "three", "two"):
        with faults.collected():
            raise InputError(text)
    with pytest.raises(InputError, match=r"^one; also two; also three$"):
        faults.check()
    layers = [{"forward": 1, "output": 1, "count": 4}]
    with pytest.raises(InputError, match=r"^partition: the counts add up to 3; [^;]*$"):
        ppopt.Model(layers).pipeline(devices=2, batches=2, partition=[2, 1], link={"bandwidth": 1})
