import io
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

from apdo.experiment.progress import INTERVAL, Progress, duration, readings

ROW = {"return": 1.934, "cost": [0.812], "multiplier": [0.42]}


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def stream():
    return io.StringIO()


@pytest.fixture
def progress(stream, clock):
    with Progress("apdo on point-gather", 150, (0.2,), stream=stream, clock=clock) as progress:
        yield progress


def test_a_plain_line_holds_every_number(progress, stream):
    progress.epoch(12, ROW, steps_per_second=83_000, seconds_left=200)
    line = stream.getvalue().splitlines()[-1]
    for part in (
        "epoch 12/150",
        "return 1.93",
        "cost 0.812 > 0.2",
        "multiplier 0.42",
        "83k steps/s",
        "3 min 20 s left",
    ):
        assert part in line


def test_the_title_comes_first(progress, stream):
    progress.epoch(1, ROW, 1, None)
    assert stream.getvalue().startswith("apdo on point-gather\n")


def test_each_cost_stands_against_its_own_limit():
    row = {"cost": [0.3, 0.3, float("nan")], "return": 1.0, "multiplier": [1.0, 2.0, 3.0]}
    _, first, second, third, multiplier = readings(row, (0.2, 0.4, 1.0))
    assert (first.text, first.standing) == ("0.300 > 0.2", "above")
    assert (second.text, second.standing) == ("0.300 ≤ 0.4", "within")
    assert (third.text, third.standing) == ("nan (limit 1)", "unknown")
    assert multiplier.text == "1.00, 2.00, 3.00"


def test_a_cost_at_its_limit_is_within_it():
    assert readings({"cost": [0.2]}, (0.2,))[0].standing == "within"


@pytest.mark.parametrize("cost", [0.3, [0.3], (0.3,), np.asarray([0.3]), np.float32(0.3)])
def test_a_cost_may_be_a_number_or_a_vector(cost):
    assert [reading.text for reading in readings({"cost": cost}, (0.2,))] == ["0.300 > 0.2"]


def test_what_the_row_does_not_have_is_not_shown(progress, stream):
    progress.epoch(1, {"return": 2.0, "cost": [0.1]}, 1, None)
    line = stream.getvalue().splitlines()[-1]
    assert "multiplier" not in line
    assert "left" not in line


def test_plain_lines_come_at_most_every_two_seconds(progress, stream, clock):
    times = []
    for done in range(1, 101):
        before = len(stream.getvalue().splitlines())
        progress.epoch(done, ROW, 1, None)
        if len(stream.getvalue().splitlines()) > before:
            times.append(clock.now)
        clock.now += 0.3
    assert len(times) > 10
    assert min(np.diff(times)) >= INTERVAL


@pytest.mark.parametrize("done", [2, 150])
def test_the_last_line_is_never_held_back(stream, clock, done):
    with Progress("title", 150, (0.2,), stream=stream, clock=clock) as progress:
        progress.epoch(1, ROW, 1, None)
        progress.epoch(done, ROW, 1, None)
    assert stream.getvalue().count(f"epoch {done}/150") == 1
    assert len(stream.getvalue().splitlines()) == 3


def test_the_last_line_is_written_when_training_fails(stream, clock):
    def train():
        with Progress("title", 9, (0.2,), stream=stream, clock=clock) as progress:
            progress.epoch(1, ROW, 1, None)
            progress.epoch(2, ROW, 1, None)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    assert "epoch 2/9" in stream.getvalue()


def test_a_phase_tells_its_own_time_left(progress, stream, clock):
    progress.phase("off-policy training", 0, 500_000)
    clock.now += 10
    progress.phase("off-policy training", 100_000, 500_000, "multiplier 9.8")
    assert stream.getvalue().splitlines()[-1] == "off-policy training: 100,000/500,000  multiplier 9.8  40 s left"


