"""Algorithms against the exact optimum: shortened trainings on two states, and all of docs/ground-truth.md."""

import dataclasses

import numpy as np
import pytest
from benchmarks import ground_truth
from benchmarks.ground_truth import CASES, COST_BAR, MULTIPLIER_BAR, RETURN_BAR, verdicts

import apdo
from apdo import exact, finite
from apdo.datasets import Dataset
from apdo.tasks.tabular import TwoState
from logged_data import two_state_log

QUICK = {"batch": 6000, "epochs": 250, "seeds": 1}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["pdo", "cpo"])
def test_on_two_states_the_optimum_and_its_price_are_found(algorithm):
    """With a small share of the samples and one seed, to within what those can tell: 5 % of the limit."""
    seen = verdicts(ground_truth.train("two-state", algorithm, QUICK))
    assert seen["shortfall"][0] < RETURN_BAR
    assert seen["excess"][0] < 0.05
    assert seen["error"][0] < MULTIPLIER_BAR


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["pdo", "cpo"])
def test_on_two_states_totals_have_the_price_that_the_linear_program_gives_them(algorithm):
    """Fifteen hot hours in all of an episode's sixty. γ is near 1, since effects beyond 1/(1 - γ) steps are ignored."""
    options = QUICK | {"epochs": 150, "constrain": "total", "limits": 15.0, "discount": 0.999}
    experiment, result, _ = ground_truth.trained("two-state", algorithm, options)
    task = experiment.environment_config
    undiscounted = dataclasses.replace(task.model(), discount=1.0)
    optimum = exact.solve(finite.fold_time(undiscounted, task.horizon).with_limits([15.0]))
    assert isinstance(optimum, exact.Solution)
    found = {name: result.metrics[name][0, -75:].mean() for name in ("return", "cost", "multiplier")}
    assert found["return"] == pytest.approx(optimum.value, rel=RETURN_BAR)
    assert found["cost"] == pytest.approx(15.0, rel=COST_BAR)
    assert found["multiplier"] == pytest.approx(optimum.multipliers[0], rel=MULTIPLIER_BAR)


@pytest.mark.slow
def test_the_price_of_a_total_from_logged_data_is_the_linear_programs():
    """The log's sums are discounted; asked for totals, the learner counts a sum that goes on behind the horizon."""
    log = two_state_log() | {"cost_discount": 1.0, "limits": np.array([15.0])}
    found = apdo.estimate_multipliers(Dataset.of(**log), members=2, iterations=10_000, check_iterations=100)
    task = TwoState()
    undiscounted = dataclasses.replace(task.model(), discount=1.0)
    optimum = exact.solve(finite.fold_time(undiscounted, task.horizon).with_limits([15.0]))
    np.testing.assert_allclose(found.multiplier, optimum.multipliers, rtol=MULTIPLIER_BAR)


BRIEF = {"batch": 4000, "epochs": 150, "seeds": 1, "critic.passes": 2, "critic.minibatches": 8}
GRADIENTS = BRIEF | {"epochs": 120, "primal.minibatches": 8, "primal.rate": 0.003}
"""For those that take gradient steps."""


