"""Checks whether a user's module or class is an algorithm. They test the contract without computing anything."""

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import random
from jaxtyping import PyTree

from apdo import own
from apdo.algorithms.contract import OwnConfig
from apdo.core.data import Transition
from apdo.errors import InvalidInput
from apdo.problem import Problem

Candidate: TypeAlias = Any
"""An object that may be an algorithm."""
PARTS = {
    "init": ("config", "problem", "key"),
    "memory": ("config", "problem"),
    "act": ("config", "state", "memory", "observation", "key"),
    "step": ("config", "problem", "state", "batch", "key"),
    "learned_policy": ("state",),
}
"""The functions of an algorithm and their arguments, in order."""
MEASURED = ("return", "discounted_return", "return_error", "cost", "cost_error")
"""The metrics that an algorithm must return so that its best policy can be found; `on_policy.measure` gives them."""


def check(name: str, algorithm: Candidate) -> None:
    """Raise InvalidInput with a sentence for each part of the contract that is missing."""
    faults = []
    for part, given in PARTS.items():
        function = getattr(algorithm, part, None)
        if not callable(function):
            faults.append(f"it has no function {part}({', '.join(given)}).")
        elif not _takes(function, len(given)):
            faults.append(f"{part} must take ({', '.join(given)}).")
    if not hasattr(algorithm, "Config"):
        faults.append("it has no Config, a frozen dataclass of options.")
    else:
        faults += own.check_options(algorithm.Config, "Config")
    _raise(name, faults)


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True


def try_out(
    name: str,
    algorithm: Candidate,
    config: OwnConfig,
    problem: Problem,
    steps: int,
    environments: int,
) -> None:
    """Raise InvalidInput if the functions do not fit each other or the problem. Only shapes are traced."""
    key = jax.eval_shape(lambda: random.key(0))
    state = _shapes(name, "init", lambda k: algorithm.init(config, problem, k), key)
    if problem.normalise and getattr(state, "statistics", None) is None:
        raise InvalidInput(
            f"{own.short(name)} sees observations as they come, because its state has no statistics, but this run is "
            "to normalise them: add --normalise false (in Python: normalise=False)."
        )
    memory = _shapes(name, "memory", lambda: algorithm.memory(config, problem))
    observation = jax.ShapeDtypeStruct((problem.observation_size,), jnp.float32)
    action = jax.ShapeDtypeStruct((problem.action_size,), jnp.float32)
    faults = []
    acted = _shapes(name, "act", lambda s, m, o, k: algorithm.act(config, s, m, o, k), state, memory, observation, key)
    if not isinstance(acted, tuple) or len(acted) != 2:
        faults.append("act must return (action, memory).")
    else:
        if getattr(acted[0], "shape", None) != action.shape:
            faults.append(f"act must return an action of shape {action.shape}, not {_shown(acted[0])}.")
        if not _alike(acted[1], memory):
            faults.append("act must return a memory like the one that it was given.")
    drawn = _shapes(name, "learned_policy", lambda s, o: _both(algorithm.learned_policy(s)(o)), state, observation)
    faults += [
        f"learned_policy must give a distribution whose {part}() has shape {action.shape}, not {_shown(found)}."
        for part, found in zip(("mode", "sample"), drawn, strict=True)
        if getattr(found, "shape", None) != action.shape
    ]
    batch = _batch(problem, steps, environments)
    stepped = _shapes(name, "step", lambda s, b, k: algorithm.step(config, problem, s, b, k), state, batch, key)
    _raise(name, faults + _step_faults(algorithm, stepped, state))


def _step_faults(algorithm: Candidate, stepped: PyTree, state: PyTree) -> list[str]:
    if not isinstance(stepped, tuple) or len(stepped) != 2 or not isinstance(stepped[1], dict):
        return ["step must return (state, metrics), metrics being a dictionary of arrays by name."]
    faults = []
    if not _alike(stepped[0], state):
        faults.append("step must return a state of the same structure, shapes and types as init's.")
    missing = [name for name in MEASURED if name not in stepped[1]]
    if missing and getattr(algorithm, "samples_its_policy", True):
        faults.append(f"step's metrics lack {', '.join(missing)}; on_policy.measure(problem, batch) gives them.")
    return faults


def _shapes(name: str, part: str, function: Callable[..., PyTree], *given: PyTree) -> PyTree:
    """The shapes of a function's result; InvalidInput with the reason if it raises an error."""
    try:
        return jax.eval_shape(function, *given)
    except InvalidInput:
        raise
    except Exception as error:
        said = " ".join(str(error).split())
        raise InvalidInput(f"{own.short(name)}: {part} raised {type(error).__name__}: {said[:200]}.") from error


def _both(distribution: PyTree) -> tuple[PyTree, PyTree]:
    return distribution.mode(), distribution.sample(random.key(0))


def _batch(problem: Problem, steps: int, environments: int) -> Transition:
    def array(*shape: int, dtype: type = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((steps, environments, *shape), dtype)

    fields = {"observation": array(problem.observation_size), "next_observation": array(problem.observation_size)}
    fields |= {"action": array(problem.action_size), "reward": array(), "cost": array(problem.constraints)}
    fields |= {"terminated": array(dtype=bool), "truncated": array(dtype=bool), "step": array(dtype=jnp.int32)}
    return jax.eval_shape(lambda given: Transition(**given), fields)


def _alike(one: PyTree, other: PyTree) -> bool:
    if jax.tree.structure(one) != jax.tree.structure(other):
        return False
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in pairs)


def _shown(found: PyTree) -> str:
    return str(getattr(found, "shape", type(found).__name__))


def _raise(name: str, faults: list[str]) -> None:
    if faults:
        raise InvalidInput(f"{own.short(name)} is no algorithm: {' '.join(faults)}")
