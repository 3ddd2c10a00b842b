"""Saute and early termination: what is left of a budget, against its definition, in every kind of environment."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import apdo
from apdo import envs, objective, rollout
from apdo.envs import budget
from apdo.envs.environment import Environment
from apdo.experiment import evaluation, opening, settings
from apdo.report import runs
from problems import Reach

HORIZON, LIMITS, DISCOUNT = 8, (0.9, 0.6), 0.9


def played(kind):
    """Twenty environments of random pushes, as [T, N] arrays."""
    task = Reach(costs=2, horizon=HORIZON)
    if kind != "none":
        task = budget.wrap(task, kind, LIMITS, DISCOUNT, -7.0)
    assert isinstance(task, Environment)

    def act(memory, observation, key):
        return random.normal(key, (1,)), memory

    batch = rollout.collect(task, act, (), random.key(0), steps=HORIZON, environments=20)
    return jax.tree.map(np.asarray, batch)


def spent_before(batch, i):
    """1 - Σ_{k<t} γ^k c_k / d over the first T steps of environment i, by hand."""
    factor = DISCOUNT ** np.arange(HORIZON)[:, None]
    return 1.0 - np.cumsum(factor * batch.cost[:, i] / np.asarray(LIMITS), axis=0)


def test_the_augmented_state_is_what_is_left_of_each_budget_at_that_time():
    batch = played("saute")
    np.testing.assert_array_equal(batch.observation[0, :, 2:], 1.0)
    exhausted = 0
    for i in range(20):
        left = spent_before(batch, i) / DISCOUNT ** np.arange(1, HORIZON + 1)[:, None]
        exact = np.cumprod(left >= -1.0, axis=0).astype(bool)  # what is far below is only held to be so
        np.testing.assert_allclose(batch.next_observation[:, i, 2:][exact], left[exact], rtol=1e-4, atol=1e-4)
        over = (left < 0.0).any(axis=1)
        exhausted += over.sum()
        np.testing.assert_array_equal(batch.reward[over, i], -7.0)
        assert (batch.reward[~over, i] != -7.0).all()
    assert 10 < exhausted < 150
    assert not batch.terminated[:-1].any()


def test_the_plain_return_is_what_the_environment_itself_pays():
    """The same pushes in the same episodes, with and without budgets: only the wrapped reward differs."""
    batch = played("saute")
    bare = played("none")
    np.testing.assert_array_equal(batch.plain_reward, bare.reward)
    assert bare.plain_reward is None
    assert (batch.plain_reward != batch.reward).any()
    paid, plain = (objective.plain_return(jax.tree.map(jnp.asarray, one)) for one in (batch, bare))
    assert paid == plain == pytest.approx(bare.reward.sum() / 20, rel=1e-5)


def test_an_early_terminated_episode_ends_with_the_step_that_exhausts_a_budget():
    batch = played("early-termination")
    for i in range(20):
        over = (spent_before(batch, i) < 0.0).any(axis=1)
        if over.any():
            end = int(np.argmax(over))
            assert batch.terminated[end, i]
            assert not batch.terminated[:end, i].any()
            assert batch.reward[end, i] == -7.0
            if end + 1 < HORIZON:
                np.testing.assert_array_equal(batch.observation[end + 1, i, 2:], 1.0)
                assert batch.step[end + 1, i] == 0


def test_a_budget_that_is_spent_to_the_last_unit_is_not_exhausted():
    task = budget.wrap(Reach(costs=1), "saute", (2.5,), 1.0, -7.0)
    state = task.reset(random.key(0))
    for _ in range(5):
        outcome = task.step(state, jnp.asarray([0.5]), random.key(1))
        state = outcome.state
        assert float(outcome.reward) != -7.0
    assert float(task.step(state, jnp.asarray([0.5]), random.key(1)).reward) == -7.0


@pytest.mark.parametrize(
    ("environment", "changes", "said"),
    [
        ("point-gather", {"wrap": "saute", "limits": 0.0}, "must be positive"),
        ("Pendulum-v1", {"wrap": "early-termination", "cost": "abs(obs[2])", "limits": 0.0}, "must be positive"),
        ("Pendulum-v1", {"wrap": "saute", "cost": "abs(obs[2])", "limits": 1.0, "unsafe_reward": math.nan}, "nan"),
        ("point-gather", {"wrap": "sautee"}, "saute"),
    ],
)
def test_what_cannot_be_wrapped_is_refused_in_one_sentence(environment, changes, said):
    if "-v" in environment:
        pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    with pytest.raises(apdo.InvalidInput, match=said):
        settings.make_experiment("pdo", environment, changes)


def test_an_environment_of_the_host_is_charged_to_the_same_budgets(tmp_path):
    """Trained, loaded without the environment, and evaluated; the policy sees the budgets."""
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    from host_environments import Counting

    small = {"policy__hidden": (4,), "critic__hidden": (4,), "primal": "reinforce", "epochs": 1, "batch": 12}
    seen = {}

    class Spy(budget.BudgetedCopies):
        def step(self, *, last):
            super().step(last=last)
            seen.setdefault("left", []).append(self.arrays.next_observation[0, 2:].copy())
            seen.setdefault("reward", []).append(float(self.arrays.reward[0]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "BudgetedCopies", Spy)
        result = apdo.train(
            "trpo",
            Counting,
            limits=2.0,
            constrain="total",
            max_episode_steps=3,
            wrap="saute",
            unsafe_reward=-9.0,
            out=tmp_path / "run",
            quiet=True,
            **small,
        )
    # A step costs half of its number: 0.5, 1, 1.5 of a budget of 2, and the reward is the number.
    np.testing.assert_allclose(np.ravel(seen["left"][:3]), [0.75, 0.25, -0.5], atol=1e-6)
    assert seen["reward"][:3] == [1.0, 2.0, -9.0]
    assert result.policy(np.zeros(3)).shape == (2,)
    assert apdo.load(tmp_path / "run", newest=True)(np.zeros(3)).shape == (2,)


def played_on_the_host(copies, steps):
    """Random pushes, the same for whoever plays them, as [T, N] arrays by name."""
    pushes = np.random.default_rng(0).normal(size=(steps, *copies.arrays.action.shape))
    names = ("reward", "cost", "next_observation", "terminated", "truncated")
    rows = []
    copies.reset([1, 2, 3, 4])
    for t in range(steps):
        row = {"observation": copies.arrays.observation.copy(), "step": copies.arrays.step.copy()}
        copies.arrays.action[:] = pushes[t]
        copies.step(last=t + 1 == steps)
        rows.append(row | {name: getattr(copies.arrays, name).copy() for name in names})
    copies.close()
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize("workers", ["0", "2"])
def test_early_termination_on_the_host_is_what_an_environment_does_that_stops_itself(workers):
    """The twin adds up every cost of its episode anew in each step, inside the environment."""
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    from host_environments import Spending, StopsItself

    given = {"max_episode_steps": 9, "workers": workers}
    _, kind, changes = envs.of_object(Spending)
    wrapped = budget.wrap(kind(**changes, **given), "early-termination", LIMITS, DISCOUNT, -7.0)
    _, kind, changes = envs.of_object(lambda: StopsItself(LIMITS, DISCOUNT, -7.0))
    ours = played_on_the_host(wrapped.open(5), 60)
    twin = played_on_the_host(kind(**changes, **given).open(5), 60)
    for name in ("reward", "cost", "terminated", "truncated", "step"):
        np.testing.assert_array_equal(ours[name], twin[name], err_msg=name)
    for name in ("observation", "next_observation"):
        np.testing.assert_array_equal(ours[name][..., :2], twin[name][..., :2], err_msg=name)
        np.testing.assert_allclose(ours[name][..., 2:], twin[name][..., 2:], atol=1e-5, err_msg=name)
    unsafe = ours["reward"] == -7.0
    assert (ours["terminated"] & unsafe).sum() > 20, "budgets were used up"
    assert (ours["terminated"] & ~unsafe).sum() > 2, "the environment ended episodes itself"
    assert ours["truncated"].sum() > 2, "some episodes kept their budgets to the end"
    np.testing.assert_array_equal(ours["terminated"] & ours["truncated"], False)


def test_a_run_with_early_termination_on_the_host_trains_goes_on_and_is_evaluated(tmp_path):
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    from host_environments import Counting

    given = {"limits": 2.0, "constrain": "total", "wrap": "early-termination", "unsafe_reward": -9.0, "quiet": True}
    given |= {"policy__hidden": (4,), "critic__hidden": (4,), "primal": "reinforce", "batch": 12, "workers": "0"}

    def make():
        return Counting(length=8)

    def trained(name, epochs):
        return apdo.train("trpo", make, out=tmp_path / name, epochs=epochs, max_episode_steps=9, **given)

    whole = trained("whole", 2)
    # A step costs half of its number: 0.5 + 1 + 1.5 is more than 2, so that every episode ends with its third step.
    np.testing.assert_array_equal(whole.metrics["episode_length"], 3.0)
    np.testing.assert_allclose(whole.metrics["return"], 1.0 + 2.0 - 9.0)
    np.testing.assert_allclose(whole.metrics["plain_return"], 1.0 + 2.0 + 3.0)
    np.testing.assert_allclose(whole.metrics["undiscounted_cost"], 3.0)
    trained("part", 1)
    resumed = apdo.resume(tmp_path / "part", epochs=2, quiet=True, environment=make)
    for name, values in whole.metrics.items():
        if "seconds" not in name:
            np.testing.assert_array_equal(values, resumed.metrics[name], err_msg=name)
    task = envs.of_object(make)[1]
    experiment = settings.Experiment.restore(runs.read_description(whole.path)["config"], task)
    found = evaluation.evaluate(whole.newest[0], opening.training_of(experiment), episodes=10)
    assert found.undiscounted_cost[0].mean == pytest.approx(3.0)
