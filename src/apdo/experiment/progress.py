"""The display of a training while it runs.

A terminal shows a bar and a line of readings, which are redrawn in place, and a second bar during a long phase. A file
or a pipe gets plain lines: at most one every two seconds, and always the last one. The caller supplies the numbers. The
display itself measures only how long a phase will still take. rich is imported only for a terminal.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from io import TextIOBase
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.text import Text

Row = Mapping[str, ArrayLike | Sequence[float]]
"""Metrics by name, each a number or one number per constraint."""

INTERVAL = 2.0
"""Seconds between two plain lines."""

COLOURS = {"above": "bold red", "within": "bold green", "unknown": "bold yellow", "plain": "bold"}
"""The colours of a reading, by its `standing`."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """One number of a line, as text."""

    name: str
    text: str
    standing: str = "plain"
    """How it compares with its limit: "above" or "within", "unknown" for NaN, "plain" if there is no limit."""


@dataclasses.dataclass(frozen=True)
class _Epoch:
    done: int
    readings: tuple[Reading, ...]
    steps_per_second: float
    seconds_left: float | None


@dataclasses.dataclass(frozen=True)
class _Phase:
    text: str
    done: int
    total: int
    detail: str
    first: int
    started: float
    now: float

    @property
    def seconds_left(self) -> float | None:
        """The estimated seconds left, from the pace since the phase was first shown."""
        if self.done <= self.first or self.done >= self.total:
            return None
        return (self.now - self.started) / (self.done - self.first) * (self.total - self.done)


class Progress:
    """Shows a training's progress, as a context manager.

        with Progress("apdo on point-gather", epochs=150, limits=(0.2,)) as progress:
            progress.epoch(1, {"return": 1.9, "cost": [0.8]}, steps_per_second=83_000, seconds_left=200)

    With epochs=0, for work that has no epochs, only phases are shown.
    """

    def __init__(
        self,
        title: str,
        epochs: int,
        limits: tuple[float, ...],
        quiet: bool = False,
        *,
        stream: TextIO | TextIOBase | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title = title
        self._epochs = epochs
        self._limits = limits
        self._quiet = quiet
        # Type checkers and the running program have different types for text streams; this accepts both.
        self._stream: Any = sys.stdout if stream is None else stream
        self._clock = clock
        self._epoch: _Epoch | None = None
        self._phase: _Phase | None = None
        self._live: Live | None = None
        self._pending: str | None = None
        self._written = -math.inf

    def __enter__(self) -> Progress:
        if self._quiet:
            return self
        if is_terminal(self._stream):
            from rich.console import Console
            from rich.live import Live

            self._live = Live(self._picture(), console=Console(file=self._stream), refresh_per_second=8)
            self._live.start()
        else:
            self._write(self._title)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._flush()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def epoch(self, done: int, row: Row, steps_per_second: float, seconds_left: float | None) -> None:
        """Show that `done` epochs are finished; `row` has the last epoch's means over the seeds."""
        if self._quiet:
            return
        found = tuple(readings(row, self._limits, self._signs()))
        self._epoch = _Epoch(done, found, steps_per_second, seconds_left)
        self._show(_epoch_line(self._epoch, self._epochs), last=done >= self._epochs)

    def phase(self, text: str, done: int, total: int, detail: str = "") -> None:
        """Show that a long piece of work inside an epoch is at `done` of `total`. A new text begins a new phase."""
        if self._quiet:
            return
        now, before = self._clock(), self._phase
        if before is None or before.text != text or done < before.done:
            self._phase = _Phase(text, done, total, detail, first=done, started=now, now=now)
        else:
            self._phase = dataclasses.replace(before, done=done, total=total, detail=detail, now=now)
        # A long phase gets a line at its end. Many short ones must not flood the log.
        self._show(_phase_line(self._phase), last=done >= total and now - self._phase.started >= INTERVAL)

    def end_phase(self) -> None:
        """End the phase, and remove its bar."""
        self._phase = None
        self._redraw()

    def message(self, text: str) -> None:
        """Show a line that stays, such as a warning or the name of a saved file."""
        if self._quiet:
            return
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            self._write(text)

    def _show(self, line: str, last: bool) -> None:
        if self._live is not None:
            self._redraw()
            return
        self._pending = line
        if last or self._clock() - self._written >= INTERVAL:
            self._flush()
            self._written = self._clock()

    def _redraw(self) -> None:
        if self._live is not None:
            self._live.update(self._picture())

    def _flush(self) -> None:
        """Write the line that is waiting, if there is one."""
        if self._pending is not None:
            self._write(self._pending)
            self._pending = None

    def _write(self, line: str) -> None:
        self._quiet = self._quiet or not write_line(self._stream, line)

    def _signs(self) -> tuple[str, str]:
        """The signs for "at most" and "more than", in characters that the stream can write."""
        try:
            "≤".encode(self._stream.encoding or "utf-8")
        except UnicodeEncodeError:
            return "<=", ">"
        return "≤", ">"

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        head = Text(self._title, style="bold")
        if not self._epochs:
            lines = [head]
        elif self._epoch is None:
            lines = [head, _bar(0, self._epochs, f"epoch 0/{self._epochs}"), Text("waiting for the first epoch", "dim")]
        else:
            pace = f"{_rate(self._epoch.steps_per_second)} steps/s   {_left(self._epoch.seconds_left)}"
            bar = _bar(self._epoch.done, self._epochs, f"epoch {self._epoch.done}/{self._epochs}   {pace}")
            lines = [head, bar, _styled(self._epoch.readings)]
        if self._phase is not None:
            lines += [_phase_words(self._phase), _phase_bar(self._phase)]
        return Group(*lines)


