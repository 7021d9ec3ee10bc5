"""A notebook that plots, run and exported by nbconvert: the figure is there in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser import View
from tests.clock import HANGS
from tests.packages import needed

pytestmark = pytest.mark.slow

nbconvert, nbformat, nbclient = map(needed, ("nbconvert", "nbformat", "nbclient"))

ROOT = Path(__file__).parents[2]
CODE = """import ppopt
ppopt.evaluate(ppopt.Pipeline(stages=2, batches=4), "1f1b").plot()"""
LOADER = "<script>window.define = () => { throw Error('loaded as a module'); }; define.amd = {};"


@pytest.fixture(scope="module")
def exported() -> str:
    """What nbconvert makes of the notebook, without the page around it, which loads MathJax."""
    cells = [nbformat.v4.new_code_cell(CODE), nbformat.v4.new_code_cell("_")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(
        notebook, timeout=int(HANGS), resources={"metadata": {"path": str(ROOT)}}
    ).execute()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(Path(nbconvert.__file__).parents[4] / "share" / "jupyter"))
        body, _ = nbconvert.HTMLExporter(template_name="basic").from_notebook_node(notebook)
    return str(body)


@pytest.mark.parametrize("head", ["", f"{LOADER}</script>"], ids=["alone", "module loader"])
def test_the_figure_of_an_exported_notebook_is_drawn(exported: str, head: str, view: View) -> None:
    """Without a network, without a message, and with a loader of modules such as require.js.

    Of two devices and four microbatches 16 bars are drawn, in both cells.
    """
    file = view.folder / "notebook.html"
    file.write_text(f"<!doctype html><meta charset=utf-8>{head}{exported}", encoding="utf-8")
    view.text = ""
    view.driver.get_log("browser")
    view.driver.set_network_conditions(offline=True, latency=0, throughput=0)
    try:
        view.driver.get(file.as_uri())
        drawn = "return document.querySelectorAll('.ppopt-figure .bars .point').length"
        view.wait(lambda: view.run(drawn) >= 2 * 16, "the figures")
        assert [entry["message"] for entry in view.driver.get_log("browser")] == []
    finally:
        view.driver.delete_network_conditions()
