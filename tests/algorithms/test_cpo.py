"""CPO's epoch: units, safety of the line search, several constraints."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from jax.flatten_util import ravel_pytree

from apdo.algorithms import cpo, on_policy, primal_steps
from apdo.core import critics, policies, trust_region
from problems import Reach, random_batch, run, training_of

SEARCH = trust_region.LineSearch(fraction=1.0, iterations=50, damping=1e-2)
improve = jax.jit(cpo.improve, static_argnums=0)


@pytest.fixture(scope="module")
def policy():
    return policies.init(policies.Config(hidden=(8,)), random.key(0), 2, 1, discrete=False)


def on_policy_batch(policy, costs):
    """A batch whose actions are the policy's own; reward a, cost 0 the same, cost 1 its opposite, all per step."""
    batch = random_batch(random.key(1), Reach(costs=costs), 10, 200)
    keys = random.split(random.key(2), 2000)
    flat = batch.observation.reshape(2000, -1)
    action = jax.vmap(lambda o, k: policy(o).sample(k))(flat, keys).reshape(10, 200, 1)
    return type(batch)(**{**vars(batch), "action": action})


def advantages(batch, costs, length):
    """Per-episode advantages of reward a and of costs a², centred."""
    a = batch.action.reshape(-1)
    columns = [a, jnp.square(a), jnp.square(a - 1.0)][: 1 + costs]
    stacked = jnp.stack(columns, axis=-1)
    return length * (stacked - stacked.mean(axis=0, keepdims=True))


def gains(policy, batch, advantage, new):
    surrogate = primal_steps.Surrogate.around(policy, on_policy.samples(batch, batch.reward))
    return np.asarray(jnp.mean((surrogate.ratio(new) - 1.0)[:, None] * advantage, axis=0))


def test_a_slack_constraint_leaves_the_trpo_step(policy):
    batch = on_policy_batch(policy, 1)
    advantage = advantages(batch, 1, 5.0)
    new, metrics = improve(SEARCH, policy, batch, advantage, jnp.asarray([-1e3]))
    samples = primal_steps.Samples(batch.observation.reshape(2000, -1), batch.action.reshape(2000, -1), advantage[:, 0])
    trpo = jax.jit(primal_steps.improve, static_argnums=0)
    expected, _, _ = trpo(primal_steps.Trpo(**vars(SEARCH)), policy, (), samples, random.key(0))
    np.testing.assert_allclose(ravel_pytree(new)[0], ravel_pytree(expected)[0], rtol=1e-3, atol=1e-5)
    assert float(metrics["constrained"]) == 0.0
    assert float(metrics["multiplier"][0]) == 0.0


def test_a_violated_constraint_that_cannot_be_met_in_one_step_is_reduced(policy):
    batch = on_policy_batch(policy, 1)
    advantage = advantages(batch, 1, 5.0)
    new, metrics = improve(SEARCH, policy, batch, advantage, jnp.asarray([1e3]))
    assert float(metrics["recovering"]) == 1.0
    assert gains(policy, batch, advantage, new)[1] < -0.01


def test_a_binding_constraint_gives_a_step_that_uses_up_its_slack_and_no_more(policy):
    batch = on_policy_batch(policy, 1)
    advantage = advantages(batch, 1, 5.0)
    free, _ = improve(SEARCH, policy, batch, advantage, jnp.asarray([-1e3]))
    wish = gains(policy, batch, advantage, free)[1]
    assert wish > 0.05
    slack = 0.3 * wish
    new, metrics = improve(SEARCH, policy, batch, advantage, jnp.asarray([-slack]))
    reached = gains(policy, batch, advantage, new)
    assert float(metrics["constrained"]) == 1.0
    assert float(metrics["multiplier"][0]) > 0.0
    assert reached[0] > 0.0
    assert reached[1] <= slack


def test_from_outside_the_limits_a_step_may_give_up_return_to_come_back(policy):
    """Fails when the line search asks for return also from outside: CPO then stands still there."""
    batch = on_policy_batch(policy, 1)
    # The cost is the reward itself, so that every step back costs return; half of what one step can take off is asked.
    gain = advantages(batch, 1, 5.0)[:, :1]
    advantage = jnp.concatenate([gain, gain], axis=1)
    away, _ = improve(SEARCH, policy, batch, advantage, jnp.asarray([1e3]))
    excess = -0.5 * gains(policy, batch, advantage, away)[1:]
    new, metrics = improve(SEARCH, policy, batch, advantage, jnp.asarray(excess))
    assert float(metrics["recovering"]) == 0.0
    assert float(metrics["step_accepted"]) == 1.0
    reached = gains(policy, batch, advantage, new)
    assert reached[1] == pytest.approx(-excess[0], rel=0.1)
    assert reached[0] < 0.0


