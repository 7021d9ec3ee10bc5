"""Read back what is drawn: figures as plain data, the text and the tags of a page."""

from __future__ import annotations

import base64
import json
from html.parser import HTMLParser
from typing import Any, NamedTuple

import numpy as np

from ppopt.schedule.schedule import Schedule

_PLOTLY = '<script type="text/plain" id="plotly">'
_DATA = '<script type="application/json" id="data">'


class Picture(NamedTuple):
    """A plotly figure as plain data."""

    data: list[dict[str, Any]]
    layout: dict[str, Any]

    def traces(self, axis: str) -> list[dict[str, Any]]:
        """Traces of one chart: `y2` is the Gantt chart, `y` memory."""
        return [trace for trace in self.data if trace.get("yaxis", "y") == axis]


def picture(schedule: Schedule) -> Picture:
    """The figure of a schedule as a notebook gets it, arrays decoded to lists."""
    figure = json.loads(schedule.plot().to_json())
    return Picture(_plain(figure["data"]), _plain(figure["layout"]))


def _plain(value: Any) -> Any:
    """Undo plotly's packing of arrays, `{"dtype": "i2", "bdata": base64, "shape": "2, 3"}`."""
    if isinstance(value, dict) and "bdata" in value:
        flat = np.frombuffer(base64.b64decode(value["bdata"]), dtype=f"<{value['dtype']}")
        shape = [int(size) for size in str(value.get("shape", len(flat))).split(",")]
        return flat.reshape(shape).tolist()
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, list) else value


def data_of(page: str) -> dict[str, Any]:
    """What a page gives its script, its columns decoded to lists."""
    start = page.index(_DATA) + len(_DATA)
    data = _unpacked(json.loads(page[start : page.index("</script>", start)]))
    assert isinstance(data, dict)
    return data


def embedded_plotly(page: str) -> str:
    """Plotly's script as a page holds it: gzipped, in base64."""
    start = page.index(_PLOTLY) + len(_PLOTLY)
    return page[start : page.index("</script>", start)]


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict) and "base64" in value:
        raw = base64.b64decode(value["base64"])
        return np.frombuffer(raw, dtype=f"<{value['type']}").tolist()
    if isinstance(value, dict):
        return {key: _unpacked(entry) for key, entry in value.items()}
    return [_unpacked(entry) for entry in value] if isinstance(value, list) else value


class Content(HTMLParser):
    """Tags with their attributes, and the text outside scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style") and data.strip():
            self.texts.append(data.strip())

    @property
    def text(self) -> str:
        """All text, in the order of the page."""
        return " ".join(self.texts)

    def count(self, tag: str) -> int:
        """How many elements of a tag there are."""
        return sum(name == tag for name, _ in self.tags)
