"""Multipliers without units: what rewards and costs are counted in changes multipliers, and nothing else.

Rewards × a, costs and limits × b, with powers of two, give the same policies bit for bit and multipliers × a/b. Units
and limits are arguments of one program, since a compiler may round a program with other constants otherwise.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import apdo as library
from apdo import arguments, envs, hosted, loop
from apdo.algorithms import (
    apdo,
    cpo,
    crpo,
    cup,
    focops,
    gradient_steps,
    ipo,
    natural_steps,
    p3o,
    pcpo,
    pdo,
    ppo_steps,
    sac_lag,
)
from apdo.core import critics, dual, policies
from apdo.experiment import opening, settings
from apdo.off_policy import ddpg, dual_estimate, sac_online
from host_environments import Line
from problems import Reach, run, training_of

SMALL: dict[str, Any] = {
    "policy": policies.Config(hidden=(8,), bound=2.0),
    "critic": critics.Config(hidden=(8,), minibatches=2),
}
LEARNER = dataclasses.replace(dual_estimate.DEPENDABLE, critic_hidden=(8,), actor_hidden=(8,), minibatch=16)
OFF_POLICY = dual_estimate.Config(learner=LEARNER, members=2, iterations=100)
SOFT = dataclasses.replace(sac_online.ONLINE, critic_hidden=(8,), actor_hidden=(8,), minibatch=16, costs=2, bound=2.0)
CONFIGS: dict[str, Any] = {
    "pdo, PID": (pdo, pdo.Config(**SMALL)),
    "pdo, ascent": (pdo, pdo.Config(rule=dual.Ascent(decay=0.5), **SMALL)),
    "pdo, Adam": (pdo, pdo.Config(rule=dual.Adam(), **SMALL)),
    "pdo, PPO": (pdo, pdo.Config(primal=ppo_steps.Ppo(minibatches=2, passes=2), **SMALL)),
    "pdo, PPO with entropy": (
        pdo,
        pdo.Config(primal=ppo_steps.Ppo(minibatches=2, passes=2, entropy=0.2, anneal=5.0), **SMALL),
    ),
    "pdo, steps that shrink": (pdo, pdo.Config(primal=natural_steps.Trpo(rate=0.3, anneal=5.0), **SMALL)),
    "cpo, steps that shrink": (cpo, cpo.Config(anneal=5.0, **SMALL)),
    "pdo, safety first": (pdo, pdo.Config(safety=0.9, **SMALL)),
    "pdo, dual step first": (pdo, pdo.Config(first="multipliers", **SMALL)),
    "cpo": (cpo, cpo.Config(**SMALL)),
    "cpo, return first": (cpo, cpo.Config(safety=0.2, **SMALL)),
    "sac-lag": (sac_lag, sac_lag.Config(learner=SOFT, replay_capacity=1000, warm_up=0, updates=0.5)),
    "apdo, multipliers": (apdo, apdo.Config(k_adj=1, adjust="dual", off_policy=OFF_POLICY, check=False, **SMALL)),
    "apdo, multipliers and policy": (
        apdo,
        apdo.Config(k_adj=1, off_policy=OFF_POLICY, check=False, careful=True, **SMALL),
    ),
    "apdo, a companion": (
        apdo,
        apdo.Config(
            companion=True,
            k_adj=3,
            off_policy=dual_estimate.Config(learner=dataclasses.replace(SOFT, activation="tanh"), members=1),
            **SMALL,
        ),
    ),
}
REWARD, COST = 1024.0, 2.0**-10
MORE = {"pdo, ascent", "pdo, Adam", "pdo, PPO", "pdo, safety first", "cpo, return first", "apdo, multipliers"}
MORE |= {"cpo, steps that shrink", "pdo, steps that shrink", "cup", "p3o", "ipo", "crpo"}
"""Whose own part has the law tested where it stands (core/test_dual, core/test_dial), or differs in little else."""


def marked(names, more=MORE):
    """The names, those with more of the same marked as slow."""
    return [pytest.param(name, marks=[pytest.mark.slow] * (name in more)) for name in names]


QUICK: dict[str, Any] = {"minibatches": 2, "passes": 2}
PPO = ppo_steps.Ppo(**QUICK)
NAMED: dict[str, Any] = {
    "focops": (focops, focops.Config(primal=gradient_steps.Passes(**QUICK), **SMALL)),
    "cup": (cup, cup.Config(primal=PPO, projection=gradient_steps.Passes(**QUICK), **SMALL)),
    "pcpo": (pcpo, pcpo.Config(**SMALL)),
    "p3o": (p3o, p3o.Config(primal=PPO, **SMALL)),
    "ipo": (ipo, ipo.Config(primal=PPO, **SMALL)),
    "crpo": (crpo, crpo.Config(**SMALL)),
}


@dataclasses.dataclass(frozen=True)
class Counted(Reach):
    """The same task with rewards and costs in other units."""

    reward_unit: float = 1.0
    cost_unit: float = 1.0

    def step(self, state, action, key):
        outcome = super().step(state, action, key)
        return outcome._replace(reward=self.reward_unit * outcome.reward, cost=self.cost_unit * outcome.cost)


def trained(name, reward, cost):
    algorithm, config = (CONFIGS | NAMED)[name]
    # Adam raises its multipliers within a few epochs only if costs are above the limits from the start.
    low, lower = (0.75, 0.375) if name == "pdo, Adam" else (1.5, 1.0)
    training = training_of(algorithm, config, Counted(costs=2), limits=(low, lower))
    units = {"environment.reward_unit": reward, "environment.cost_unit": cost}
    limits = {"problem.limits.0": low * cost, "problem.limits.1": lower * cost}
    state, history = run(training, [3], 5, units | limits)
    policy = jax.tree.leaves(jax.vmap(algorithm.learned_policy)(state.algorithm))
    return [np.asarray(leaf) for leaf in policy], np.asarray([row.get("multiplier", np.nan) for row in history])


@pytest.mark.parametrize("name", marked(CONFIGS))
def test_other_units_give_the_same_policies_bit_for_bit_and_multipliers_in_those_units(name):
    plain, multipliers = trained(name, 1.0, 1.0)
    assert np.any(multipliers > 0)
    policy, priced = trained(name, REWARD, COST)
    for ours, theirs in zip(policy, plain, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(priced, multipliers * np.float32(REWARD / COST))


@pytest.mark.parametrize("name", marked(NAMED))
def test_the_same_holds_of_algorithms_without_multipliers_of_their_own(name):
    plain, multipliers = trained(name, 1.0, 1.0)
    policy, priced = trained(name, REWARD, COST)
    for ours, theirs in zip(policy, plain, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(priced, multipliers * np.float32(REWARD / COST))


@pytest.mark.parametrize("algorithm", marked(["pdo", "cpo", "apdo"], more={"cpo", "apdo"}))
def test_the_same_holds_with_a_gymnasium_environment_and_normalised_observations(tmp_path, algorithm):
    """Up to rounding, which two epochs amplify to a thousandth: another limit makes another program here."""
    options: dict[str, Any] = {"policy.hidden": (8,), "critic.hidden": (8,), "batch": 60, "epochs": 2}
    if algorithm == "apdo":
        options |= {"check": False, "k_adj": 0, "off_policy.iterations": 100, "off_policy.learner.actor_hidden": (8,)}

    def learned(name, reward, cost) -> Any:
        return library.train(
            algorithm,
            lambda: Line(reward_unit=reward),
            costs=lambda before, action, after, info: cost * float(after[0] > 0.5),
            limits=0.5 * cost,
            max_episode_steps=6,
            out=tmp_path / name,
            quiet=True,
            **options,
        )

    plain, other = learned("plain", 1.0, 1.0), learned("other", 256.0, 2.0**-10)
    for ours, theirs in zip(*(jax.tree.leaves(each.newest[0].network) for each in (other, plain)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-2)
    np.testing.assert_allclose(other.metrics["multiplier"], plain.metrics["multiplier"] * 2.0**18, rtol=1e-2)
    assert np.any(plain.metrics["multiplier"] > 0.0)


def posed(algorithm, reward, cost):
    """A training on a Gymnasium task with normalised observations, with rewards and costs in other units."""

    def spent(before, action, after, info):
        return cost * float(after[0] > 0.5)

    name, task, _ = envs.of_object(lambda: Line(reward_unit=reward), spent)
    options: dict[str, Any] = {"policy.hidden": (8,), "critic.hidden": (8,), "critic.minibatches": 2, "batch": 60}
    options |= {"epochs": 5, "limits": 0.5 * cost, "max_episode_steps": 6}
    if algorithm == "apdo":
        options |= {f"off_policy.learner.{part}_hidden": (8,) for part in ("critic", "actor")}
        options |= {"companion": True, "off_policy.learner": "sac", "off_policy.learner.minibatch": 16}
        # Limits on totals cannot be arguments of an off-policy learner's program.
        options |= {"k_adj": 3, "off_policy.members": 1, "constrain": "discounted"}
    return opening.training_of(settings.make_experiment(algorithm, name, options, task=task))


@pytest.mark.parametrize("algorithm", marked(["pdo", "cpo", "apdo"], more={"apdo"}))
def test_with_a_gymnasium_environment_policies_are_the_same_bit_for_bit_where_limits_are_arguments(algorithm):
    """What the environments do is collected apart, and the step of both is one program."""
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    shared = posed(algorithm, 1.0, 1.0)

    @jax.jit
    def learn(limit, own, best, key, batch, number):
        training = arguments.put(shared, {"problem.limits.0": limit})
        return loop.learn(training, own, best, jax.random.fold_in(key, number), batch, number)[:3]

    def trained(reward, cost):
        training, told = posed(algorithm, reward, cost), []
        advance, state = hosted.Advance(training), loop.start(shared, [3])
        for _ in range(5):
            given = (state.algorithm, state.best, state.key, advance._collect(state))
            own = jax.tree.map(lambda leaf: leaf[0], given)
            after, best, metrics = learn(jnp.float32(0.5 * cost), *own, state.epoch)
            after, best = jax.tree.map(lambda leaf: leaf[None], (after, best))
            state = dataclasses.replace(state, algorithm=after, best=best, epoch=state.epoch + 1)
            told.append(np.asarray(metrics["multiplier"]))
        advance.close()
        assert state.best is not None
        policies = (jax.vmap(training.algorithm.learned_policy)(state.algorithm), state.best.policy)
        return [np.asarray(leaf) for leaf in jax.tree.leaves(policies)], np.asarray(told)

    plain, multipliers = trained(1.0, 1.0)
    other, priced = trained(REWARD, COST)
    assert np.any(multipliers > 0.0)
    for ours, theirs in zip(other, plain, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(priced, multipliers * np.float32(REWARD / COST))


def test_in_its_own_units_the_papers_dual_step_is_the_papers():
    config = pdo.Config(rule=dual.Ascent(), units="own", dual_step=0.1, margin=0.0, **SMALL)
    _, history = run(training_of(pdo, config, Reach(costs=1)), [0], 3)
    costs, multipliers = (np.asarray([row[name][0, 0] for row in history]) for name in ("cost", "multiplier"))
    np.testing.assert_allclose(multipliers[1], max(0.0, 0.1 * (costs[0] - 0.5)), rtol=1e-5)
    np.testing.assert_allclose(multipliers[2], max(0.0, multipliers[1] + 0.1 * (costs[1] - 0.5)), rtol=1e-5)


def test_appendix_learner_counts_in_the_problems_own_units():
    assert ddpg.Learner().units == "own"
