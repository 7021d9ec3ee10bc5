"""A real browser for the page: Debian's Chromium without a window, driven by selenium."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_core_python.selenium import Axe  # type: ignore[import-untyped]
from selenium.webdriver import ActionChains, Chrome, ChromeOptions, ChromeService

from tests.clock import HANGS

ABSENT = (
    "Chromium and its driver are absent: THE PAGE IS NOT TESTED. On Debian and Ubuntu: "
    "apt-get install chromium chromium-driver"
)
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--force-device-scale-factor=1", "--disable-dev-shm-usage"),
)
_PREFS = {"profile.default_content_setting_values.automatic_downloads": 1}
"""One page may save several files."""
WIDTH, HEIGHT = 1400, 1000


def find_browser() -> tuple[str, str] | None:
    """Paths of Chromium and of its driver; None where one is missing."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


def start(folder: Path) -> Chrome:
    """Start a browser that keeps its profile and what it saves in a folder.

    Without Chromium the test is skipped, loudly; where PPOPT_NEEDS_CHROMIUM is set it fails.
    """
    programs = find_browser()
    if programs is None:
        if os.environ.get("PPOPT_NEEDS_CHROMIUM"):
            pytest.fail(ABSENT)
        pytest.skip(ABSENT)
    options = ChromeOptions()
    options.binary_location = programs[0]
    for flag in (*_FLAGS, f"--window-size={WIDTH},{HEIGHT}", f"--user-data-dir={folder}/profile"):
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"download.default_directory": str(folder)} | _PREFS)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=ChromeService(programs[1]))
    driver.set_script_timeout(HANGS)
    return driver


