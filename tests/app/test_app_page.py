"""The app in Chromium: edits redraw, a search shows its progress, and mistakes show at their field.

A mistake of the script shows in the log of the browser: `quiet` looks there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.app.served import served
from tests.browser import View, serious
from tests.packages import needed

needed("uvicorn")
needed("starlette")

pytestmark = pytest.mark.slow

LAYERS = """
- {name: e, role: embedding, forward: 1}
- {name: t, count: 8, forward: 2}
- {name: l, role: head, forward: 1}
"""
ESCAPE = "\ue00c"
LAST = "return ppopt.schedules.map((one) => [one.raw.title, one.raw.last / one.raw.unit])"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served() as url:
        yield url


class AppView:
    """The app in a browser."""

    def __init__(self, view: View) -> None:
        self.view, self.run = view, view.run

    def open(self, address: str) -> None:
        self.view.driver.get(address)
        self.view.text = ""
        self.view.wait(lambda: self.run("return globalThis.ppoptApp !== undefined"), "the form")
        self.settle()

    def settle(self) -> None:
        """Wait until the last edit is answered and drawn."""
        self.view.wait(
            lambda: self.run("return ppoptApp.drawn === ppoptApp.asked"),
            "the answer",
        )
        self.view.settle()

    def type(self, name: str, text: str) -> None:
        """Type a text into a field, in place of what it holds."""
        self.run(
            """const field = document.querySelector(`[name="${arguments[0]}"]`);
            field.value = arguments[1];
            field.dispatchEvent(new Event("input", { bubbles: true }));""",
            name,
            text,
        )
        self.settle()

    def text(self, identity: str) -> str:
        return str(self.run(f"return document.getElementById('{identity}').textContent"))

    def click(self, identity: str) -> None:
        self.run(f"document.getElementById('{identity}').click()")

    def quiet(self, faults: int = 0) -> None:
        """Assert that nothing went wrong but for so many answers that refuse what was typed."""
        log = self.view.driver.get_log("browser")
        assert all("422" in entry["message"] for entry in log) and len(log) == faults


@pytest.fixture
def app(view: View, address: str) -> AppView:
    app_view = AppView(view)
    app_view.open(address)
    view.driver.get_log("browser")
    return app_view


def makespans(app: AppView) -> dict[str, float]:
    return {title.split(" ")[0]: last for title, last in app.run(LAST)}


def test_an_edit_redraws_all_strategies_and_stands_in_the_address(app: AppView) -> None:
    assert makespans(app) == {"zbv": 25.5, "zb-h1": 27, "interleaved": 28.5, "1f1b": 33}
    app.type("batches", "12")
    assert makespans(app)["1f1b"] == 45
    assert "batches=12" in app.run("return location.search")
    app.run("document.querySelector('input[value=gpipe]').click()")
    app.settle()
    assert "gpipe" in makespans(app)
    assert app.run("return document.querySelectorAll('#opening tbody tr').length") == 5
    app.quiet()


def test_a_link_brings_back_the_form_and_the_view(app: AppView, address: str) -> None:
    app.open(f"{address}/?stages=2&batches=3&strategies=1f1b&forward_times=2#on=critical")
    assert makespans(app) == {"1f1b": 24}
    assert app.run("return document.querySelector('[name=forward_times]').value") == "2"
    assert app.run("return ppopt.view.on.has('critical')")
    app.type("batches", "4")
    assert app.run("return ppopt.view.on.has('critical')"), "an edit keeps what is shown"
    app.quiet()


def test_a_mistake_shows_at_its_field_and_the_schedules_stay(app: AppView) -> None:
    app.type("p2p_time", "one")
    assert "'one'" in app.text("error-p2p_time")
    invalid = "return document.querySelector('[name=p2p_time]').getAttribute('aria-invalid')"
    assert app.run(invalid) == "true"
    assert len(makespans(app)) == 4
    app.type("p2p_time", "1")
    assert app.text("error-p2p_time") == "" and app.run(invalid) is None
    app.type("config", "- {name: a, forward: [}")
    assert app.text("error-config")
    app.quiet(faults=2)


def test_schedules_of_other_settings_are_marked(app: AppView, address: str) -> None:
    """A link with a mistake: what is drawn is the first example."""
    app.open(f"{address}/?stages=8&batches=32&forward_times=1,2&strategies=1f1b")
    stale = "return document.body.classList.contains('stale')"
    offset_visible = "return document.getElementById('stale').offsetHeight > 0"
    assert app.run(stale) and app.run(offset_visible)
    for button in ("find", "copy"):
        app.click(button)
        assert app.text("progress") == "correct the form first"
    app.type("forward_times", "2")
    assert not app.run(stale) and not app.run(offset_visible)
    assert list(makespans(app)) == ["1f1b"]
    app.quiet(faults=1)


def test_a_layout_is_checked_as_it_is_typed(app: AppView) -> None:
    app.type("config", LAYERS)
    app.type("partition", "Et*2|tt|tt|tt")
    assert "partition" in app.run("return document.querySelector('[aria-invalid]').name")
    app.type("partition", "Et*2|tt|tt|ttL")
    assert app.run("return document.querySelector('[aria-invalid]')") is None
    app.quiet(faults=1)


VIEW_STATE = (
    "const { on, off, theme } = ppopt.view; return JSON.stringify([[...on], [...off], theme])"
)


@pytest.mark.parametrize("name", ["config", "partition", "search"])
def test_typed_letters_stay_in_the_field(app: AppView, name: str) -> None:
    """Most letters, `0`, `-`, `=` and `/` are shortcuts of the charts elsewhere."""
    before = app.run(VIEW_STATE)
    app.run("document.querySelectorAll('details').forEach((part) => part.open = true)")
    field = f"document.querySelector('[name={name}], #{name}')"
    app.run(f"{field}.focus()")
    text = "layers: [{forward: 1, count: 8}] # pqrstuvwxyz/=-0 BW"
    app.view.press(text)
    app.settle()
    assert app.run(f"return {field}.value") == text
    assert app.run(VIEW_STATE) == before
    app.view.press(ESCAPE)
    assert app.run(f"return document.activeElement !== {field}")
    app.view.press("m")
    assert app.run(VIEW_STATE) != before, "shortcuts work outside the field"


def test_a_letter_chooses_in_a_list(app: AppView) -> None:
    """Lists find an entry by its first letters; `l` shows links and `v` taller rows elsewhere."""
    before = app.run(VIEW_STATE)
    app.run("document.getElementById('layers-part').open = true")
    app.run("document.querySelector('[name=model]').focus()")
    app.view.press("l")
    app.settle()
    assert app.run("return document.querySelector('[name=model]').value").startswith("l")
    assert app.run(VIEW_STATE) == before


def test_a_search_shows_its_end_and_is_drawn_and_leaves_with_an_edit(app: AppView) -> None:
    app.type("mem_limit", "1f1b")
    app.click("find")
    app.view.wait(lambda: "optimal (proved)" in app.text("progress"), "the proof")
    app.view.wait(lambda: "searched" in makespans(app), "the optimum")
    assert makespans(app)["searched"] == 27
    assert app.run("return document.getElementById('of').value") == "optimum"
    app.type("batches", "9")
    assert "searched" not in makespans(app) and app.text("progress") == ""
    app.quiet()


def test_a_search_is_stopped_with_what_it_has(app: AppView, address: str) -> None:
    app.open(f"{address}/?stages=8&batches=24&forward_times=3,5,4,7,3,6,5,4&mem_limit=6"
             "&strategies=v-min")  # fmt: skip
    app.click("find")
    app.view.wait(lambda: "lower bound" in app.text("progress"), "progress")
    assert not app.run("return document.getElementById('stop').hidden")
    app.view.wait(lambda: not app.text("progress").startswith("no schedule"), "a schedule")
    app.click("stop")
    app.view.wait(lambda: len(makespans(app)) == 2, "the schedule so far, beside v-min")
    assert app.run("return document.getElementById('stop').hidden")
    app.quiet()


def test_two_tabs_do_not_meet(app: AppView, address: str) -> None:
    driver = app.view.driver
    first = driver.current_window_handle
    driver.switch_to.new_window("tab")
    try:
        app.open(f"{address}/?stages=3&batches=5&strategies=1f1b")
        assert makespans(app) == {"1f1b": 21}
        driver.switch_to.window(first)
        assert len(makespans(app)) == 4
        driver.switch_to.window(driver.window_handles[-1])
    finally:
        driver.close()
        driver.switch_to.window(first)


def test_a_server_that_is_gone_is_said(view: View) -> None:
    app = AppView(view)
    with served() as address:
        app.open(address)
    app.type("batches", "9")
    assert "does not answer" in app.text("app-message")
    assert len(makespans(app)) == 4
    view.driver.get_log("browser")


def test_files_and_the_command_follow_the_form(app: AppView) -> None:
    app.type("batches", "6")
    links: list[Any] = app.run(
        "return [...document.querySelectorAll('[data-file]')].map((a) => a.href)"
    )
    assert all("batches=6" in link and "of=" in link for link in links)
    app.click("copy")
    assert "--batches 6 --strategies 1f1b,interleaved,zb-h1,zbv" in app.text("progress")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(app: AppView, theme: str) -> None:
    app.run("ppopt.show({ theme: arguments[0] })", theme)
    for details in ("further", "layers-part"):
        app.run("document.getElementById(arguments[0]).open = true", details)
    app.settle()
    assert serious(app.view) == []
