"""How `.ci/run` installs Chromium on a bare machine, with an apt-get of our own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RUN = ROOT / ".ci" / "run"
JOBS = ROOT / ".github" / "workflows" / "tests.yml"
APT = """#!/bin/bash
echo "$DEBIAN_FRONTEND $*" >> "{log}"
[[ $1 != {fails} ]] || exit 100
[[ $1 != install ]] || for program in chromium chromedriver; do cp "$0" "{folder}/$program"; done
"""


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A checkout with nothing but `.ci/run`, and a path with nothing but what it calls."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(RUN, tmp_path / ".ci" / "run")
    (tmp_path / "README.md").write_text("nothing is marked\n")
    (tmp_path / "bin").mkdir()
    for program in ("bash", "env", "dirname", "sed", "cp", "mkdir"):
        (tmp_path / "bin" / program).symlink_to(shutil.which(program) or "")
    put(tmp_path, "id", "#!/bin/bash\necho 0\n")
    return tmp_path


def put(bare: Path, name: str, text: str) -> None:
    path = bare / "bin" / name
    path.write_text(text)
    path.chmod(0o755)


def apt(bare: Path, fails: str = "nothing") -> None:
    put(bare, "apt-get", APT.format(log=bare / "log", folder=bare / "bin", fails=fails))


def said(bare: Path, *parts: str, code: int = 1) -> str:
    done = subprocess.run(
        [bare / ".ci" / "run", *parts],
        env={"PATH": str(bare / "bin")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    return done.stderr


def test_chromium_is_installed_and_then_all_else_runs(bare: Path) -> None:
    """The commands of the README are next, which this one lacks."""
    apt(bare)
    assert said(bare) == "README.md: no command is marked <!-- command: main -->\n"
    install = "install -y -qq --no-install-recommends chromium chromium-driver"
    calls = (bare / "log").read_text().splitlines()
    assert calls == ["noninteractive update -qq", f"noninteractive {install}"]


def test_a_machine_that_has_a_browser_is_left_alone(bare: Path) -> None:
    for program in ("google-chrome", "chromedriver"):
        put(bare, program, "#!/bin/bash\n")
    assert "no command is marked" in said(bare)


@pytest.mark.parametrize("fails", ["update", "install"])
def test_an_install_that_fails_says_so(bare: Path, fails: str) -> None:
    apt(bare, fails)
    assert said(bare).startswith("The page is tested in Chromium, and apt-get ")


def test_without_apt_get_or_the_right_to_use_it_the_reason_is_told(bare: Path) -> None:
    assert "and there is no apt-get: " in said(bare)
    apt(bare)
    put(bare, "id", "#!/bin/bash\necho 1000\n")
    assert "and only root may install it (there is no sudo): " in said(bare)
    put(bare, "sudo", '#!/bin/bash\nexec "$@"\n')
    assert "no command is marked" in said(bare)


def test_every_part_has_a_job(bare: Path) -> None:
    (job,) = yaml.safe_load(JOBS.read_text(encoding="utf-8"))["jobs"].values()
    *parts, last = job["strategy"]["matrix"]["part"]
    told = f"luck: no part of .ci/run; {', '.join(parts)} or {last}\n"
    assert said(bare, "luck", code=2) == told
