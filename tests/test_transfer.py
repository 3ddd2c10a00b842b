"""The study of problems that nobody tuned for: its cases, its books and its statistics."""

import argparse
import dataclasses
import json

import jax
import numpy as np
import pytest
from benchmarks import transfer, transfer_problems, transfer_report
from benchmarks.transfer import Job
from benchmarks.transfer_problems import CASES, COSTS, REWARDS
from benchmarks.transfer_report import Outcome, Problem

from apdo import envs, rollout
from apdo.experiment import settings
from apdo.report.statistics import bootstrap_interval, interquartile_mean

NATIVE = {name: case for name, case in CASES.items() if not envs.is_gymnasium_id(case.environment)}
NATIVE.pop("halfcheetah")
PROBLEM = Problem("garnet-4", np.array([0.0, 2.0]), np.array([4.0, 2.0]), 1.0, np.zeros(2), 5.0, "exact")


@pytest.mark.parametrize("name", NATIVE)
def test_a_case_gives_the_problem_and_its_limits_and_leaves_the_rest_to_the_library(name):
    case = CASES[name]
    given = transfer.specified(case, "pdo", (3, 4))
    plain = settings.make_experiment("pdo", case.environment)
    assert given.algorithm_config == plain.algorithm_config
    own = dataclasses.asdict(given.settings) | {"limits": (), "seed": 0, "seeds": 1}
    assert own == dataclasses.asdict(plain.settings)
    assert (given.settings.seed, given.settings.seeds) == (3, 2)
    assert given.problem().horizon == case.horizon
    assert given.problem().limits == (case.limits or given.environment_config.limits)
    assert hasattr(given.environment_config, "model") == case.finite


@pytest.mark.parametrize("name", ["point-gather-units", "navigation-units"])
def test_other_units_change_rewards_and_costs_by_their_factors_and_nothing_else(name):
    def played(case):
        task = transfer_problems.task_of(case)[1]()
        act = lambda memory, observation, key: (jax.random.normal(key, (2,)), memory)  # noqa: E731
        return jax.device_get(rollout.collect(task, act, (), jax.random.key(1), steps=60, environments=20))

    plainly = CASES[CASES[name].units_of or ""]
    plain, other = played(plainly), played(CASES[name])
    np.testing.assert_allclose(other.reward, REWARDS * plain.reward, rtol=1e-6)
    np.testing.assert_allclose(other.cost, COSTS * plain.cost, rtol=1e-6)
    np.testing.assert_array_equal(other.observation, plain.observation)
    assert plain.cost.sum() > 0
    assert CASES[name].limits == pytest.approx([COSTS * limit for limit in plainly.limits or ()])


def test_pendulum_in_other_units_is_pendulum():
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    totals = []
    for name in ("pendulum", "pendulum-units"):
        task = transfer.specified(CASES[name], "pdo", (0,)).environment_config
        copies = task.open(3)
        copies.reset([1, 2, 3, 4])
        total = np.zeros(2)
        for _ in range(150):
            copies.arrays.action[:] = 1.5
            copies.step(last=False)
            total += [copies.arrays.reward.sum(), copies.arrays.cost.sum()]
        copies.close()
        totals.append(total)
    assert totals[0][1] > 0
    np.testing.assert_allclose(totals[1], totals[0] * [REWARDS, COSTS], rtol=1e-5)


def test_held_out_problems_are_those_set_aside():
    held_out = {name for name, case in CASES.items() if case.held_out}
    assert held_out == {
        "point-gather-0.5",
        "garnet-4",
        "garnet-7",
        "mountain-car",
        "acrobot",
        "halfcheetah",
    }


def asked(tmp_path, **changes):
    given = {"long": False, "seeds": (0, 1), "only": "navigation/pdo", "again": False, "together": False}
    return list(transfer.wanted(argparse.Namespace(out=tmp_path, **given | changes)))


