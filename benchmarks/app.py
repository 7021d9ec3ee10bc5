"""The app: how long an edit takes to be redrawn, and what random requests do to the server.

    python -m benchmarks.app redraw
    python -m benchmarks.app requests --minutes 10 --seed 1

`redraw` types a number into the form in Chromium and waits for the charts of four strategies, of
`TRIES` edits the median and the longest. `requests` sends random queries, downloads, searches that
are left or stopped, and nonsense. It counts the answers by status; any but 2xx and 4xx is a fault.
It prints the memory of the server over time and the processes that are left at the end.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import httpx

from benchmarks.record import heading
from ppopt.app.examples import examples
from ppopt.app.query import FIELDS
from ppopt.strategies import names
from tests.app.served import children, resident, served
from tests.browser import start

SIZES = ((4, 8), (8, 32), (16, 128))
TRIES = 11
EDITED = """const [batches, done] = arguments;
const field = document.querySelector("[name=batches]");
const began = performance.now();
const drawn = ppopt.drawn;
field.value = batches;
field.dispatchEvent(new Event("input", { bubbles: true }));
const look = () => {
  const ready = ppoptApp.drawn === ppoptApp.asked && ppopt.drawn > drawn && !ppopt.waiting;
  if (ready && ppopt.drawn === ppopt.asked) done(performance.now() - began);
  else setTimeout(look, 5);
};
look();"""
"""Types a number and measures until plotly has drawn, in milliseconds; 60 of these are the pause
after which an edit counts."""
VALUES = ("", "0", "-1", "1", "2", "3", "1,2", "x", "1e9", "9" * 40, "search", "v", "1f1b", "2ms")


def redraw() -> None:
    """Time from an edit to the redrawn charts."""
    print(heading("Time from an edit to the redrawn charts", "starlette", "uvicorn"))
    print("\n| devices x microbatches | median ms | longest ms |\n|---|---|---|")
    with served() as address, tempfile.TemporaryDirectory() as folder:
        driver = start(Path(folder))
        driver.set_script_timeout(60)
        for devices, batches in SIZES:
            driver.get(f"{address}/?stages={devices}&batches={batches}")
            while not driver.execute_script("return globalThis.ppoptApp?.drawn === 0"):
                time.sleep(0.1)
            time.sleep(2)
            took = [
                driver.execute_async_script(EDITED, str(batches + devices * (attempt % 2 + 1)))
                for attempt in range(TRIES)
            ]
            print(f"| {devices} x {batches} | {statistics.median(took):.0f} | {max(took):.0f} |")
        driver.quit()


class Requests:
    """Random requests to one server."""

    def __init__(self, client: httpx.Client, seed: int) -> None:
        self._client, self._random = client, Random(seed)
        self.answers: Counter[int] = Counter()
        self.faults: list[str] = []

    def send(self) -> None:
        """Send one."""
        query = self._query()
        kind = self._random.random()
        if kind < 0.75:
            self._note("GET", self._random.choice(("/draw", "/draw", "/")), query)
        elif kind < 0.85:
            form = self._random.choice(("html", "json", "csv", "x"))
            self._note("GET", "/download", query | {"file": form, "of": self._word(names())})
        elif kind < 0.9:
            path = "/" + "".join(self._random.choices("adrw/.%", k=self._random.randint(0, 9)))
            self._note(self._random.choice(("GET", "POST", "PUT")), path, query)
        else:
            self._search(query)

    def _search(self, query: dict[str, str]) -> None:
        """Begin a search, and leave it, stop it, or hear its end."""
        act, name = self._random.choice(("leave", "stop", "end")), ""
        with self._client.stream("GET", "/search", params={**query, "time_limit": "2"}) as answer:
            self._count(answer.status_code, f"search {query}")
            for line in answer.iter_lines():
                if '"name"' in line:
                    name = line.split('"')[3]
                if act == "leave" and name:
                    return
                if act == "stop" and name:
                    act = "end"
                    self._note("POST", "/stop", {"name": name})

    def _query(self) -> dict[str, str]:
        if self._random.random() < 0.2:
            return dict(self._random.choice(list(examples().values())))
        size = {
            "stages": str(self._random.randint(1, 9)),
            "batches": str(self._random.randint(1, 40)),
        }
        more = self._random.sample(list(FIELDS), self._random.randint(0, 3))
        chosen = self._random.sample(list(names()), self._random.randint(0, 4))
        query = size | {name: self._word(VALUES) for name in more}
        return query | {"strategies": ",".join(chosen)}

    def _word(self, values: Sequence[str]) -> str:
        return self._random.choice(list(values))

    def _note(self, method: str, path: str, query: dict[str, str]) -> None:
        answer = self._client.request(method, path, params=query)
        self._count(answer.status_code, f"{method} {path} {query}")

    def _count(self, status: int, fault: str) -> None:
        self.answers[status] += 1
        if not (200 <= status < 300 or 400 <= status < 500):
            self.faults.append(f"{status}: {fault}")


def requests(minutes: float, seed: int) -> int:
    """Random requests for some minutes; 1 if there was a fault."""
    print(heading(f"Random requests, seed {seed}, {minutes:g} minutes", "starlette", "uvicorn"))
    print("\n| minute | requests | memory MiB |\n|---|---|---|")
    with served() as address, httpx.Client(base_url=address, timeout=60) as client:
        sender = Requests(client, seed)
        began = time.monotonic()
        for minute in range(1, round(minutes) + 1):
            while time.monotonic() < began + 60 * minute:
                sender.send()
            print(
                f"| {minute} | {sender.answers.total()} | {resident(address) >> 20} |", flush=True
            )
        end = time.monotonic() + 10
        while children(address) and time.monotonic() < end:
            time.sleep(0.1)
        left = children(address)
    answers = ", ".join(f"{count} of {status}" for status, count in sorted(sender.answers.items()))
    print(f"\nAnswers: {answers}. Processes left: {len(left)}.\n")
    print(*(f"- {fault}" for fault in sender.faults), sep="\n")
    return int(bool(sender.faults or left))


def main() -> int:
    """Measure one of both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=("redraw", "requests"))
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.part == "redraw":
        redraw()
        return 0
    return requests(arguments.minutes, arguments.seed)


if __name__ == "__main__":
    raise SystemExit(main())
