"""The display of a sweep: a table that is redrawn in place, or plain lines without a terminal."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from io import TextIOBase
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from apdo.experiment.progress import COLOURS, INTERVAL, Reading, duration, is_terminal, readings, write_line
from apdo.report.following import Sight

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_SHOWN = 20
"""The most runs in the table; running ones come first."""
_EVERY = 5 * INTERVAL
"""Seconds between two plain lines."""


class Display:
    """Shows a sweep's progress, as a context manager."""

    def __init__(self, title: str, quiet: bool = False, stream: TextIO | TextIOBase | None = None) -> None:
        self._title, self._quiet = title, quiet
        self._stream: Any = sys.stdout if stream is None else stream
        self._live: Live | None = None
        self._written = -math.inf
        self._clock: Callable[[], float] = time.monotonic

    def __enter__(self) -> Display:
        if not self._quiet and is_terminal(self._stream):
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(file=self._stream), refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def message(self, text: str) -> None:
        """Show a line that stays."""
        if self._quiet:
            return
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            self._write(text)

    def show(self, head: str, sights: Sequence[tuple[str, Sight]]) -> None:
        """Show the state of the whole sweep, and of its runs by name, running ones first."""
        if self._quiet:
            return
        if self._live is not None:
            self._live.update(table(f"{self._title}: {head}", sights))
        elif self._clock() - self._written >= _EVERY:
            self._write(head)
            self._written = self._clock()

    def _write(self, text: str) -> None:
        self._quiet = self._quiet or not write_line(self._stream, text)


def table(title: str, sights: Sequence[tuple[str, Sight]]) -> RenderableType:
    """A table with the first runs."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="dim")
    for name in ("run", "status", "epoch", "return", "cost", "multiplier"):
        grid.add_column(name, overflow="fold")
    for name, sight in sights[:_SHOWN]:
        by_name: dict[str, Text] = {}
        for reading in readings_of(sight):
            by_name.setdefault(reading.name or "cost", Text()).append(f"{reading.text} ", COLOURS[reading.standing])
        cells = [by_name.get(column, Text("")) for column in ("return", "cost", "multiplier")]
        status = Text(sight.status, "bold red" if sight.status in ("failed", "killed") else "")
        grid.add_row(name, status, f"{sight.done}/{sight.epochs}", *cells)
    if len(sights) > _SHOWN:
        grid.add_row(f"and {len(sights) - _SHOWN} more")
    return grid


def readings_of(sight: Sight) -> list[Reading]:
    """The readings of a run's last epoch."""
    if sight.last is None:
        return []
    row = {"return": sight.last.returned, "cost": sight.last.cost}
    return readings(row | ({"multiplier": sight.last.multiplier} if sight.last.multiplier else {}), sight.limits)


def line(name: str, sight: Sight) -> str:
    """A run in one line."""
    readings = [f"{one.name} {one.text}".strip() for one in readings_of(sight)]
    return "  ".join([f"{name}: {sight.status}, epoch {sight.done}/{sight.epochs}", *readings])


def summary(done: int, running: int, failed: int, total: int, seconds_left: float | None) -> str:
    """The state of a sweep in one line."""
    left = "" if seconds_left is None or done + failed >= total else f", about {duration(seconds_left)} left"
    return f"{done} of {total} runs done, {running} running, {failed} failed{left}"
