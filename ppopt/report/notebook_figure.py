"""A plotly figure that a notebook keeps when it is exported: HTML with all that it needs."""

from __future__ import annotations

import base64
import gzip
import json
from functools import cache
from typing import Any

import plotly.graph_objects as go  # type: ignore[import-untyped]
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

MIME = "application/vnd.plotly.v1+json"
_HTML = """<div class="ppopt-figure"></div>
<script>
(async (place) => {
  window.ppoptPlotly ??= (async () => {
    if (window.Plotly) return;
    const bytes = Uint8Array.from(atob("PLOTLY"), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    new Function("define", "module", "exports", await new Response(stream).text())();
  })();
  await window.ppoptPlotly;
  const figure = FIGURE;
  await window.Plotly.newPlot(place, figure.data, figure.layout, { responsive: true });
})(document.currentScript.previousElementSibling);
</script>"""
"""`define`, `module` and `exports` are hidden from the script, which else hands itself to a loader
of modules that the page may have."""


class NotebookFigure(go.Figure):  # type: ignore[misc]
    """A figure that shows itself where notebooks run, and where their HTML is read without them."""

    def _ipython_display_(self) -> None:
        from IPython import display  # noqa: PLC0415  only in notebooks, which have it

        display.display(self._repr_mimebundle_(), raw=True)  # type: ignore[no-untyped-call]

    def _repr_mimebundle_(self, *_: Any, **__: Any) -> dict[str, Any]:
        text = self.to_json().replace("</", "<\\/")
        html = _HTML.replace("PLOTLY", packed_plotly()).replace("FIGURE", text)
        return {MIME: json.loads(self.to_json()), "text/html": html}


@cache
def packed_plotly() -> str:
    """Plotly's script, gzipped, in base64: two fifths of its size, the same bytes every time."""
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 6, mtime=0)).decode()