class View:
    """A page in the browser."""

    def __init__(self, driver: Chrome, folder: Path) -> None:
        self.driver = driver
        self.folder = folder
        self.text = ""

    def open(self, text: str, address: str = "", *, fresh: bool = False) -> None:
        """Open a page, and wait until it is drawn.

        The page that is open already is only sent to the address, unless it must be `fresh`.
        """
        if text == self.text and not fresh:
            self.follow(address)
            return
        path = self.folder / "page.html"
        path.write_text(text, encoding="utf-8")
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get(f"{path.as_uri()}{address}")
        self.text = text
        self.settle()

    def follow(self, address: str) -> None:
        """Go to another address of the open page, as one who pastes a link into it."""
        self.run(
            """const [address] = arguments;
            if (location.hash.slice(1) === address.slice(1)) return;
            return new Promise((done) => {
              addEventListener("hashchange", () => done(), { once: true });
              location.hash = address;
            });""",
            address,
        )
        self.settle()

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript; returns what it returns."""
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until something holds; returns it."""
        end = time.monotonic() + HANGS
        while time.monotonic() < end:
            if value := condition():
                return value
            time.sleep(0.02)
        pytest.fail(f"waited {HANGS} s for {what}")

    def settle(self) -> None:
        """Wait until the picture shows the view."""
        done = (
            "return globalThis.ppopt !== undefined && !ppopt.waiting && ppopt.drawn === ppopt.asked"
        )
        self.wait(lambda: self.run(done), "the picture")

    def press(self, keys: str) -> None:
        """Press keys, one after the other, and wait until the last is answered."""
        ActionChains(self.driver).send_keys(*keys).perform()
        self.settle()

    def click(self, selector: str) -> None:
        """Click an element."""
        self.run("document.querySelector(arguments[0]).click()", selector)
        self.settle()

    def pixel(self, schedule: int, time: float, device: float, kind: str = "gantt") -> list[float]:
        """Where a time and a device of a schedule lie in the window, scrolled into sight."""
        return list(
            self.run(
                """const [schedule, time, device, kind] = arguments;
                const { frame, view, plot } = ppopt;
                const panel = frame.panels.find((p) => p.kind === kind && p.index === schedule);
                const y = panel.top + (device - panel.low + 0.5) * panel.row;
                const inner = frame.width - frame.left - frame.right;
                const share = (time - view.from) / (view.to - view.from);
                scrollBy(0, plot.getBoundingClientRect().top + y - innerHeight / 2);
                const box = plot.getBoundingClientRect();
                return [box.left + frame.left + share * inner, box.top + y];""",
                schedule,
                time,
                device,
                kind,
            )
        )

    def mouse(self, kind: str, x: float, y: float, buttons: int = 0) -> None:
        """Send one event of a real mouse."""
        event = {"type": kind, "x": x, "y": y, "buttons": buttons}
        if kind != "mouseMoved":
            event |= {"button": "left", "clickCount": 1}
        self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)

    def point(self, schedule: int, time: float, device: float, kind: str = "gantt") -> str:
        """Point at a place of a chart; returns what the page says of it."""
        self.mouse("mouseMoved", *self.pixel(schedule, time, device, kind))
        tip_text = (
            "const tip = document.getElementById('tip'); return tip.hidden ? '' : tip.innerText"
        )
        return str(self.run(tip_text))

    def choose(self, schedule: int, time: float, device: float) -> None:
        """Click a place of a chart."""
        x, y = self.pixel(schedule, time, device)
        self.drag((x, y), (x, y))

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press the mouse, move it and let it go."""
        self.mouse("mouseMoved", *start)
        self.mouse("mousePressed", *start, buttons=1)
        if start != end:
            self.mouse("mouseMoved", (start[0] + end[0]) / 2, (start[1] + end[1]) / 2, buttons=1)
            self.mouse("mouseMoved", *end, buttons=1)
        self.mouse("mouseReleased", *end)
        self.settle()

    def double(self, x: float, y: float) -> None:
        """Double click. The page's clock stands still: a busy machine may click slowly."""
        self.mouse("mouseMoved", x, y)
        self.run(
            """window.realTime = Date.prototype.getTime;
            const now = Date.now();
            Date.prototype.getTime = () => now;"""
        )
        for count in (1, 2):
            for kind in ("mousePressed", "mouseReleased"):
                event = {"type": kind, "x": x, "y": y, "button": "left", "clickCount": count}
                self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)
        self.run("Date.prototype.getTime = window.realTime;")
        self.settle()

    def shapes(self) -> Counter[str]:
        """Number of drawn boxes by colour, as the browser holds them."""
        paths = self.run(
            """return [...document.querySelectorAll("#plot .scatterlayer path.js-fill")].map(
                (path) => [path.style.fill, path.getAttribute("d").split("M").length - 1]);"""
        )
        drawn: Counter[str] = Counter()
        for colour, count in paths:
            drawn[colour] += count
        return drawn

    def texts(self) -> list[str]:
        """All text that the picture shows."""
        script = 'return [...document.querySelectorAll("#plot text")].map((e) => e.textContent)'
        return list(self.run(script))

    def traces(self) -> list[str]:
        """Names of the traces that are drawn."""
        return list(self.run("return ppopt.figure.traces.map((trace) => trace.name)"))

    def range(self) -> tuple[float, float]:
        """Window of time that the picture shows."""
        low, high = self.run("return ppopt.plot.layout.xaxis.range")
        return low, high

    def quiet(self) -> None:
        """Assert that nothing went wrong and nothing was asked of a network."""
        assert self.driver.get_log("browser") == []
        assert self.run('return performance.getEntriesByType("resource").map((e) => e.name)') == []


def browser(folder: Path) -> Iterator[View]:
    """Run a browser for a fixture."""
    driver = start(folder)
    yield View(driver, folder)
    driver.quit()


def serious(view: View) -> list[tuple[str, list[Any]]]:
    """What axe-core, the accessibility checker, finds serious or critical: rules and elements.

    All rules are run; what passes them is not listed: megabytes.
    """
    violations = Axe().run(view.driver, options={"resultTypes": ["violations"]})["violations"]
    return [
        (rule["id"], [node["target"] for node in rule["nodes"]][:5])
        for rule in violations
        if rule["impact"] in ("serious", "critical")
    ]


def rgb(colour: str) -> str:
    """Write `#rrggbb` as browsers do."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgb({red}, {green}, {blue})"
