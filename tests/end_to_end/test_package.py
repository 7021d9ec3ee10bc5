"""The distribution: what wheel and sdist hold, and that an installed ppopt needs no checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.end_to_end.documents import ROOT

HATCH = (sys.executable, "-m", "hatchling", "build")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([*HATCH, "-t", "sdist", "-d", folder], cwd=ROOT, check=True, capture_output=True)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(folder, filter="data")
    source = folder / sdist.name.removesuffix(".tar.gz")
    subprocess.run(
        [*HATCH, "-t", "wheel", "-d", folder], cwd=source, check=True, capture_output=True
    )
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def test_the_wheel_holds_the_package_the_models_and_nothing_else(built: tuple[Path, Path]) -> None:
    names = set(zipfile.ZipFile(built[1]).namelist())
    info = {name for name in names if ".dist-info/" in name}
    package = {f"ppopt/{path.relative_to(ROOT / 'ppopt').as_posix()}" for path in _of("ppopt")}
    models = {f"ppopt/_models/{path.name}" for path in (ROOT / "models").iterdir()}
    assert names - info == package | models
    assert {"ppopt/py.typed", "ppopt/_models/deepseek-v3.yaml"} <= names


def _of(folder: str) -> list[Path]:
    paths = (ROOT / folder).rglob("*")
    return [path for path in paths if path.is_file() and "__pycache__" not in path.parts]


def test_the_sdist_holds_what_the_tests_need(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CITATION.cff", "tests/conftest.py"} <= names
    assert {"docs/site/conf.py", "benchmarks/README.md", "models/README.md", ".ci/run"} <= names
    assert not any(name.startswith("docs/_site") for name in names)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout: git's list is absent")
def test_git_tracks_nothing_that_a_command_in_the_checkout_writes() -> None:
    """`ppopt sweep` writes ppopt.db to the current folder, SQLite two more files next to it."""
    for name in ("ppopt.db", "ppopt.db-wal", "ppopt.db-shm"):
        command = ("git", "check-ignore", "-q", "--no-index", name)
        assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0, name
    command = ("git", "ls-files", "-c", "-i", "--exclude-standard")
    tracked = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert tracked.stdout == ""


@pytest.mark.slow
def test_the_wheel_installed_alone_runs(built: tuple[Path, Path], tmp_path: Path) -> None:
    """Its own files alone, dependencies from this environment: the models come along."""
    installed = tmp_path / "installed"
    install = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index")
    subprocess.run([*install, "--target", installed, built[1]], check=True, capture_output=True)
    code = "import ppopt, importlib.resources as r; print(ppopt.__file__); print(*ppopt.models())"
    environment = {**os.environ, "PYTHONPATH": str(installed), "COLUMNS": "80"}
    options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    ran = subprocess.run([sys.executable, "-c", code], check=True, **options)
    location, models = ran.stdout.splitlines()
    assert Path(location).is_relative_to(installed)
    assert "llama-3.1-8b" in models.split()
    program = installed / "bin" / "ppopt"
    asked = [sys.executable, program, "eval", "1f1b", "--stages", "2", "--batches", "2"]
    assert "makespan  9\n" in subprocess.run(asked, check=True, **options).stdout


def test_what_an_installed_ppopt_needs_is_little(built: tuple[Path, Path]) -> None:
    """Neither PyTorch nor pandas, nor what only tests, docs and benchmarks use; `resvg-py`, which
    writes `-o x.png`, is a wheel of 1.4 MB without needs of its own."""
    with zipfile.ZipFile(built[1]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        metadata = message_from_bytes(wheel.read(name))
    needed = [
        requirement
        for requirement in metadata.get_all("Requires-Dist") or ()
        if "extra ==" not in requirement
    ]
    names = {re.split(r"[^\w-]", requirement, maxsplit=1)[0] for requirement in needed}
    assert names == {"ortools", "numpy", "plotly", "typer", "rich", "pyyaml", "resvg-py"}


def test_the_citation_is_of_this_version() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (version,) = re.findall(r'^version = "(.+)"$', project, re.MULTILINE)
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
