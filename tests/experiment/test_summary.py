"""Results and policies as a prompt or a notebook shows them, and what Ctrl-C leaves."""

import dataclasses
import html.parser
import os
import signal

import numpy as np
import pytest

import apdo
from apdo.experiment import runner
from apdo.experiment.stopping import Stop

SMALL = {"batch": 200, "policy__hidden": (8,), "critic__hidden": (8,), "quiet": True}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return apdo.train("pdo", "two-state", epochs=3, seeds=2, out=tmp_path_factory.mktemp("runs") / "run", **SMALL)


class Text(html.parser.HTMLParser):
    def __init__(self, source):
        super().__init__()
        self.text, self.tags = [], []
        self.feed(source)

    def handle_data(self, data):
        self.text.append(data)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)


def test_a_result_shows_what_was_trained_each_seeds_figures_and_where_it_is(result):
    first, *seeds, last = repr(result).splitlines()
    assert first == "<Result: pdo on two-state, 3 epochs, 2 seeds"
    assert [line.split(":")[0].strip() for line in seeds] == ["seed 0", "seed 1"]
    for line, found, policy in zip(seeds, result.best, result.policies, strict=True):
        assert f"discounted return {found.returned:.4g} ±" in line
        assert f"hot hours {found.cost[0]:.4g} ±" in line
        assert f"{'≤' if found.cost[0] <= 2.0 else '>'} 2;" in line
        assert policy.about in line
    assert last == f"  in {result.path}>"


def test_a_cost_beyond_its_limit_is_shown_as_such(result):
    strict = dataclasses.replace(result, limits=(1e-6,))
    assert repr(strict).count("> 1e-06") == 2
    lavish = dataclasses.replace(result, limits=(1e6,))
    assert repr(lavish).count("≤ 1e+06") == 2


def test_a_notebooks_table_says_what_the_prompt_says_and_names_stay_text(result):
    hostile = dataclasses.replace(result, title="<script>alert(1)</script>", cost_names=("<img src=x>",))
    shown = Text(hostile._repr_html_())
    assert set(shown.tags) == {"div", "strong", "table", "tr", "th", "td", "small"}
    assert "<script>alert(1)</script>, 3 epochs, 2 seeds" in "".join(shown.text)
    assert f"{result.best[1].returned:.4g}" in "".join(shown.text)


def test_without_a_best_policy_the_last_epoch_is_shown(result):
    plain = dataclasses.replace(result, best=[])
    assert f"last epoch's return {result.metrics['return'][0, -1]:.4g}, hot hours" in repr(plain)


def test_of_many_seeds_the_first_ten_are_shown(result):
    many = dataclasses.replace(result, seeds=list(range(12)), policies=result.policies * 6, best=result.best * 6)
    assert "seed 9" in repr(many)
    assert "seed 10" not in repr(many)
    assert "and 2 seeds more" in repr(many)


def test_a_policy_shows_which_it_is_and_what_it_takes_and_gives(result):
    assert repr(result.policy) == f"<Policy: {result.policy.about}, 2 numbers in, one of 2 choices out>"
    assert result.policy.about in "".join(Text(result.policy._repr_html_()).text)


def test_ctrl_c_returns_what_there_is_and_the_run_goes_on_to_the_same_bits(tmp_path, capsys):
    whole = apdo.train("pdo", "two-state", epochs=4, out=tmp_path / "whole", **SMALL)

    def press(epoch):
        if epoch.epoch == 2:
            os.kill(os.getpid(), signal.SIGINT)
            assert_asked(epoch)

    part = apdo.train("pdo", "two-state", epochs=4, out=tmp_path / "part", callbacks=[press], **SMALL)
    assert part.metrics["return"].shape == (1, 2)
    np.testing.assert_array_equal(part.metrics["return"], whole.metrics["return"][:, :2])
    assert part.interrupted.startswith("stopped after 2 of 4 epochs, all saved. Go on with: apdo resume")
    assert part.interrupted in repr(part)
    assert part.policy([1.0, 0.0]).shape == ()
    assert part.interrupted in capsys.readouterr().err
    resumed = apdo.resume(tmp_path / "part", quiet=True)
    assert resumed.interrupted == ""
    np.testing.assert_array_equal(resumed.metrics["return"], whole.metrics["return"])


def assert_asked(epoch):
    """Wait until the thread that reads the signals has heard of it."""
    for _ in range(1000):
        if Heard.asked():
            return
        signal.sigtimedwait([], 0.01)
    raise AssertionError("the signal was not heard of")


class Heard:
    latest: Stop | None = None

    @classmethod
    def asked(cls):
        return cls.latest is not None and cls.latest.asked


@pytest.fixture(autouse=True)
def _at_the_keyboard():
    """Tests that are started in the background begin with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _remember_who_listens(monkeypatch):
    class Remembered(Stop):
        def __enter__(self):
            Heard.latest = self
            return super().__enter__()

    monkeypatch.setattr(runner, "Stop", Remembered)


def test_sigterm_saves_and_raises_so_that_a_script_does_not_go_on(tmp_path):
    def end(epoch):
        if epoch.epoch == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            assert_asked(epoch)

    with pytest.raises(apdo.Interrupted, match="stopped after 2 of 4 epochs") as stopped:
        apdo.train("pdo", "two-state", epochs=4, out=tmp_path / "part", callbacks=[end], **SMALL)
    assert stopped.value.result is None
