"""Checks whether a user's class is an environment as this library needs it. Nothing is computed for that."""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import random

from apdo import own
from apdo.envs.environment import Outcome
from apdo.errors import InvalidInput

Candidate: TypeAlias = Any
"""A class that should be an environment, or an instance of it."""
SAYS = (
    "observation_size",
    "action_size",
    "discrete_actions",
    "cost_names",
    "limits",
    "discount",
    "horizon",
    "horizon_terminates",
)
"""The attributes that describe a task."""


def check(name: str, kind: Candidate) -> None:
    """Raise InvalidInput with a sentence for each missing part of the contract."""
    faults = own.check_options(kind, "the class")
    faults += [f"it does not say its {part}." for part in SAYS if not hasattr(kind, part)]
    faults += [f"it has no {part}." for part in ("reset", "observe", "step") if not callable(getattr(kind, part, None))]
    _raise(name, faults)
    try_out(name, kind())


def try_out(name: str, task: Candidate) -> None:
    """Raise InvalidInput if the functions return something else than the task declares. They are only traced."""
    key = jax.eval_shape(lambda: random.key(0))
    action = jax.ShapeDtypeStruct((task.action_size,), jnp.float32)
    try:
        state = jax.eval_shape(task.reset, key)
        observed = jax.eval_shape(task.observe, state)
        outcome = jax.eval_shape(task.step, state, action, key)
    except Exception as error:
        said = " ".join(str(error).split())
        raise InvalidInput(f"{own.short(name)} raised {type(error).__name__}: {said[:200]}.") from error
    if not isinstance(outcome, Outcome):
        _raise(name, ["step must return an apdo.envs.environment.Outcome."])
    costs = (len(task.cost_names),)
    expected = {
        "the observation of observe": (observed, (task.observation_size,)),
        "the observation of step": (outcome.observation, (task.observation_size,)),
        "the reward": (outcome.reward, ()),
        "the cost": (outcome.cost, costs),
        "terminated": (outcome.terminated, ()),
    }
    faults = [
        f"{what} must have shape {shape}, not {found.shape}."
        for what, (found, shape) in expected.items()
        if found.shape != shape
    ]
    if jax.tree.map(_kind, outcome.state) != jax.tree.map(_kind, state):
        faults.append("step must return a state of the same structure, shapes and types as reset's.")
    if outcome.terminated.dtype != bool:
        faults.append(f"terminated must be true or false, not {outcome.terminated.dtype}.")
    _raise(name, faults)


def _kind(leaf: jax.ShapeDtypeStruct) -> tuple[Any, Any]:
    return leaf.shape, leaf.dtype


def _raise(name: str, faults: list[str]) -> None:
    if faults:
        raise InvalidInput(f"{own.short(name)} is no environment: {' '.join(faults)}")