def test_only_seeds_that_are_not_there_are_run_and_they_join_those_that_are(tmp_path):
    assert asked(tmp_path) == [Job("study", "navigation", "pdo", (seed,)) for seed in (0, 1)]
    transfer.add(Job("study", "navigation", "pdo", (1,)), {"config": {}, "seeds": {"1": {"samples": 7}}}, tmp_path)
    assert asked(tmp_path) == [Job("study", "navigation", "pdo", (0,))]
    assert len(asked(tmp_path, again=True)) == 2
    assert asked(tmp_path, seeds=(0, 1, 2), together=True) == [Job("study", "navigation", "pdo", (0, 2))]
    transfer.add(Job("study", "navigation", "pdo", (0,)), {"config": {}, "seeds": {"0": {"samples": 5}}}, tmp_path)
    told = json.loads((tmp_path / "navigation-pdo.json").read_text())
    assert told["seeds"] == {"0": {"samples": 5}, "1": {"samples": 7}}
    assert told["command"] == "apdo train pdo navigation --limit 3"
    assert asked(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 1


def test_the_best_epoch_is_the_one_that_earns_most_among_those_within_every_limit():
    curve = {
        "return": np.array([1.0, 9.0, 4.0, 3.0]),
        "costs": np.array([[0.0, 0.0], [1.2, 0.0], [1.04, 2.0], [0.0, 2.2]]),
    }
    found = transfer.best_epoch(curve, np.array([1.0, 2.0]), np.array([0.05, 0.1]))
    assert found == {"epoch": 2, "return": 4.0, "costs": [1.04, 2.0]}
    assert transfer.best_epoch(curve, np.array([-1.0, 2.0]), np.array([0.05, 0.1])) is None


def test_the_best_epochs_are_measured_again_since_their_own_batches_flatter_them():
    """Epochs 2 and 4 look best: the one is beyond the limit really, the other earns less; epoch 3 looked third."""
    curve = {"return": np.array([0.0, 1.0, 9.0, 7.0, 8.0, 6.0]), "costs": np.array([[0.0]] * 6)}
    real = {1: (1.0, 0.0), 2: (8.5, 1.2), 3: (6.5, 1.0), 4: (6.0, 0.9), 5: (6.8, 0.9)}

    def judge(epoch):
        earned, cost = real[epoch]
        return {"return": {"mean": earned}, "costs": [{"mean": cost}]}

    bounds = np.array([1.0]), np.array([0.05])
    drew = {epoch: epoch for epoch in real}
    assert transfer.best_seen(judge, drew, curve, *bounds) == {
        "epoch": 3,
        "return": 6.5,
        "costs": [1.0],
        "measured": True,
    }
    best = transfer.best_of_all(judge, drew, *bounds)
    assert best is not None
    assert best["epoch"] == 5
    assert transfer.best_seen(judge, drew, curve, np.array([-1.0]), np.array([0.05])) is None


@pytest.mark.parametrize("epochs", [1, 59, 60, 61, 1000])
def test_a_thinned_curve_keeps_its_ends_and_order(epochs):
    curve = {"samples": np.arange(epochs), "return": np.arange(epochs) / 2, "costs": np.zeros((epochs, 2))}
    thin = transfer.thinned(curve)
    assert thin["samples"][0] == 0
    assert thin["samples"][-1] == epochs - 1
    assert len(thin["samples"]) == min(epochs, transfer.POINTS)
    assert thin["return"] == [sample / 2 for sample in thin["samples"]]


def test_an_excess_is_that_of_the_worst_cost_in_units_of_its_limit_or_of_its_turnover():
    assert PROBLEM.excess([0.0, 2.0]) == 0
    assert PROBLEM.excess([0.4, 2.0]) == pytest.approx(0.1)
    assert PROBLEM.excess([-5.0, 3.0]) == pytest.approx(0.5)
    np.testing.assert_allclose(PROBLEM.excess(np.array([[0.4, 0.0], [0.0, 1.0]])), [0.1, 0.0])


def ended(earned, costs, best):
    seed = {"return": {"mean": earned}, "costs": [{"mean": cost} for cost in costs], "best_epoch": best}
    return transfer_report.outcome(PROBLEM, seed)


def test_a_run_is_judged_by_the_policy_that_it_hands_back():
    whole = Outcome(1.0, within=True, earned=5.0, excess=0.0, kept=True, kept_gain=True)
    assert ended(5.0, (0.0, 2.0), {"return": 5.0}) == whole
    second = ended(3.0, (0.0, 2.099), {"return": 5.0})
    assert (second.score, second.within, second.kept, second.kept_gain) == (0.5, True, False, False)
    assert second.excess == pytest.approx(0.0495)
    assert not ended(4.59, (0.0, 2.2), {"return": 5.0}).within
    assert ended(4.59, (0.0, 2.2), None).kept is None
    assert ended(4.59, (0.0, 2.2), None).kept_gain is None
    assert transfer_report.outcome(PROBLEM, {"failed": "NaN"}).score == 0


def test_a_run_keeps_its_best_epoch_by_nine_tenths_of_the_return_or_of_the_gain_over_the_start():
    def kept(earned, best):
        run = ended(earned, (0.0, 2.0), {"return": best})
        return run.kept, run.kept_gain

    # The start earns 1. Nine tenths of the gain are 1 + 0.9 · 4, of the return 0.9 · 5.
    assert kept(4.61, 5.0) == (True, True)
    assert kept(4.59, 5.0) == (True, False)
    assert kept(4.49, 5.0) == (False, False)


def test_a_run_that_hands_back_its_best_epoch_has_kept_it_whatever_that_earns():
    assert ended(-3.0, (0.0, 2.0), {"return": -3.0}).kept
    assert ended(-3.0, (0.0, 2.0), {"return": -3.0}).kept_gain
    # Of a return of -3 a tenth may be lost besides, and of a loss of 4 since the start.
    assert ended(-3.29, (0.0, 2.0), {"return": -3.0}).kept
    assert not ended(-3.31, (0.0, 2.0), {"return": -3.0}).kept
    assert ended(-3.39, (0.0, 2.0), {"return": -3.0}).kept_gain
    assert not ended(-3.41, (0.0, 2.0), {"return": -3.0}).kept_gain


def test_the_best_epoch_of_a_gymnasium_problem_is_measured_on_fresh_episodes_too(monkeypatch):
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    monkeypatch.setattr(transfer, "EPISODES", 4)
    found = transfer.train(Job("study", "cartpole", "pdo", (7,)), {"epochs": 3, "batch": 500, "environments": 2})
    best = found["seeds"]["7"]["best_epoch"]
    assert best["measured"]
    assert best["epoch"] in (1, 2)


def test_the_pooled_mean_is_the_interquartile_mean_of_all_runs():
    scores = [np.array([0.0, 1.0, 2.0]), np.array([3.0, 4.0, 5.0, 100.0, 6.0])]
    assert transfer_report.pooled(scores) == pytest.approx(np.mean([2, 3, 4, 5]))


def test_the_stratified_interval_of_one_problem_is_the_plain_bootstrap_s():
    own = np.random.default_rng(0).normal(size=12)
    plain = bootstrap_interval(interquartile_mean, own, resamples=20_000)
    np.testing.assert_allclose(transfer_report.stratified_interval([own], resamples=20_000), plain, atol=0.02)


def test_problems_that_differ_do_not_widen_the_stratified_interval():
    """Where seeds agree within every problem nothing is uncertain, however far problems are apart."""
    scores = [np.full(5, level) for level in (0.0, 0.5, 3.0)]
    low, high = transfer_report.stratified_interval(scores)
    assert low == high == transfer_report.pooled(scores)
    mixed = [np.array([0.0, 1.0]), np.array([0.0, 1.0])]
    low, high = transfer_report.stratified_interval(mixed)
    assert (low, high) == (0.0, 1.0)


def test_the_best_return_known_is_within_the_limits_and_carries_over_to_other_units(tmp_path, monkeypatch):
    monkeypatch.setitem(CASES, "pendulum", dataclasses.replace(CASES["pendulum"], known=None))

    def told(job, *seeds):
        found = {
            str(i): {"return": {"mean": earned}, "costs": [{"mean": cost}], "best_epoch": None}
            for i, (earned, cost) in enumerate(seeds)
        }
        limits = list(CASES[job.case].limits or ())
        more = (
            {"posed": {"limits": limits, "cost_names": ["c"]}, "allowance": [0.05 * limits[0]]}
            if job.kind == "reference"
            else {}
        )
        transfer.add(job, {"seeds": found} | more, tmp_path)

    told(Job("reference", "pendulum", "start", ()), (-1200.0, 60.0))
    told(Job("reference", "pendulum-units", "start", ()), (-1.2e6, 0.06))
    told(Job("study", "pendulum", "apdo", ()), (-300.0, 20.0), (-100.0, 25.5))
    told(Job("long", "pendulum", "cpo", ()), (-200.0, 25.0))
    told(Job("peers", "pendulum", "fsrl-cpo", ()), (-250.0, 2.0))
    found = transfer_report.problem_of("pendulum", tmp_path)
    other = transfer_report.problem_of("pendulum-units", tmp_path)
    assert found is not None
    assert other is not None
    assert (found.best, found.best_by, found.start) == (-200.0, "CPO, long", -1200.0)
    assert found.normalised(-700.0) == pytest.approx(0.5)
    assert other.best == -200_000.0
    assert transfer_report.problem_of("cartpole", tmp_path) is None


def test_a_peers_environment_has_the_costs_of_the_case_and_books_every_episode():
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    from benchmarks import peers_transfer

    plain = (0.0, 0.0)
    for name, action, fast in (("pendulum", [2.0], lambda seen: abs(seen[2]) > 4), ("navigation", [1.0, 0.0], None)):
        for other in (name, f"{name}-units"):
            units = (1.0, 1.0) if other == name else (REWARDS, COSTS)
            book = peers_transfer.Book()
            env = peers_transfer.environment(CASES[other], book, 7)
            seen, _ = env.reset()
            reward, cost, ended = 0.0, 0.0, False
            while not ended:
                before = seen
                seen, earned, terminated, truncated, info = env.step(np.array(action, np.float32))
                reward, cost, ended = reward + float(earned), cost + info["cost"], terminated or truncated
                if fast is not None:
                    assert info["cost"] == pytest.approx(units[1] * fast(before))
            assert book.ends == [(book.samples, pytest.approx(reward), pytest.approx(cost))]
            assert cost > 0
            if other == name:
                plain = (reward, cost)
            assert (reward, cost) == pytest.approx((plain[0] * units[0], plain[1] * units[1]), rel=1e-5)


@pytest.mark.parametrize("name", ["point-gather", "navigation"])
def test_the_environment_that_peers_step_is_the_native_one(name):
    """Over the same actions, more than one episode of them; two programs round differently in the last digit."""
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    from benchmarks import peers_transfer

    from apdo.envs.native import NativeEnv

    ours, theirs = NativeEnv(name), peers_transfer.native(name)
    draw, over, seeds = np.random.default_rng(0), True, [5, None, None]  # then on in the same random stream
    while seeds:
        if over:
            seed = seeds.pop(0)
            np.testing.assert_allclose(theirs.reset(seed=seed)[0], ours.reset(seed=seed)[0], rtol=1e-5, atol=1e-6)
        action = draw.uniform(-1.0, 1.0, ours.task.action_size).astype(np.float32)
        expected, found = ours.step(action), theirs.step(action)
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-5)
        assert found[1] == pytest.approx(expected[1], rel=1e-4, abs=1e-5)
        assert found[2:4] == expected[2:4]
        assert found[4]["cost"] == pytest.approx(expected[4]["cost"])
        over = expected[2] or expected[3]


