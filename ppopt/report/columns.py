"""Tables from columns, for a terminal and as HTML, and the columns of figures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN
from functools import partial
from html import escape
from typing import Any, Generic, TypeVar

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from ppopt.formats.figures import Figure, Quantity, ScheduleFigures, declared
from ppopt.report.labels import objective_name
from ppopt.report.numbers import NONE, headed, measured, number, percent, significant
from ppopt.report.schedule_report import ScheduleReport

FIGURES = declared(ScheduleReport)
"""Every declared figure by its key."""
_ROUNDING: Mapping[str, str] = {
    "lower_bound": ROUND_FLOOR,
    "gap": ROUND_CEILING,
    "limit": ROUND_CEILING,
}
OVER = " over"
"""Stands behind memory that is above a limit."""
Row = TypeVar("Row")
Source = TypeVar("Source")


class Html(str):
    """Text of a cell that is HTML already."""

    __slots__ = ()


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table: its head, and the text of every row."""

    head: str
    cell: Callable[[Row], str | Text]
    left: bool = False
    """Whether it is aligned to the left."""
    wraps: bool = False
    """Whether long text is continued in the next line."""
    optional: int = 0
    """If above 0, a terminal that is too narrow leaves it out; the largest number goes first."""

    def of(self, read: Callable[[Source], Row]) -> Column[Source]:
        """The same column of rows from which `read` gets those of this one."""
        cell = self.cell
        return Column(self.head, lambda row: cell(read(row)), self.left, self.wraps, self.optional)


def left(head: str, cell: Callable[[Row], str | Text], *, wraps: bool = False) -> Column[Row]:
    """A column of text, aligned to the left."""
    return Column(head, cell, left=True, wraps=wraps)


def stacked(name: str, unit: str | None) -> str:
    """Head of a narrow column: the unit is below the name, if it is known."""
    return headed(name, unit).replace(" (", "\n(")


@dataclass(frozen=True)
class Grid(Generic[Row]):
    """A table: columns, rows, and the style of a row in a terminal.

    Rich prints it without optional columns if it is too wide, and breaks no number.
    """

    columns: Sequence[Column[Row]]
    rows: Collection[Row]
    style: Callable[[Row], str] = lambda _: ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = list(self.columns)
        optional = sorted(filter(_priority, columns), key=_priority)
        while _width(table := self._table(columns)) > options.max_width and optional:
            columns.remove(optional.pop())
        width = max(options.max_width, _width(table))
        yield from table.__rich_console__(console, options.update(max_width=width))

    def _table(self, columns: Sequence[Column[Row]]) -> Table:
        look: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 0), "show_edge": False}
        table = Table(**look, show_header=_has_heads(columns), header_style="bold")
        for column in columns:
            table.add_column(
                column.head,
                justify="left" if column.left else "right",
                no_wrap=not column.wraps,
                overflow="fold",
            )
        for row in self.rows:
            table.add_row(*(as_text(column.cell(row)) for column in columns), style=self.style(row))
        return table


def _has_heads(columns: Iterable[Column[Any]]) -> bool:
    return any(column.head for column in columns)


def _priority(column: Column[Any]) -> int:
    return column.optional


def _width(table: Table) -> int:
    """Columns of a terminal that a table needs; text that wraps needs its longest word."""
    widths = [
        max(
            cell_len(part)
            for cell in (column.header, *column.cells)
            for part in (str(cell).split("\n") if column.no_wrap else str(cell).split() or [""])
        )
        for column in table.columns
    ]
    return sum(widths) + len(widths) - 1


def as_text(cell: str | Text) -> Text:
    """A cell as text in which nothing is markup."""
    return cell if isinstance(cell, Text) else Text(cell)


def html_table(
    columns: Sequence[Column[Row]],
    rows: Collection[Row],
    name: str = "",
    part: Collection[Row] = (),
) -> str:
    """A table that scrolls where it is too wide; the rows of a `part` are below its name."""
    heads = "".join(
        f'<th scope="col"{_alignment(column)}>{escape(_joined(column.head))}</th>'
        for column in columns
    )
    head = f"<thead><tr>{heads}</tr></thead>" if _has_heads(columns) else ""
    body = _html_part(columns, "", rows) + _html_part(columns, name, part)
    table = f"<table>{head}{body}</table>"
    return f'<div class="scroll" tabindex="0">{table}</div>'


