"""A plugin of pytest: reference schedules in a folder, renewed on purpose.

    def test_my_schedule(ppopt_reference):
        ppopt_reference("my-schedule", make_schedule())

compares with `references/my-schedule.json` next to the test. `pytest --ppopt-update` writes the
file instead; review the change (`ppopt check`, `ppopt view`) before you commit it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ppopt.schedule.schedule import Schedule

FOLDER = "references"


def pytest_addoption(parser: Any) -> None:
    """Add `--ppopt-update` and the setting `ppopt_references`."""
    group = parser.getgroup("ppopt", "reference schedules")
    group.addoption(
        "--ppopt-update", action="store_true", help="write reference schedules, compare nothing"
    )
    parser.addini(
        "ppopt_references",
        f"folder of reference schedules, next to each test file (default: {FOLDER})",
        default=FOLDER,
    )


class References:
    """The reference schedules of one test file."""

    def __init__(self, folder: Path, *, update: bool) -> None:
        self.folder = folder
        self.update = update

    def load(self, name: str) -> Schedule:
        """Read a reference, verified; fails the test, in one line, if there is none."""
        from ppopt.errors import InputError  # noqa: PLC0415  loads on use
        from ppopt.formats.schedule_json import read_schedule  # noqa: PLC0415  loads numpy
        from ppopt.verifier import verify  # noqa: PLC0415

        path = self._path(name)
        if not path.exists():
            pytest.fail(f"{path}: no such reference; `pytest --ppopt-update` writes it", False)
        try:
            schedule, claims = read_schedule(path)
        except InputError as error:
            message = f"{error}; `pytest --ppopt-update` writes it again"
            raise pytest.fail.Exception(message, pytrace=False) from None
        violations = verify(schedule, claims, enforce_limit=False)
        if violations:
            pytest.fail(f"{path}: {violations[0]}; `ppopt verify` lists all violations", False)
        return schedule

    def __call__(self, name: str, actual: Schedule, *, times: bool = True) -> None:
        """Assert that a schedule equals its reference; without `times`, that it is not worse.

        With `--ppopt-update` the reference is written instead, if the schedule is valid.
        """
        __tracebackhide__ = True
        from ppopt.testing import assert_not_worse_than, assert_schedule_equal  # noqa: PLC0415

        if self.update:
            self._write(self._path(name), actual, enforce_limit=not times)
            return
        compare = assert_schedule_equal if times else assert_not_worse_than
        compare(actual, self.load(name))

    def _path(self, name: str) -> Path:
        """File of a reference; its name may contain folders (`v/small`) within the folder."""
        path = self.folder / f"{name}.json"
        if not path.resolve().is_relative_to(self.folder.resolve()):
            pytest.fail(f"{name}: lies outside {self.folder}; name a reference within it", False)
        return path

    def _write(self, path: Path, actual: Schedule, *, enforce_limit: bool) -> None:
        from ppopt.verifier import verify  # noqa: PLC0415  loads numpy

        violations = verify(actual, enforce_limit=enforce_limit)
        if violations:
            pytest.fail(
                f"{path}: not written, not a schedule of its pipeline: {violations[0]}", False
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        actual.to_json(path)


@pytest.fixture
def ppopt_reference(request: pytest.FixtureRequest) -> References:
    """References of the test's file: call it with a name and a schedule, or load one by name."""
    folder = Path(str(request.path)).parent / str(request.config.getini("ppopt_references"))
    return References(folder, update=bool(request.config.getoption("--ppopt-update")))
