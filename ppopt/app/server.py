"""The server of the app: its page, drawings, searches and downloads.

It reads no file that a request names and runs no code of a request. A request must name the host
that the server answers for (an attacker's page may point its own name here: DNS rebinding), and
come from the app's own page where the browser says from where.
"""

from __future__ import annotations

import json
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ppopt.app.drawing import OPTIMUM, Drawing, field_of
from ppopt.app.examples import first
from ppopt.app.limits import Limits
from ppopt.app.page import app_page
from ppopt.app.query import Query
from ppopt.app.search_process import SearchProcess, Task
from ppopt.errors import InputError, NotApplicableError, RunError
from ppopt.problem.exact import gap_of, plain, plain_or_none
from ppopt.report.numbers import measured, percent
from ppopt.report.schedule_report import ScheduleReport
from ppopt.report.search_text import describe_status
from ppopt.schedule.schedule import Schedule
from ppopt.solver.result import Progress, Result

FILE, OF = "file", "of"
"""Keys of a download: the end of its name, and the strategy."""
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
TYPES = {"html": "text/html", "json": "application/json", "csv": "text/csv"}
Search = tuple[tuple[tuple[str, str], ...], Schedule]


class App:
    """The state of the server: searches under way, and the schedules they found."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._running: dict[str, SearchProcess] = {}
        self._schedules: OrderedDict[str, Search] = OrderedDict()

    def routes(self) -> list[Route]:
        """What the server answers."""
        return [
            Route("/", self.page),
            Route("/draw", self.draw),
            Route("/download", self.download),
            Route("/search", self.search),
            Route("/stop", self.stop, methods=["POST"]),
        ]

    async def page(self, request: Request) -> Response:
        """The page; where its query cannot be drawn, with the schedules of an empty query."""
        html = await run_in_threadpool(self._page, dict(request.query_params))
        return HTMLResponse(html, headers={"Cache-Control": "no-store"})

    def _page(self, query: Mapping[str, str]) -> str:
        try:
            drawing = self._drawing(query)
        except (InputError, NotApplicableError):
            drawing = self._drawing(first())
        return app_page(drawing)

    async def draw(self, request: Request) -> Response:
        """The parts of the page for a query."""
        parts = await run_in_threadpool(lambda: self._drawing(dict(request.query_params)).parts())
        return JSONResponse(parts, headers={"Cache-Control": "no-store"})

    async def download(self, request: Request) -> Response:
        """A file of what a query draws."""
        query = dict(request.query_params)
        form, name = query.pop(FILE, ""), query.pop(OF, "")
        text = await run_in_threadpool(lambda: self._drawing(query).file(form, name))
        header = f'attachment; filename="{name or "schedules"}.{form}"'
        return Response(text, media_type=TYPES[form], headers={"Content-Disposition": header})

    def _drawing(self, parameters: Mapping[str, str]) -> Drawing:
        parameters = dict(parameters)
        key, optimum = self._schedules.get(parameters.pop(OPTIMUM, ""), (None, None))
        query = Query.read(parameters, self._limits)
        return Drawing(query, self._limits, optimum if key == query.key else None)

    async def search(self, request: Request) -> Response:
        """The best schedule of a query, as server-sent events."""
        parameters = dict(request.query_params)
        task, query = await run_in_threadpool(self._task, parameters)
        if len(self._running) >= self._limits.searches:
            message = f"{len(self._running)} searches are running; stop one, or try again later"
            return JSONResponse({"error": message, "field": ""}, status_code=429)
        name = secrets.token_urlsafe(9)
        self._running[name] = SearchProcess(task)
        events = self._events(name, query)
        return StreamingResponse(
            events, media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )

    def _task(self, parameters: Mapping[str, str]) -> tuple[Task, Query]:
        query = Query.read(parameters, self._limits)
        pipeline = query.pipeline()
        self._limits.check(pipeline, 1)
        seconds = float(query.settings.get("time_limit", self._limits.search_seconds))
        return Task(
            pipeline,
            query.objective,
            query.backward_kind,
            min(seconds, self._limits.search_seconds),
            self._limits.workers,
            int(query.settings.get("seed", 0)),
        ), query

    async def _events(self, name: str, query: Query) -> AsyncIterator[str]:
        """Events of one search: its name, its progress, and how it ended."""
        process, unit = self._running[name], query.settings.get("time_unit")
        try:
            yield _event("began", {"name": name})
            async for message in process.messages():
                if message is None:
                    yield ":\n\n"
                elif isinstance(message, Result):
                    self._keep(name, query, message)
                    yield _event("ended", {"words": _describe_result(message)})
                else:
                    yield _event("progress", {"words": _describe_progress(message, unit)})
        except (InputError, NotApplicableError, RunError) as error:
            yield _event("failed", _error(error))
        finally:
            del self._running[name]
            process.close()

    def _keep(self, name: str, query: Query, result: Result) -> None:
        if result.schedule is not None:
            self._schedules[name] = query.key, result.schedule
            while len(self._schedules) > self._limits.max_stored:
                self._schedules.popitem(last=False)

    async def stop(self, request: Request) -> Response:
        """Let a search end with the best schedule so far."""
        process = self._running.get(request.query_params.get("name", ""))
        if process is not None:
            process.stop()
        return Response(status_code=204 if process is not None else 404)


def _event(kind: str, data: Mapping[str, object]) -> str:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"


def _describe_progress(state: Progress, unit: str | None) -> str:
    value = "no schedule yet" if state.value is None else measured(plain(state.value), unit)
    text = f"{value}, lower bound {measured(plain(state.lower_bound), unit)}"
    if state.value:
        text += f", gap {percent(gap_of(state.value, state.lower_bound))}"
    return f"{text} ({state.phase}, {state.seconds:.1f} s)"


def _describe_result(result: Result) -> str:
    if result.value is None:
        return f"{result.status.value}: {result.proof}"
    bound, gap = plain_or_none(result.lower_bound), result.gap
    report = ScheduleReport(status=result.status.value, lower_bound=bound, gap=gap)
    value = measured(plain(result.value), result.pipeline.time_unit)
    return f"{value}, {describe_status(report)}: {result.proof}"


def _error(error: Exception) -> dict[str, str]:
    return {"error": str(error), "field": field_of(error)}


async def _refused(_: Request, error: Exception) -> Response:
    return JSONResponse(_error(error), status_code=503 if isinstance(error, RunError) else 422)


class Guard:
    """Refuses requests for other hosts, from other pages, and of too long queries."""

    def __init__(self, app: ASGIApp, hosts: Collection[str], longest: int) -> None:
        self._app, self._longest = app, longest
        self._hosts = frozenset(map(str.lower, hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {key.decode("latin-1"): text.decode("latin-1") for key, text in scope["headers"]}
        origin, host = (headers.get(name, "").lower() for name in ("origin", "host"))
        if _host(host) not in self._hosts:
            answer = Response("unknown host", status_code=421)
        elif origin and origin.partition("://")[2] != host:
            answer = Response("from another page", status_code=403)
        elif len(scope["query_string"]) > self._longest:
            answer = Response("the query is too long", status_code=414)
        else:
            await self._app(scope, receive, send)
            return
        await answer(scope, receive, send)


def _host(header: str) -> str:
    """The name of a host without its port."""
    name, colon, port = header.rpartition(":")
    return name if colon and port.isdigit() else header


def application(limits: Limits, hosts: Collection[str]) -> Starlette:
    """The app, for hosts of these names."""
    handlers: dict[Any, Any] = dict.fromkeys((InputError, NotApplicableError, RunError), _refused)
    guard = Middleware(Guard, hosts=hosts, longest=limits.query)
    return Starlette(routes=App(limits).routes(), middleware=[guard], exception_handlers=handlers)


def serve(host: str, port: int, limits: Limits, hosts: Collection[str]) -> None:
    """Serve the app until Ctrl-C."""
    uvicorn.run(
        application(limits, hosts), host=host, port=port, log_level="warning",
        timeout_graceful_shutdown=1, h11_max_incomplete_event_size=2 * limits.query,
    )  # fmt: skip