def write_line(stream: Any, line: str) -> bool:  # noqa: ANN401
    """Write a line with the characters that the stream supports. False if its reader has gone, as with `| head`."""
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(line.encode(encoding, "replace").decode(encoding) + "\n")
        stream.flush()
    except BrokenPipeError:
        return False
    return True


def readings(row: Row, limits: Sequence[float], signs: tuple[str, str] = ("≤", ">")) -> list[Reading]:
    """The return, each cost with its limit, and the multipliers, as far as the row has them."""
    found = []
    if "return" in row:
        found.append(Reading("return", _numbers(row["return"])))
    for i, cost in enumerate(np.ravel(np.asarray(row.get("cost", ()), dtype=float))):
        name = "cost" if i == 0 else ""
        found.append(_against(name, float(cost), limits[i] if i < len(limits) else None, signs))
    if "multiplier" in row:
        found.append(Reading("multiplier", _numbers(row["multiplier"])))
    return found


def duration(seconds: float | None) -> str:
    """A length of time in its two largest units: `42 s`, `3 min 20 s`, `2 h 05 min`, `3 d 04 h`; `?` if unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "?"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(whole / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(whole / 3600)
    return f"{hours // 24} d {hours % 24:02d} h"


def _against(name: str, cost: float, limit: float | None, signs: tuple[str, str]) -> Reading:
    # The sign repeats what the colour says, for readers who see no colour.
    if limit is None:
        return Reading(name, _number(cost))
    if math.isnan(cost):
        return Reading(name, f"nan (limit {limit:g})", "unknown")
    if cost <= limit:
        return Reading(name, f"{_number(cost)} {signs[0]} {limit:g}", "within")
    return Reading(name, f"{_number(cost)} {signs[1]} {limit:g}", "above")


def _numbers(values: ArrayLike | Sequence[float]) -> str:
    return ", ".join(_number(float(value)) for value in np.ravel(np.asarray(values, dtype=float)))


def _number(value: float) -> str:
    """About three significant digits, without an exponent in the usual range."""
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:.3f}" if size >= 0.01 or size == 0 else f"{value:.2g}"


def _rate(value: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f"{duration(seconds)} left"


def _epoch_line(epoch: _Epoch, epochs: int) -> str:
    parts = [f"epoch {epoch.done}/{epochs}"]
    for reading in epoch.readings:
        # Further costs continue the first one's list.
        if reading.name:
            parts.append(f"{reading.name} {reading.text}")
        else:
            parts[-1] += f", {reading.text}"
    parts += [f"{_rate(epoch.steps_per_second)} steps/s", _left(epoch.seconds_left)]
    return "  ".join(filter(None, parts))


def _phase_line(phase: _Phase) -> str:
    parts = [f"{phase.text}: {phase.done:,}/{phase.total:,}", phase.detail, _left(phase.seconds_left)]
    return "  ".join(filter(None, parts))


def is_terminal(stream: TextIO | TextIOBase) -> bool:
    """Whether a stream is a terminal that can be drawn on."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _bar(done: int, total: int, words: str) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(ratio=1, min_width=10)
    grid.add_column(no_wrap=True)
    grid.add_row(ProgressBar(total=max(1, total), completed=done, complete_style="cyan", finished_style="cyan"), words)
    return grid


def _phase_words(phase: _Phase) -> Text:
    from rich.text import Text

    return Text(phase.text, "dim").append(f"   {phase.detail}" if phase.detail else "", "not dim bold")


def _phase_bar(phase: _Phase) -> RenderableType:
    words = f"{phase.done:,}/{phase.total:,}   {_left(phase.seconds_left)}"
    return _bar(phase.done, phase.total, words.rstrip())


def _styled(found: Sequence[Reading]) -> Text:
    from rich.text import Text

    line = Text()
    for i, reading in enumerate(found):
        if reading.name:
            line.append("   " if i else "").append(f"{reading.name} ", "dim")
        else:
            line.append(", ")
        line.append(reading.text, COLOURS[reading.standing])
    return line
