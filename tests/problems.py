"""Small problems for tests: a task that is easy to understand, with as many costs as a test needs."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import random
from jax.flatten_util import ravel_pytree

from apdo import arguments, loop
from apdo.algorithms import primal_steps
from apdo.algorithms.surrogate import Samples
from apdo.core import categorical, networks, replay
from apdo.core.data import Transition, flatten
from apdo.envs.environment import Outcome
from apdo.off_policy.units import empty_buffer
from apdo.problem import Problem


@dataclasses.dataclass(frozen=True)
class Reach:
    """Push a point along a line. The reward is for the push; cost 0 is for pushing, and cost 1 for leaving the middle.

    The reward is a - 0.1 a², cost 0 is max(a, 0), and cost 1 is x². Without a constraint the best push is large; each
    cost alone limits it.
    """

    costs: int = 1
    horizon: int = 5
    horizon_terminates: bool = True
    reward_after: int = 10**6
    """The number of steps from the start of an episode after which the reward is NaN, to test a fault."""

    observation_size = 2
    action_size = 1
    discrete_actions = False
    discount = 0.99

    @property
    def cost_names(self):
        return tuple(f"cost {i}" for i in range(self.costs))

    @property
    def limits(self):
        return (0.5,) * self.costs

    def reset(self, key):
        return jnp.stack([0.1 * random.normal(key), jnp.zeros(())])

    def observe(self, state):
        return state

    def step(self, state, action, key):
        push = jnp.clip(action[0], -2.0, 2.0)
        moved = jnp.stack([0.5 * state[0] + 0.5 * push, state[1] + 1.0])
        every = jnp.stack([jnp.maximum(push, 0.0), jnp.square(moved[0])])
        reward = jnp.where(moved[1] > self.reward_after, jnp.nan, push - 0.1 * jnp.square(push))
        return Outcome(
            state=moved,
            observation=self.observe(moved),
            reward=reward,
            cost=every[: self.costs],
            terminated=jnp.asarray(False),
        )


def vector(values):
    return jnp.asarray(values, dtype=jnp.float32)


def random_buffer(task, problem):
    """A buffer with ten episodes of random steps in twenty environments."""
    batch = random_batch(random.key(1), task, 10, 20)
    return replay.insert(empty_buffer(problem, 1000), flatten(batch))


def problem_of(task, batch, limits=None, *, normalise=False):
    return Problem(
        observation_size=task.observation_size,
        action_size=task.action_size,
        batch=batch,
        limits=tuple(limits or task.limits),
        discount=task.discount,
        cost_discount=task.discount,
        horizon=task.horizon,
        truncates=not task.horizon_terminates,
        discrete_actions=task.discrete_actions,
        normalise=normalise,
    )


def training_of(algorithm, config, task=None, environments=40, limits=None, side_by_side=False, normalise=False):
    task = task or Reach()
    return loop.Training(
        algorithm=algorithm,
        config=config,
        problem=problem_of(task, environments * task.horizon, limits, normalise=normalise),
        environment=task,
        steps=task.horizon,
        environments=environments,
        side_by_side=side_by_side,
    )


advance_of, adjuster_of = functools.cache(loop.make_advance), functools.cache(loop.Adjuster)
"""Compiled once for all tests with the same training. A test that patches the compiled code must make its own."""


def run(training, seeds, epochs, numbers=loop.NONE):
    """The state after so many epochs, one call for each, and the metrics of each, including adjustments.

    `numbers` replace the training's own, as arguments of the same program.
    """
    advance, adjuster = advance_of(training), adjuster_of(arguments.put(training, numbers))
    rows = {name: jnp.full(len(seeds), value) for name, value in numbers.items()}
    state, history = loop.start(training, seeds, rows), []
    for epoch in range(epochs):
        chunk = advance(state, jnp.asarray(1, dtype=jnp.int32), rows)
        state = chunk.state
        assert int(chunk.done) == 1, {name: flags.tolist() for name, flags in chunk.finite.items()}
        history.append({name: value[0] for name, value in chunk.metrics.items()})
        if adjuster.due(epoch):
            learner = adjuster.work(state, adjuster.begin(state), adjuster.total)
            supported = jnp.ones(len(seeds), dtype=bool)
            state, _ = adjuster.finish(state, learner, supported)
    return state, history


def random_batch(key, task, steps, environments):
    """Transitions with random observations and actions of a task's sizes, without its dynamics."""
    shape = (steps, environments)
    keys = random.split(key, 6)
    return Transition(
        observation=random.normal(keys[0], (*shape, task.observation_size)),
        action=random.normal(keys[1], (*shape, task.action_size)),
        reward=random.normal(keys[2], shape),
        cost=jnp.abs(random.normal(keys[3], (*shape, task.costs))),
        next_observation=random.normal(keys[4], (*shape, task.observation_size)),
        terminated=(jnp.arange(steps) % task.horizon == task.horizon - 1)[:, None] & jnp.ones(shape, dtype=bool),
        truncated=jnp.zeros(shape, dtype=bool),
        step=(jnp.arange(steps) % task.horizon)[:, None] + jnp.zeros(shape, dtype=jnp.int32),
    )


def one_state_policy(logits):
    """A categorical policy with free logits, whose observation is constant."""
    return categorical.Policy(
        logits=networks.MLP(weights=(jnp.zeros((1, len(logits))),), biases=(jnp.asarray(logits),))
    )


def one_state_samples(policy, advantage):
    """Every choice once, weighted by its probability, so that means over samples are exact expectations."""
    chances = policy(jnp.ones(1)).probabilities
    count = chances.shape[0]
    return Samples(
        observation=jnp.ones((count, 1)),
        action=jnp.eye(count),
        advantage=jnp.asarray(advantage),
        weight=count * chances,
    )


def improved(config, policy, samples):
    """The policy after one primal step, the state of its optimiser, and the step's metrics."""
    step = jax.jit(primal_steps.improve, static_argnums=0)
    return step(config, policy, primal_steps.init(config, policy), samples, random.key(4))


def descended(loss, policy, steps=3000, rate=0.02):
    """The policy that minimises a loss, found by Adam on all of its data."""
    flat, unravel = ravel_pytree(policy)
    optimiser = optax.adam(rate)

    def one(carry, _):
        theta, state = carry
        gradient = jax.grad(lambda theta: loss(unravel(theta)))(theta)
        updates, state = optimiser.update(gradient, state)
        return (theta + updates, state), None

    run = jax.jit(lambda theta: jax.lax.scan(one, (theta, optimiser.init(theta)), None, length=steps)[0][0])
    return unravel(run(flat))


def chances_of(policy):
    return np.asarray(policy(jnp.ones(1)).probabilities)
