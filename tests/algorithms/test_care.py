"""How PDO goes on from an actor that was taken: multipliers first, and steps that halves of a batch confirm."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from jax.flatten_util import ravel_pytree

import apdo as library
from apdo import arguments
from apdo.algorithms import apdo, care, natural_steps, overshoot, pdo, ppo_steps
from apdo.algorithms.surrogate import Samples, Surrogate
from apdo.core import critics, dual, policies, trust_region
from apdo.errors import InvalidInput
from apdo.experiment import settings
from apdo.off_policy import ddpg, dual_estimate
from apdo.problem import Asked
from problems import Reach, problem_of, random_batch

SMALL: dict[str, Any] = {
    "policy": policies.Config(hidden=(8,), bound=2.0),
    "critic": critics.Config(hidden=(8,), minibatches=2),
}
LEARNER = ddpg.Learner(actor_hidden=(8,), bound=2.0, action_noise=0.3)
ACTOR: dict[str, Any] = SMALL | {"off_policy": dual_estimate.Config(learner=LEARNER, members=2)}
CHOICES = Asked(horizon=15, discrete_actions=True, epochs=50, batch=5000, given={})
YES, NO = jnp.asarray(True), jnp.asarray(False)


def epoch(careful, config=None, compiled=True):
    """An epoch of PDO from two prices, with or without care."""
    config = config or pdo.Config(**SMALL)
    task = Reach(costs=2)
    problem = problem_of(task, 400, (1.0, 20.0))
    state = pdo.init(config, problem, random.key(0))
    state = dataclasses.replace(state, multiplier=dual.start(config.rule, jnp.asarray([0.5, 0.7])))
    batch = random_batch(random.key(1), task, 10, 40)
    step = jax.jit(pdo.step, static_argnums=(0, 1)) if compiled else pdo.step
    after, metrics = step(config, problem, state, batch, random.key(2), careful)
    return state, after, metrics


def assert_same(ours, theirs):
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(one, other)


def test_before_an_actor_is_taken_an_epoch_is_what_it_is_without_care_bit_for_bit():
    """Operation by operation, since in another program a compiler may round otherwise."""
    assert_same(epoch(NO, compiled=False)[1:], epoch(None, compiled=False)[1:])


@pytest.mark.parametrize("primal", [natural_steps.Trpo(radius=0.02), ppo_steps.Ppo(minibatches=2, passes=2)])
def test_with_care_the_policys_step_answers_to_its_own_batchs_costs(primal):
    config = pdo.Config(primal=primal, **SMALL)
    before, after, metrics = epoch(YES, config)
    np.testing.assert_array_equal(metrics["multiplier"], after.multiplier.value)
    _, unmoved, plain = epoch(NO, config)
    np.testing.assert_array_equal(plain["multiplier"], before.multiplier.value)
    assert_same(after.multiplier, unmoved.multiplier)
    if isinstance(primal, ppo_steps.Ppo):
        ahead = epoch(None, dataclasses.replace(config, first="multipliers"))[1]
        np.testing.assert_allclose(ravel_pytree(after.policy)[0], ravel_pytree(ahead.policy)[0], atol=1e-4)


def test_other_units_give_the_same_step_with_care_bit_for_bit_and_multipliers_in_those_units():
    """Units and limits are arguments of one program, since a compiler may round one with other constants otherwise."""
    config, task = pdo.Config(**SMALL), Reach(costs=2)
    state = pdo.init(config, problem_of(task, 400), random.key(0))
    batch = random_batch(random.key(1), task, 10, 40)
    # Rewards that the actions earn, so that halves agree on something.
    batch = dataclasses.replace(batch, reward=batch.reward + batch.action[..., 0])

    @jax.jit
    def counted(reward, cost):
        problem = arguments.put(problem_of(task, 400), {"limits.0": 4.0 * cost, "limits.1": 20.0 * cost})
        start = dataclasses.replace(state, multiplier=dual.start(config.rule, jnp.asarray([0.5, 0.7]) * reward / cost))
        seen = dataclasses.replace(batch, reward=reward * batch.reward, cost=cost * batch.cost)
        after, metrics = pdo.step(config, problem, start, seen, random.key(2), YES)
        return after.policy, metrics["kl"], metrics["multiplier"] * cost / reward

    plain, other = counted(1.0, 1.0), counted(1024.0, 2.0**-10)
    assert 1e-4 < float(plain[1]) < 0.019
    assert_same(other, plain)


def test_a_step_is_as_much_shorter_as_halves_disagree_and_never_longer():
    held = epoch(YES, pdo.Config(overshoot=0.0, **SMALL))[2]["kl"]
    whole = epoch(None, pdo.Config(overshoot=0.0, first="multipliers", **SMALL))[2]["kl"]
    assert 0.0 <= held < 0.9 * whole


@pytest.mark.parametrize("noise", [0.0, 1.0, 4.0])
def test_what_halves_agree_on_is_the_share_of_a_gradient_that_is_not_noise(noise):
    """|μ|² / (|μ|² + σ² / 2), of two halves with independent noise σ in a metric of its own."""
    size, metric = 20_000, jnp.linspace(0.5, 2.0, 20_000)
    truth, errors = random.normal(random.key(0), (size,)), random.normal(random.key(1), (2, size))
    gradients = truth[None] + noise * errors
    agreed = float(care.agreement(gradients, gradients * metric[None]))
    np.testing.assert_allclose(agreed, 1.0 / (1.0 + noise**2 / 2.0), atol=0.02)


def test_halves_that_contradict_each_other_allow_no_step_and_no_gradient_any():
    gradients = jnp.asarray([[1.0, 0.0], [-1.0, 0.1]])
    assert float(care.agreement(gradients, gradients)) == 0.0
    assert np.isfinite(care.agreement(jnp.zeros((2, 3)), jnp.zeros((2, 3))))


def test_a_crossing_that_allows_less_than_halves_agree_on_has_the_last_word():
    policy = policies.init(policies.Config(hidden=(8, 8), output_scale=1.0), random.key(0), 3, 2, discrete=False)
    observation = random.normal(random.key(1), (200, 3))
    action = jax.vmap(lambda o, k: policy(o).sample(k))(observation, random.split(random.key(2), 200))
    advantage = action[:, 0] - action[:, 0].mean()
    surrogate = Surrogate.at(policy, Samples(observation, action, advantage, jnp.ones(200)))
    product = trust_region.fisher(natural_steps.Trpo(), policy, observation)
    natural = lambda v: trust_region.conjugate_gradient(product, v, 10)  # noqa: E731
    gradient = ravel_pytree(jax.grad(surrogate.gain)(policy))[0]
    promised = jnp.vdot(natural(gradient), gradient)
    half = jnp.stack([jnp.arange(200) % 2 == 0, jnp.arange(200) % 2 == 1]) * 2.0

    def share(allowed, careful):
        limits = jnp.zeros(1), jnp.asarray([allowed]) * promised
        return float(
            overshoot.Crossing((advantage / 200.0)[:, None], half, *limits, careful).share(surrogate, policy, natural)
        )

    agreed = share(100.0, YES)
    assert 0.0 < agreed < 1.0 == share(100.0, NO)
    assert share(0.01, YES) == share(0.01, NO) < agreed


@pytest.mark.parametrize("taken", [True, False])
def test_care_begins_with_the_first_actor_that_is_taken_and_one_that_is_refused_does_not_end_it(taken):
    config, task = apdo.Config(careful=True, k_adj=0, **ACTOR), Reach(costs=1)
    problem = problem_of(task, 200, (100.0,))
    state = apdo.init(config, problem, random.key(0))
    batch = random_batch(random.key(1), task, 10, 20)
    assert not bool(state.careful)

    def after_a_trial(state, against):
        told = (jnp.asarray(True), jnp.asarray(against))
        state = eqx.tree_at(lambda s: (s.trial.on, s.trial.objective), state, told)
        return jax.jit(apdo.step, static_argnums=(0, 1))(config, problem, state, batch, random.key(2))

    state, metrics = after_a_trial(state, -1e6 if taken else 1e6)
    assert bool(metrics["actor_taken"]) == bool(state.careful) == taken
    state, metrics = after_a_trial(state, 1e6)
    assert not bool(metrics["actor_taken"])
    assert bool(state.careful) == taken


def test_care_is_the_default_where_actions_are_choices_and_no_option_that_was_given_speaks_against_it():
    assert apdo.suited(CHOICES)["careful"]
    assert "careful" not in apdo.suited(CHOICES._replace(discrete_actions=False))
    for given in ({"first": "policy"}, {"adjust": "dual"}, {"companion": True}, {"values": "combined"}):
        assert "careful" not in apdo.suited(CHOICES._replace(given=given))
    assert settings.make_experiment("apdo", "two-state", {}).algorithm_config.careful
    assert not settings.make_experiment("apdo", "two-state", {}, preset="paper").algorithm_config.careful


@pytest.mark.parametrize(
    "others",
    [{"adjust": "dual"}, {"companion": True}, {"values": "combined", "units": "own"}],
    ids=lambda o: next(iter(o)),
)
def test_care_that_has_no_meaning_with_other_options_is_refused_at_the_start(others):
    config = apdo.Config(careful=True, **others, **ACTOR)
    with pytest.raises(InvalidInput, match="careful goes on from the actor of a jump"):
        apdo.init(config, problem_of(Reach(costs=2), 200), random.key(0))


def test_a_run_goes_on_bit_for_bit_while_care_is_taken(tmp_path):
    def train(name, callbacks=()):
        return library.train(
            "apdo",
            "two-state",
            epochs=6,
            batch=200,
            k_adj=0,
            check=False,
            checkpoint_every=1,
            off_policy__iterations=100,
            off_policy__members=1,
            policy__hidden=(8,),
            critic__hidden=(8,),
            off_policy__learner__actor_hidden=(8,),
            out=tmp_path / name,
            quiet=True,
            callbacks=list(callbacks),
        )

    whole = train("whole")
    assert whole.metrics["actor_taken"].any()
    train("interrupted", [lambda epoch: "that will do" if epoch.epoch == 4 else None])
    resumed = library.resume(tmp_path / "interrupted", quiet=True)
    for name, values in whole.metrics.items():
        np.testing.assert_array_equal(resumed.metrics[name], values, err_msg=name)
