"""Sampling: the only vmap over environments, the only automatic reset, the only time limit."""

from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from apdo.core.data import Transition
from apdo.envs.environment import Environment

Act = Callable[[PyTree, Float[Array, " O"], PRNGKeyArray], tuple[Float[Array, " A"], PyTree]]
"""(memory, observation, key) ↦ (action, memory), for one environment. A memory lasts for one episode."""


class _Running(eqx.Module):
    """The state of one environment within its episode, and whether the next step begins a new episode."""

    state: PyTree
    observation: Float[Array, " O"]
    memory: PyTree
    step: Int[Array, ""]
    over: Bool[Array, ""]


def collect(
    environment: Environment,
    act: Act,
    memory: PyTree,
    key: PRNGKeyArray,
    *,
    steps: int,
    environments: int,
    seeds_axis: str | None = None,
) -> Transition:
    """T steps of N environments. Each starts with a new episode, and is reset whenever an episode ends.

    Resets are computed only in steps in which some environment needs one. Under a vmap over seeds, `seeds_axis` is the
    name of its axis: resets are then computed for all seeds in the same steps, and each uses the ones it needs.
    """

    def tick(running: _Running, key: PRNGKeyArray) -> tuple[_Running, Transition]:
        reset_keys, act_keys, step_keys = jax.random.split(key, (3, environments))

        def restart(running: _Running) -> _Running:
            fresh = jax.vmap(partial(_begin, environment, memory))(reset_keys)
            return jax.tree.map(lambda new, old: jnp.where(_like(running.over, old), new, old), fresh, running)

        needed = jnp.any(running.over)
        if seeds_axis is not None:
            needed = jax.lax.pmax(needed.astype(jnp.int32), seeds_axis) > 0
        running = jax.lax.cond(needed, restart, lambda same: same, running)
        return jax.vmap(partial(_advance, environment, act))(running, act_keys, step_keys)

    # Before the first step every environment counts as over, so the first step resets it.
    one = jax.eval_shape(partial(_begin, environment, memory), key)
    idle = jax.tree.map(lambda leaf: jnp.zeros((environments, *leaf.shape), leaf.dtype), one)
    idle = eqx.tree_at(lambda running: running.over, idle, jnp.ones(environments, dtype=bool))
    return jax.lax.scan(tick, idle, jax.random.split(key, steps))[1]


def _begin(environment: Environment, memory: PyTree, key: PRNGKeyArray) -> _Running:
    """One environment at the start of an episode."""
    state = environment.reset(key)
    return _Running(
        state=state,
        observation=environment.observe(state),
        memory=memory,
        step=jnp.asarray(0),
        over=jnp.asarray(False),
    )


def _advance(
    environment: Environment, act: Act, running: _Running, act_key: PRNGKeyArray, step_key: PRNGKeyArray
) -> tuple[_Running, Transition]:
    """One step of one environment; the horizon ends its episode."""
    action, memory = act(running.memory, running.observation, act_key)
    outcome = environment.step(running.state, action, step_key)
    at_horizon = running.step + 1 >= environment.horizon
    if environment.horizon_terminates:
        terminated, truncated = outcome.terminated | at_horizon, jnp.asarray(False)
    else:
        terminated, truncated = outcome.terminated, at_horizon & ~outcome.terminated
    transition = Transition(
        observation=running.observation,
        action=action,
        reward=outcome.reward,
        cost=outcome.cost,
        next_observation=outcome.observation,
        terminated=terminated,
        truncated=truncated,
        step=running.step,
        plain_reward=outcome.plain_reward,
    )
    onward = _Running(
        state=outcome.state,
        observation=outcome.observation,
        memory=memory,
        step=running.step + 1,
        over=terminated | truncated,
    )
    return onward, transition


def _like(flag: Array, leaf: Array) -> Array:
    return flag.reshape(flag.shape + (1,) * (leaf.ndim - 1))


def watch(environment: Environment, act: Act, memory: PyTree, key: PRNGKeyArray) -> tuple[PyTree, Transition]:
    """One episode: its states [H + 1] from the first on, and its steps [H]. Entries after its end have no meaning."""
    reset_key, key = jax.random.split(key)
    start = environment.reset(reset_key)

    def tick(
        carry: tuple[PyTree, PyTree], now: tuple[Array, Array]
    ) -> tuple[tuple[PyTree, PyTree], tuple[PyTree, Transition]]:
        (state, memory), (step, key) = carry, now
        act_key, step_key = jax.random.split(key)
        observation = environment.observe(state)
        action, memory = act(memory, observation, act_key)
        outcome = environment.step(state, action, step_key)
        last = step + 1 >= environment.horizon
        terminated = outcome.terminated | (last & environment.horizon_terminates)
        transition = Transition(
            observation=observation,
            action=action,
            reward=outcome.reward,
            cost=outcome.cost,
            next_observation=outcome.observation,
            terminated=terminated,
            truncated=last & ~terminated,
            step=step,
        )
        return (outcome.state, memory), (outcome.state, transition)

    steps = (jnp.arange(environment.horizon), jax.random.split(key, environment.horizon))
    reached, transitions = jax.lax.scan(tick, (start, memory), steps)[1]
    return jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), start, reached), transitions
