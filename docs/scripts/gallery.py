"""Renew the gallery: pictures of every strategy and of solved optima, and the page in a browser.

    python docs/scripts/gallery.py

Everything comes from real runs of the `ppopt` installed with this Python. The pictures of
schedules repeat themselves; the screenshots need Chromium and its driver, Pillow and selenium.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import ppopt
from ppopt.report.frontier import frontier_page
from ppopt.report.frontier_report import report_frontier
from ppopt.report.html import page
from ppopt.report.svg import svg
from ppopt.strategies import registry

FOLDER = Path(__file__).parents[1] / "gallery"
DOCUMENT = Path(__file__).parents[1] / "gallery.md"
SHOTS = {
    "page": "One schedule: idle time hatched by cause, memory below, time by use at the right.",
    "path": "The critical path of 1F1B, and the path of one microbatch with its transfers.",
    "compare": "Six schedules on one time axis, the best on top; the dotted line marks its end.",
    "pairs": "DualPipe: two routes (light and dark), and overlapped pairs of F and a backward.",
    "frontier": "Memory against time; click a point to open its schedule.",
    "large": "64 devices, 512 microbatches, 98,304 operations, zoomed out.",
    "close": "The same page, zoomed in.",
    "dark": "Dark mode, zoomed in: two chunks per device, memory stacked by chunk.",
    "model": "Llama 3.1 8B on 4 devices (32 GPUs), 64 GiB each, two stages per device, optimal.",
    "phone": "The same page on a phone.",
}
"""Screenshot -> its caption."""
_WIDTH, _PHONE = 1200, 400
"""Widths of the window in pixels."""
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars")


def pipeline(devices: int = 4, batches: int = 8, **fields: object) -> ppopt.Pipeline:
    """Unit costs, unless fields say otherwise."""
    return ppopt.Pipeline(stages=devices, batches=batches, **fields)


def optimum(**fields: object) -> ppopt.Schedule:
    """A proved optimum within the memory of 1F1B; one worker, so that it repeats itself."""
    result = ppopt.solve(pipeline(**fields), mem_limit="1f1b", workers=1)
    assert result.status is ppopt.Status.OPTIMAL
    assert result.schedule is not None
    return result.schedule


def schedules() -> dict[str, ppopt.Schedule]:
    """Optima of two placements and all baselines that apply, by the name of their picture."""
    named_schedules = {"searched": optimum(), "searched-v": optimum(placement="v")}
    for name in registry():
        with suppress(ppopt.NotApplicableError):
            named_schedules[name] = ppopt.evaluate(pipeline(), name)
    return named_schedules


def curve() -> str:
    """The page of a frontier."""
    frontier = ppopt.frontier(pipeline(), time_limit=60, workers=1)
    return frontier_page(report_frontier(frontier))


def pages() -> dict[str, tuple[str, str, int]]:
    """Screenshot -> its page, the address of its view, its height."""
    six = ("gpipe", "1f1b", "zb-h1", "interleaved", "zbv")
    compared = [optimum(), *(ppopt.evaluate(pipeline(), name) for name in six)]
    large = page([ppopt.evaluate(pipeline(64, 512, mem_limit="1f1b"), "zb-1p")])
    dark = page([ppopt.evaluate(pipeline(memory_b=-0.5), "v-half")])
    llama = page([model()])
    return {
        "page": (page([optimum(p2p=0.25)]), "", 790),
        "path": (page([ppopt.evaluate(pipeline(p2p=0.5), "1f1b")]), "#m=3&on=critical", 600),
        "compare": (page(compared), "", 1330),
        "pairs": (page([ppopt.evaluate(pipeline(8, 20, overlap=3), "dualpipe")]), "", 960),
        "frontier": (curve(), "", 650),
        "large": (large, "#on=", 1100),
        "close": (large, "#on=&x=100,130&y=8,24", 1000),
        "dark": (dark, "#x=8,20&on=memory&theme=dark", 760),
        "model": (llama, "", 850),
        "phone": (llama, "", 1480),
    }


def model() -> ppopt.Schedule:
    """A model in layers, its stages as `balanced` cuts them."""
    llama = ppopt.read_model("llama-3.1-8b")
    devices = llama.pipeline(devices=4, batches=16, placement="v", chunks=2)
    result = ppopt.solve(devices, mem_limit="64GiB", workers=1, time_limit=60)
    assert result.schedule is not None
    return result.schedule


def write_pictures(named_schedules: dict[str, ppopt.Schedule]) -> None:
    """Write one SVG per schedule."""
    for name, schedule in named_schedules.items():
        (FOLDER / f"{name}.svg").write_text(svg(schedule), encoding="utf-8")


def document(named_schedules: dict[str, ppopt.Schedule]) -> str:
    """The gallery as Markdown."""
    lines = [
        "# Gallery\n",
        "Written by `python docs/scripts/gallery.py` from real runs.\n",
        "## The page\n",
    ]
    for name, caption in SHOTS.items():
        lines.append(f"{caption}\n\n![{caption}](gallery/{name}.png)\n")
    lines.append("## Schedules\n")
    lines.append("Four devices, eight microbatches, F = B = W = 1.\n")
    for name in named_schedules:
        lines.append(f"### {name}\n\n![{name}](gallery/{name}.svg)\n")
    return "\n".join(lines)


def write_shots() -> None:
    """Take the screenshots, each in few colours so that it stays small."""
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService  # noqa: PLC0415

    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in _FLAGS:
        options.add_argument(flag)
    driver = Chrome(options=options, service=ChromeService(shutil.which("chromedriver")))
    with tempfile.TemporaryDirectory() as folder:
        for name, (text, address, height) in pages().items():
            path = Path(folder) / f"{name}.html"
            path.write_text(text, encoding="utf-8")
            wide = _PHONE if name == "phone" else _WIDTH
            size = {"width": wide, "height": height, "deviceScaleFactor": 1}
            phone = {"mobile": wide == _PHONE}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size | phone)
            driver.get(f"{path.as_uri()}{address}")
            while not driver.execute_script("return globalThis.ppopt?.drawn >= 1"):
                time.sleep(0.1)
            time.sleep(1)
            (FOLDER / f"{name}.png").write_bytes(_small(driver.get_screenshot_as_png()))
    _write_app_shots(driver)
    driver.quit()


def _write_app_shots(driver: Any) -> None:
    """Take the screenshots of the app, light and dark."""
    sys.path.insert(0, str(FOLDER.parents[1]))
    from tests.app.served import served  # noqa: PLC0415  found from the checkout

    size = {"width": _WIDTH, "height": 1300, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    with served() as address:
        for theme in ("light", "dark"):
            driver.get(f"{address}/?stages=4&batches=8&mem_limit=1f1b#theme={theme}")
            while not driver.execute_script("return globalThis.ppopt?.drawn >= 2"):
                time.sleep(0.1)
            time.sleep(1)
            shot = _small(driver.get_screenshot_as_png())
            (FOLDER / f"app-{theme}.png").write_bytes(shot)


def _small(shot: bytes) -> bytes:
    from PIL import Image  # noqa: PLC0415

    palette = (
        Image.open(io.BytesIO(shot)).convert("RGB").quantize(200, method=Image.Quantize.MEDIANCUT)
    )
    buffer = io.BytesIO()
    palette.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def main() -> None:
    """Renew the pictures, the screenshots and the document."""
    FOLDER.mkdir(exist_ok=True)
    named_schedules = schedules()
    write_pictures(named_schedules)
    write_shots()
    DOCUMENT.write_text(document(named_schedules), encoding="utf-8")


if __name__ == "__main__":
    main()
