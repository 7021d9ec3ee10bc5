"""The server of the app: what it answers, whom it refuses, and how searches begin and end."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ppopt
from ppopt.formats.schedule_json import loads
from tests.app.served import children, served
from tests.cli.cli_run import run
from tests.clock import HANGS, wait_until
from tests.packages import needed

httpx = needed("httpx")
needed("uvicorn")
needed("starlette")

ASKED = {"stages": "4", "batches": "8", "strategies": "1f1b,zbv"}
HARD = {"stages": "8", "batches": "24", "forward_times": "3,5,4,7,3,6,5,4", "mem_limit": "6"}
"""No search ends before its time limit here: `mem_limit` is below the memory of 1F1B."""


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """One server for most tests, which runs one search at a time."""
    limits = ("--searches", "1", "--time-limit", "600")
    with served(*limits) as address, httpx.Client(base_url=address, timeout=HANGS) as it:
        yield it


def test_the_page_is_drawn_at_once_and_asks_nobody_but_its_server(client: Any) -> None:
    page = client.get("/", params=ASKED)
    assert page.status_code == 200
    assert "connect-src 'self'" in page.text and "http://" not in page.text.split("<style>")[0]
    assert '"title":"1f1b"' in page.text and '"title":"gpipe"' not in page.text
    assert client.get("/", params={"stages": "x"}).status_code == 200


def test_drawn_values_are_those_of_an_evaluation(client: Any) -> None:
    parts = client.get("/draw", params=ASKED).json()
    assert parts["drawn"] == ["1f1b", "zbv"]
    for raw in json.loads(parts["data"])["schedules"]:
        name = raw["title"].split(" ")[0]
        schedule = ppopt.evaluate(
            ppopt.strategies.resolve(name).unplaced(ppopt.Pipeline(stages=4, batches=8)), name
        )
        assert raw["last"] / raw["unit"] == float(
            schedule.metrics.makespan_ticks / schedule.pipeline.ticks.per_unit
        )


def test_files_hold_what_is_drawn(client: Any) -> None:
    text = client.get("/download", params={**ASKED, "file": "json", "of": "1f1b"}).text
    schedule, _ = loads(text, "download")
    assert ppopt.verify(schedule) == []
    order = client.get("/download", params={**ASKED, "file": "csv", "of": "zbv"})
    assert order.headers["content-disposition"].endswith('"zbv.csv"')
    assert order.text.splitlines()[0].startswith("0F0")
    page = client.get("/download", params={**ASKED, "file": "html", "of": ""}).text
    assert page.startswith("<!doctype html>") and "connect-src" not in page
    for wrong in ({"file": "exe", "of": "1f1b"}, {"file": "json", "of": "../x"}):
        refused = client.get("/download", params={**ASKED, **wrong})
        assert refused.status_code == 422


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"host": "localhost:8000", "origin": "http://localhost:8000"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"host": "LOCALHOST:8000", "origin": "http://localhost:8000"}, 200),
    ],
)
def test_other_hosts_and_other_pages_are_refused(
    client: Any, headers: dict[str, str], status: int
) -> None:
    assert client.get("/draw", params=ASKED, headers=headers).status_code == status


def test_what_is_wrong_comes_with_its_field(client: Any) -> None:
    answer = client.get("/draw", params={**ASKED, "batches": "-1"})
    assert answer.status_code == 422
    assert answer.json() == {"error": "batches: -1 is below 1", "field": "batches"}
    assert client.get("/draw", params={"config": "x" * 61_000}).status_code == 414
    assert client.get("/search", params={"stages": "4"}).status_code == 422
    assert client.get("/nothing").status_code == 404
    assert client.get("/stop").status_code == 405
    assert client.post("/stop", params={"name": "x"}).status_code == 404


def events(client: Any, query: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Events of a search as they come."""
    with client.stream("GET", "/search", params=query) as answer:
        kind = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield kind, json.loads(line.removeprefix("data: "))


def test_a_search_tells_value_and_bound_and_its_schedule_is_drawn(client: Any) -> None:
    query = {"stages": "4", "batches": "8", "mem_limit": "1f1b"}
    received = list(events(client, query))
    kinds = [kind for kind, _ in received]
    assert kinds[0] == "began" and kinds[-1] == "ended" and "progress" in kinds
    assert received[-1][1]["words"].startswith("27, optimal (proved)")
    name = received[0][1]["name"]
    drawn = {**query, "strategies": "1f1b", "optimum": name}
    assert client.get("/draw", params=drawn).json()["drawn"] == ["1f1b", "optimum"]
    drawn_later = client.get("/draw", params={**drawn, "batches": "9"}).json()
    assert drawn_later["drawn"] == ["1f1b"], (
        "a schedule is not drawn beside those of other pipelines"
    )


def test_a_search_that_is_stopped_keeps_its_best(client: Any) -> None:
    received = []
    for kind, data in events(client, HARD):
        received.append((kind, data))
        if kind == "began":
            name = data["name"]
            assert client.get("/search", params=HARD).status_code == 429
        if kind == "progress" and not data["words"].startswith("no schedule"):
            client.post("/stop", params={"name": name})
    assert received[-1][0] == "ended"


def test_no_process_stays_when_a_page_or_the_server_goes() -> None:
    with served() as address, httpx.Client(base_url=address, timeout=HANGS) as client:
        with client.stream("GET", "/search", params=HARD) as answer:
            lines = answer.iter_lines()
            next(lines)
            assert children(address)
        wait_until(lambda: not children(address))
        with client.stream("GET", "/search", params=HARD) as answer:
            lines = answer.iter_lines()
            next(lines)
            left = children(address)
            assert left
    wait_until(lambda: not any(Path(f"/proc/{process}").exists() for process in left))


def test_an_address_in_use_is_refused_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = run(f"app --port {port}")
    assert refused.code == 2
    assert refused.err.startswith(f"error: --port: cannot listen at 127.0.0.1:{port} (")
    assert run("app --host 192.0.2.1").code == 2