def test_a_new_phase_starts_its_own_clock(progress, stream, clock):
    progress.phase("first", 0, 10)
    clock.now += 100
    progress.phase("first", 10, 10)
    progress.end_phase()
    progress.phase("second", 0, 10)
    clock.now += 5
    progress.phase("second", 5, 10)
    assert stream.getvalue().splitlines()[-1] == "second: 5/10  5 s left"


def test_the_end_of_a_long_phase_is_written_at_once(progress, stream, clock):
    progress.phase("training", 0, 10)
    clock.now += INTERVAL
    progress.phase("training", 9, 10)
    progress.phase("training", 10, 10)
    assert stream.getvalue().splitlines()[-1] == "training: 10/10"


def test_a_message_is_written_as_it_is(progress, stream):
    progress.message("saved [bold]here[/bold]")
    assert stream.getvalue().splitlines()[-1] == "saved [bold]here[/bold]"


def test_quiet_is_quiet(stream, clock):
    for place in (stream, Terminal()):
        with Progress("title", 1, (0.2,), quiet=True, stream=place, clock=clock) as progress:
            progress.epoch(1, ROW, 1, None)
            progress.phase("phase", 1, 2)
            progress.end_phase()
            progress.message("message")
        assert place.getvalue() == ""


def test_a_stream_of_few_letters_gets_what_it_can_write(clock):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    with Progress("λ", 1, (1.0,), stream=stream, clock=clock) as progress:
        progress.epoch(1, ROW, 1, None)
    assert b"cost 0.812 <= 1" in raw.getvalue()


def test_a_reader_who_has_gone_does_not_end_the_training(clock):
    class Broken(io.StringIO):
        tried = 0

        def write(self, *_):
            self.tried += 1
            raise BrokenPipeError

    stream = Broken()
    with Progress("title", 9, (0.2,), stream=stream, clock=clock) as progress:
        progress.epoch(1, ROW, 1, None)
        progress.message("message")
    assert stream.tried > 0


def test_a_dumb_terminal_gets_plain_lines(monkeypatch, clock):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with Progress("title", 1, (0.2,), stream=stream, clock=clock) as progress:
        progress.epoch(1, ROW, 1, None)
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize(("cost", "colour"), [(0.3, "31"), (0.1, "32")])
def test_on_a_terminal_a_cost_is_red_above_its_limit_and_green_within(monkeypatch, clock, cost, colour):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    with Progress("title", 9, (0.2,), stream=stream, clock=clock) as progress:
        progress.epoch(4, {"return": 7.0, "cost": [cost]}, 1_200_000, 62)
        progress.phase("off-policy training", 12_000, 500_000, "multiplier 9.8")
        progress.message("a [message]")
    text = stream.getvalue()
    assert f"\x1b[1;{colour}m{cost:.3f}" in text
    for part in ("title", "epoch 4/9", "1.2M steps/s", "1 min 02 s left", "12,000/500,000", "9.8", "a [message]"):
        assert part in text


def test_a_finished_phase_leaves_the_picture(clock):
    progress = Progress("title", 9, (0.2,), stream=Terminal(), clock=clock)
    progress.phase("off-policy training", 1, 2)
    assert "off-policy training" in drawn(progress)
    progress.end_phase()
    assert "off-policy training" not in drawn(progress)


def test_work_without_epochs_shows_only_its_phases(clock):
    progress = Progress("multipliers of a file", 0, (0.2,), stream=Terminal(), clock=clock)
    progress.phase("off-policy training", 1, 2)
    assert "epoch" not in drawn(progress)
    assert "off-policy training" in drawn(progress)


def drawn(progress):
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(progress._picture())
    return console.export_text()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (float("nan"), "?"),
        (float("inf"), "?"),
        (-3, "0 s"),
        (0.4, "0 s"),
        (42, "42 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3599.7, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (86_399, "1 d 00 h"),
        (3 * 86_400 + 4 * 3600, "3 d 04 h"),
    ],
)
def test_a_time_is_given_in_its_two_largest_units(seconds, text):
    assert duration(seconds) == text


def test_it_loads_neither_jax_nor_rich_before_they_are_needed():
    code = "import sys, apdo.experiment.progress; print({'jax', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
