"""Sources that are not installed, as in a copied checkout, have no version; all else works."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

import pytest

import ppopt
from ppopt import versions
from tests.cli.cli_run import run


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    installed = metadata.version

    def version(distribution: str) -> str:
        if distribution == versions.DISTRIBUTION:
            raise metadata.PackageNotFoundError(distribution)
        return installed(distribution)

    monkeypatch.setattr(metadata, "version", version)
    versions.version_of.cache_clear()
    yield
    versions.version_of.cache_clear()


@pytest.mark.usefixtures("not_installed")
def test_a_search_of_sources_that_are_not_installed_gives_its_result() -> None:
    result = ppopt.solve(ppopt.Pipeline(stages=2, batches=2), workers=1)
    assert result.status is ppopt.Status.OPTIMAL
    assert result.provenance.versions["ppopt"] == "unknown"
    assert result.provenance.versions["ortools"] == metadata.version("ortools")


@pytest.mark.usefixtures("not_installed")
def test_the_version_of_sources_that_are_not_installed_is_unknown() -> None:
    assert ppopt.__version__ == "unknown"
    assert run("--version").out == "ppopt unknown\n"
    ppopt.show_versions()