def later_half(algorithm, options):
    """The later epochs of a short run on two states, by name: as shares of R*, of the limit and of λ*."""
    experiment, result, _ = ground_truth.trained("two-state", algorithm, options)
    _, optimum = ground_truth.solved(experiment.environment_config)
    units = {"discounted_return": optimum.value, "cost": 2.0, "multiplier": optimum.multipliers[0], "recovering": 1.0}
    epochs = {name: result.metrics[name][0].reshape(options["epochs"]) for name in units if name in result.metrics}
    return {name: values[options["epochs"] // 2 :] / units[name] for name, values in epochs.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "options", "within"),
    [
        pytest.param("p3o", GRADIENTS, 0.12, id="p3o"),
        # What a short step comes to is no price.
        pytest.param("pcpo", BRIEF | {"anneal": 0.0}, 0.12, id="pcpo"),
        pytest.param("trpo-pid", BRIEF, 0.12, id="trpo-pid"),
        pytest.param("cppo-pid", GRADIENTS, 0.12, id="cppo-pid"),
        pytest.param("focops", GRADIENTS, 0.12, id="focops"),
        pytest.param("cup", GRADIENTS | {"projection.rate": 0.003}, 0.12, id="cup"),
    ],
)
def test_on_two_states_policies_are_on_average_at_the_optimum_and_prices_at_its_price(algorithm, options, within):
    """P3O has no price, and its penalty factor is above λ*; CUP's is λ* by as much as its improvement step is exact."""
    seen = later_half(algorithm, options)
    assert np.mean(seen["discounted_return"]) > 0.97
    assert abs(np.mean(seen["cost"]) - 1.0) < within
    if algorithm not in ("p3o", "cup"):
        assert abs(np.mean(seen["multiplier"]) - 1.0) < 0.15


@pytest.mark.slow
def test_on_two_states_a_penalty_factor_below_the_price_breaks_the_limit():
    """κ σ(A_R)/σ(A_C) < λ*: the excess is worth more than it costs."""
    seen = later_half("p3o", GRADIENTS | {"penalty": 0.05})
    assert np.mean(seen["cost"]) > 1.5


@pytest.mark.slow
def test_on_two_states_a_barrier_keeps_the_limit_and_is_short_of_the_optimum_by_little():
    """The duality gap of a barrier is its price times its slack: here 0.3 of a limit that λ* values at 7 % of R*."""
    seen = later_half("ipo", GRADIENTS)
    assert 0.7 < np.mean(seen["cost"]) < 1.0
    assert 0.97 < np.mean(seen["discounted_return"]) < 1.0


@pytest.mark.slow
def test_on_two_states_crpo_keeps_its_promise_for_the_policies_that_took_a_step_for_the_return():
    seen = later_half("crpo", BRIEF)
    promised = seen["recovering"] == 0.0
    assert 0.2 < np.mean(promised) < 0.9, "it takes steps of both kinds"
    assert np.mean(seen["discounted_return"][promised]) > 0.97
    assert np.mean(seen["cost"][promised]) < 1.05


def test_the_average_is_over_the_last_policies_and_of_crpo_over_those_that_took_a_step_for_the_return():
    epochs = ground_truth.AVERAGED + 50
    metrics = {
        "discounted_return": np.arange(epochs, dtype=float),
        "cost": np.stack([np.arange(epochs), -np.arange(epochs)], axis=1).astype(float),
        "recovering": np.arange(epochs) % 2.0,
    }
    last = np.arange(50, epochs)
    for algorithm, counted in (("rcpo", last), ("crpo", last[last % 2 == 0])):
        found = ground_truth.averaged(metrics, algorithm)
        assert found["return"] == counted.mean()
        assert found["costs"] == [counted.mean(), -counted.mean()]


NOISY = pytest.mark.xfail(
    reason="what a batch tells of a drift is too little; see docs/ground-truth.md", raises=AssertionError, strict=True
)


@pytest.mark.parametrize("case", [pytest.param(case, marks=[NOISY] * case.startswith("queueing")) for case in CASES])
@pytest.mark.parametrize("algorithm", ["pdo", "apdo", "cpo"])
@pytest.mark.slow
def test_the_optimum_is_reached_over_five_seeds(case, algorithm):
    seen = verdicts(ground_truth.train(case, algorithm))
    assert np.all(seen["shortfall"] <= RETURN_BAR), seen
    assert np.all(seen["excess"] <= COST_BAR), seen
    if algorithm != "cpo":
        assert np.all(seen["error"] <= MULTIPLIER_BAR), seen


def test_the_documents_tables_are_those_of_the_results():
    text = ground_truth.DOCUMENT.read_text(encoding="utf-8")
    for name, table in ground_truth.tables().items():
        assert table in text, name