def test_a_file_of_results_names_a_command_that_there_is():
    given = {"case": "navigation", "seeds": (0,)}
    study = transfer.command_of(Job("study", algorithm="cpo", **given))
    peers = transfer.command_of(Job("peers", algorithm="fsrl-cpo", **given))
    start = transfer.command_of(Job("reference", algorithm="start", **given))
    assert study == "apdo train cpo navigation --limit 3"
    assert start == "python -m benchmarks.transfer --only 'navigation/start'"
    assert peers == "python -m benchmarks.peers_transfer --only 'navigation/fsrl-cpo'"


def test_a_peers_curve_is_the_mean_of_the_episodes_that_ended_in_each_chunk():
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    from benchmarks import peers_transfer

    ends = [(500, 1.0, 4.0), (10_000, 3.0, 0.0), (10_001, 5.0, 1.0), (30_500, 9.0, 7.0)]
    curve = peers_transfer.Book(samples=31_000, ends=ends).curve()
    assert curve["samples"].tolist() == [10_000, 20_000, 31_000]
    assert curve["return"].tolist() == [2.0, 5.0, 9.0]
    assert curve["costs"].tolist() == [[2.0], [1.0], [7.0]]


def test_peers_run_every_algorithm_that_we_have_by_the_same_name_on_the_problem_of_the_comparison():
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    from benchmarks import peers_transfer

    from apdo.algorithms import ALGORITHMS

    for problem in peers_transfer.PROBLEMS:
        names = peers_transfer.algorithms(problem)
        assert {name.partition("-")[2] for name in names} <= set(ALGORITHMS)
        assert set(peers_transfer.ALGORITHMS) <= set(names)
        assert (len(names) > len(peers_transfer.ALGORITHMS)) == (problem == peers_transfer.COMPARED)
    assert peers_transfer.COMPARED in peers_transfer.PROBLEMS
