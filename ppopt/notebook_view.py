"""The door from values to their views in notebooks: the only one besides `Schedule`'s.

Nothing of the rooms is imported here before a notebook asks.
"""

from __future__ import annotations


class NotebookView:
    """A value that shows itself in a notebook as a picture and tables."""

    def _repr_html_(self) -> str:
        from ppopt.report.notebook import html_of  # noqa: PLC0415  loads on use

        return html_of(self)