def _html_part(columns: Sequence[Column[Row]], name: str, rows: Collection[Row]) -> str:
    if not rows:
        return ""
    heading, tag = "", "<tbody>"
    if name:
        span = f'<th scope="rowgroup" colspan="{len(columns)}">{escape(name)}</th>'
        heading, tag = f"<tr>{span}</tr>", '<tbody class="apart">'
    body = ""
    for row in rows:
        cells = (f"<td{_alignment(column)}>{_html(column.cell(row))}</td>" for column in columns)
        body += f"<tr>{''.join(cells)}</tr>"
    return f"{tag}{heading}{body}</tbody>"


def _html(cell: str | Text) -> str:
    return cell if isinstance(cell, Html) else escape(str(cell))


def linked(text: str, section: int | None, *, strong: bool) -> Html:
    """Text that links to the section of a schedule, if the page has it."""
    html = escape(text)
    if section is not None:
        html = f'<a href="#schedule-{section}">{html}</a>'
    return Html(f"<strong>{html}</strong>" if strong else html)


def _joined(head: str) -> str:
    """A head in one line."""
    return head.replace("-\n", "").replace("\n", " ")


def _alignment(column: Column[Any]) -> str:
    return ' class="text" style="text-align:left"' if column.left else ' style="text-align:right"'


def figure_columns(
    keys: Iterable[str], units: ScheduleFigures, absent: str = NONE, *, exact: bool = False
) -> Iterator[Column[Any]]:
    """Columns of declared figures, of rows with figures.

    `units` has the units of all rows, and their objective. `absent` stands for what is not known.
    `exact`: whether times, memory and ratios are exact, or have four digits.
    """
    for key in keys:
        figure = FIGURES[key]
        head = (figure.head or figure.label).format(objective=objective_name(units.objective))
        cell = partial(_cell, figure, absent, exact=exact)
        yield Column(stacked(head, _unit(figure, units)), cell)


def _cell(figure: Figure, absent: str, figures: ScheduleFigures, *, exact: bool) -> str | Text:
    value = getattr(figures, figure.key)
    if value is None:
        return absent
    value, rounding = max(value) if figure.each else value, _rounding(figure, figures)
    digits = number(value) if exact else significant(value, rounding=rounding)
    match figure.quantity:
        case Quantity.MEMORY:
            return marked(digits, figures)
        case Quantity.TIME | Quantity.RATIO | Quantity.RATE:
            return digits
        case Quantity.SHARE:
            return percent(value, rounding)
    return str(value)


def _rounding(figure: Figure, figures: ScheduleFigures) -> str:
    """How a figure is rounded: towards the side on which it does not read better than it is.

    A lower bound that equals the value has the same digits.
    """
    if figure.key == "lower_bound" and figures.lower_bound == figures.value:
        return ROUND_HALF_EVEN
    return _ROUNDING.get(figure.key, ROUND_HALF_EVEN)


def _unit(figure: Figure, figures: ScheduleFigures) -> str | None:
    """Unit of a figure, if it has one that is known."""
    units = {Quantity.TIME: figures.time_unit, Quantity.MEMORY: figures.memory_unit}
    return units.get(figure.quantity)


def _exact(figure: Figure, value: Any, figures: ScheduleFigures) -> str:
    """A known value in full, with its unit."""
    match figure.quantity:
        case Quantity.TIME | Quantity.MEMORY | Quantity.SECONDS:
            return measured(value, _unit(figure, figures))
        case Quantity.SHARE:
            return f"{number(100 * value)} %"
    return str(value)


def marked(memory: str, figures: ScheduleFigures) -> Text:
    """Memory of a schedule, marked if it is over a limit."""
    return Text(memory).append(OVER if figures.fits_limit is False else "", style="red")


def figure_text(key: str) -> Callable[[ScheduleReport], str]:
    """Function that writes the figure of a key in full, with its unit; empty if it is not known."""
    figure = FIGURES[key]

    def write(report: ScheduleReport) -> str:
        value = getattr(report, key)
        base = figure.base.format(objective=objective_name(report.objective))
        return "" if value is None else _exact(figure, value, report) + base

    return write