def test_every_constraint_is_honoured_not_only_the_worst(policy):
    """Cost 0 wants smaller actions, cost 1 larger ones: the step must respect both slacks at once."""
    batch = on_policy_batch(policy, 2)
    advantage = advantages(batch, 2, 5.0)
    for slack in ((0.02, 0.02), (0.02, 1e3), (1e3, 0.02)):
        new, metrics = improve(SEARCH, policy, batch, advantage, -jnp.asarray(slack))
        reached = gains(policy, batch, advantage, new)[1:]
        assert np.all(reached <= np.asarray(slack)), (slack, reached)
        assert float(metrics["step_accepted"]) == 1.0


def test_the_cost_gradient_is_scaled_to_episodes():
    """The step in c + bᵀx ≤ 0 is right only if b is per episode, as c is: fails when the episode length is dropped."""
    task = Reach(costs=1, horizon=10)
    policy = policies.init(policies.Config(hidden=(8,)), random.key(0), 2, 1, discrete=False)
    batch = on_policy_batch(policy, 1)
    per_step = advantages(batch, 1, 1.0)
    # Half of the cost that one recovering step can take off, by the right count.
    away, _ = improve(SEARCH, policy, batch, task.horizon * per_step, jnp.asarray([1e3]))
    c = -0.5 * gains(policy, batch, task.horizon * per_step, away)[1:]
    right, with_length = improve(SEARCH, policy, batch, task.horizon * per_step, c)
    _, without_length = improve(SEARCH, policy, batch, per_step, c)
    # An excess that one step can mend when costs are counted per episode looks out of reach when counted per step.
    assert float(with_length["recovering"]) == 0.0
    assert float(without_length["recovering"]) == 1.0
    assert gains(policy, batch, task.horizon * per_step, right)[1] <= 0.0


def test_the_epoch_multiplies_its_advantages_by_the_mean_episode_length(monkeypatch, policy):
    """The law above is about `improve`; this one ties `step` to it."""
    from problems import problem_of

    seen = {}

    def spy(search, policy, batch, advantage, excess):
        seen.update(advantage=advantage, excess=excess)
        return policy, {}

    monkeypatch.setattr(cpo, "improve", spy)
    batch = on_policy_batch(policy, 1)
    problem = problem_of(Reach(costs=1), 2000, (0.3,))
    config = cpo.Config()
    state = cpo.init(config, problem, random.key(0))
    cpo.step(config, problem, state, batch, random.key(1))
    estimates = on_policy.estimate(problem, state.critic, batch, config.trace, config.cost_trace)
    plain = estimates.advantage.reshape(-1, 2)
    expected = 5.0 * (plain - plain.mean(axis=0, keepdims=True))
    np.testing.assert_allclose(seen["advantage"], expected, rtol=1e-4, atol=1e-4)
    cost = on_policy.summary(problem, batch).constrained_cost
    np.testing.assert_allclose(seen["excess"], cost - 0.3, rtol=1e-5)


def test_all_costs_zero_and_all_advantages_equal_keep_the_policy_finite(policy):
    batch = on_policy_batch(policy, 1)
    for advantage in (jnp.zeros((2000, 2)), advantages(batch, 1, 5.0) * jnp.asarray([[1.0, 0.0]])):
        for excess in (-0.2, 0.0, 0.2):
            new, _ = improve(SEARCH, policy, batch, advantage, jnp.asarray([excess]))
            assert bool(jnp.all(jnp.isfinite(ravel_pytree(new)[0])))


def test_the_first_step_takes_more_off_the_cost_with_safety_first_than_with_the_return_first():
    """From a policy far over its limit: S = 1 recovers, S = 0 may keep the cost and does, since it pays."""
    small = {"policy": policies.Config(hidden=(8,)), "critic": critics.Config(hidden=(8,), minibatches=2)}
    after = {}
    for safety in (0.0, 1.0):
        training = training_of(cpo, cpo.Config(safety=safety, **small), Reach(), environments=400)
        _, history = run(training, [0], 3)
        first, third = history[0]["cost"][0, 0], history[2]["cost"][0, 0]
        np.testing.assert_allclose(history[0]["enforced_limit"], [[0.5 + (1 - 2 * safety) * (first - 0.5)]], rtol=1e-5)
        after[safety] = third - first
    assert after[1.0] < -0.2
    assert after[0.0] > after[1.0] + 0.2
