"""Starts a training from what an earlier one has learned, instead of from random networks.

The new run takes the policy with its normalisation of observations. It also takes the value functions, if both runs
have one for the return and one for each cost, in the same shape. Everything else (multipliers, optimisers, buffers, the
record of the best policy) starts as usual, so from its first epoch on the run is like any other.

From a run folder, each seed takes the best policy of the earlier run's seed in the same place; if there are fewer
seeds, they are taken in turn. The value functions are those of the newest policy. A policy of `apdo.load` is used for
every seed. The first state is saved as the checkpoint before epoch 0, so resuming does not need the earlier run.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from apdo import loop
from apdo.algorithms import on_policy, scaled
from apdo.core import categorical, critics, deterministic, gaussian, networks, policies, squashed
from apdo.core.statistics import Statistics
from apdo.errors import InvalidInput
from apdo.experiment import checkpoint, chosen
from apdo.experiment.settings import Experiment
from apdo.own import OBJECT
from apdo.policy import Policy

RECORD = "started_from"
"""The entry of `run.json` that describes a warm start."""
_KINDS = {
    gaussian.Policy: "Gaussian",
    categorical.Policy: "categorical",
    deterministic.Policy: "deterministic",
    squashed.Policy: "squashed Gaussian",
}
_given: dict[str, Policy] = {}
"""Policies that were given as objects in this process, by the name that they have in a run's settings."""


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """The state before epoch 0."""

    state: loop.State
    about: dict[str, Any]
    """The source of the state, as an entry of `run.json`."""


@dataclasses.dataclass(frozen=True)
class _Saved:
    """What one seed of the earlier run has learned."""

    policy: Policy
    values: on_policy.LearnedValues | None
    seed: int | None = None


def name_of(source: object) -> str:
    """The name of a warm start's source in a run's settings: a folder, or a policy's name made from its numbers."""
    if isinstance(source, Path):
        return str(source)
    if isinstance(source, str):
        return source
    if not isinstance(source, Policy):
        raise InvalidInput(f"start_from is a run folder or a policy of apdo.load, not a {type(source).__name__}.")
    name = f"{OBJECT}policy {_digest(source.network)[:12]}"
    _given[name] = source
    return name


def words(source: str) -> str:
    """The source of a warm start, for display."""
    return "a given policy" if source.startswith(OBJECT) else source


def of(experiment: Experiment, training: loop.Training, seeds: list[int], recorded: object = None) -> WarmStart | None:
    """The first state of an experiment that starts from an earlier run or a given policy; None if it starts fresh.

    `recorded` is the entry of `run.json` if the start was made before: the new state must be equal to that one.
    """
    source = experiment.settings.start_from
    if not source:
        return None
    begin = getattr(training.algorithm, "start_from", None)
    if begin is None:
        raise InvalidInput(
            f"{experiment.algorithm} cannot start from a saved policy; the algorithms that learn on-policy can."
        )
    learned = _learned(source)
    taken = [learned[i % len(learned)] for i in range(len(seeds))]
    fresh = loop.start(training, seeds)
    like = jax.tree.map(lambda leaf: leaf[0], fresh.algorithm)
    try:
        starts = [_fitted(training, like, one) for one in taken]
    except InvalidInput as error:
        raise InvalidInput(f"{experiment.algorithm} cannot start from {words(source)}: {error}") from None
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts)
    about = {
        "source": words(source),
        "policies": [one.policy.about for one in taken],
        "seeds": [one.seed for one in taken],
        "values": stacked.critic is not None,
        "sha256": _digest(stacked),
    }
    if isinstance(recorded, dict) and recorded.get("sha256") != about["sha256"]:
        raise InvalidInput(
            f"no checkpoint is left, and {words(source)}, which the run started from, is not what it was: train again."
        )
    algorithm = jax.jit(jax.vmap(begin))(fresh.algorithm, stacked)
    return WarmStart(dataclasses.replace(fresh, algorithm=algorithm), about)


def _learned(source: str) -> list[_Saved]:
    """What there is to start from: one entry for each seed of a run, or a single policy."""
    if source.startswith(OBJECT):
        if source not in _given:
            raise InvalidInput(
                "the run started from a policy that was a Python object, which no file can bring back; "
                "train again, with start_from=..."
            )
        policy = _given[source]
        return [_Saved(policy, _known(policy.learned_values))]
    from apdo.experiment import evaluation  # it imports the runner, which imports this module

    experiment, training, state = evaluation.load_run(source, without_environment=True)
    seeds = evaluation.seeds_of(experiment)
    best, newest = (chosen.policies(training, seeds, state, newest=last) for last in (False, True))
    return [
        _Saved(policy, _known(last.learned_values), seed)
        for policy, last, seed in zip(best, newest, seeds, strict=True)
    ]


def _known(values: object) -> on_policy.LearnedValues | None:
    """Value functions if they are of the on-policy algorithms' kind; otherwise None."""
    return values if isinstance(values, on_policy.LearnedValues) else None


def _fitted(training: loop.Training, like: PyTree, saved: _Saved) -> on_policy.Start:
    """The parts that the algorithm starts with. InvalidInput says if they do not fit a fresh state."""
    meaning = None
    if isinstance(like, scaled.State):
        like, meaning = like.inner, like.meaning
    network, statistics, own_meaning = _unwrapped(saved.policy.network)
    _check_spaces(training, saved.policy, network)
    _check_meaning(training, saved.policy, own_meaning, meaning)
    _check_normalisation(statistics, like.statistics)
    _check_network(network, like.policy)
    critic = _values(training, saved.values, statistics, getattr(like, "critic", None))
    return on_policy.Start(policy=network, statistics=statistics, critic=critic)


def _unwrapped(network: PyTree) -> tuple[PyTree, Statistics | None, scaled.ActionMeaning | None]:
    """The policy network alone, and the normalisation and the mapping of actions around it."""
    statistics, meaning = None, None
    if isinstance(network, scaled.RawPolicy):
        network, meaning = network.network, network.meaning
    if isinstance(network, policies.Normalised):
        network, statistics = network.network, network.statistics
    return network, statistics, meaning


def _check_spaces(training: loop.Training, policy: Policy, network: PyTree) -> None:
    problem = training.problem
    if policy.observation_size != problem.observation_size:
        raise InvalidInput(
            f"its policy sees {policy.observation_size} numbers, and this environment shows {problem.observation_size}."
        )
    if policy.discrete != problem.discrete_actions:
        kinds = ("vectors", "choices")
        own, wanted = kinds[policy.discrete], kinds[problem.discrete_actions]
        raise InvalidInput(f"its policy's actions are {own}, and this environment's are {wanted}.")
    mode = jax.eval_shape(lambda o: network(o).mode(), jnp.zeros(policy.observation_size))
    if mode.shape[0] != problem.action_size:
        kind = "choices" if policy.discrete else "numbers in an action"
        raise InvalidInput(f"its policy has {mode.shape[0]} {kind}, and this environment {problem.action_size}.")


def _check_meaning(
    training: loop.Training, policy: Policy, own: scaled.ActionMeaning | None, wanted: scaled.ActionMeaning | None
) -> None:
    """Check that an action means the same in both environments."""
    if not _same(own, wanted):
        raise InvalidInput(f"its actions are {_range(own)}, and this environment's {_range(wanted)}.")
    choices = getattr(training.environment, "action_choices", None)
    table = np.arange(training.problem.action_size) if choices is None else choices.table()
    own_table = np.arange(training.problem.action_size) if policy.choices is None else policy.choices
    if policy.discrete and not np.array_equal(table, own_table):
        raise InvalidInput("its choices stand for other actions than this environment's.")


def _range(meaning: scaled.ActionMeaning | None) -> str:
    if meaning is None:
        return "numbers as they are"
    ends = (meaning(-jnp.ones_like(meaning.shift)), meaning(jnp.ones_like(meaning.shift)))
    return "mapped to {} to {}".format(*(", ".join(f"{x:g}" for x in np.asarray(end)) for end in ends))


def _check_normalisation(own: Statistics | None, wanted: Statistics | None) -> None:
    if (own is None) != (wanted is None):
        said = "raw observations" if own is None else "normalised observations"
        raise InvalidInput(f"its policy sees {said}; give --normalise {'false' if own is None else 'true'}.")


def _check_network(own: PyTree, wanted: policies.Policy) -> None:
    if type(own) is not type(wanted):
        kind, needed = _KINDS.get(type(own), type(own).__name__), _KINDS[type(wanted)]
        raise InvalidInput(f"its policy is a {kind} one, and a {needed} one is needed.")
    layers, needed = _layers(own), _layers(wanted)
    hidden = [",".join(str(bias.shape[-1]) for bias in network.biases[:-1]) for network in (layers, needed)]
    if hidden[0] != hidden[1]:
        raise InvalidInput(
            f"its policy network has hidden layers of {hidden[0]}, and this run's of {hidden[1]}; "
            f"give --policy.hidden {hidden[0]}."
        )
    bounds = [getattr(policy, "bound", 0.0) for policy in (own, wanted)]
    if bounds[0] != bounds[1]:
        raise InvalidInput(
            f"its policy's mean is bounded by {bounds[0]:g}, and this run's by {bounds[1]:g} (0: not at all); "
            f"give --policy.bound {bounds[0]:g}."
        )
    if not _alike(own, wanted):
        raise InvalidInput("its policy network is built otherwise than this run's (see --torso).")


def _layers(policy: policies.Policy) -> networks.MLP:
    return networks.connected(policy.mean if isinstance(policy, gaussian.Policy) else policy.logits)


def _values(
    training: loop.Training,
    own: on_policy.LearnedValues | None,
    statistics: Statistics | None,
    wanted: critics.Critic | None,
) -> critics.Critic | None:
    """The value functions, converted to the policy's normalisation of observations; None if they do not fit."""
    signals = 1 + training.problem.constraints
    if own is None or wanted is None or wanted.mean.shape != (signals,) or not _alike(own.critic, wanted):
        return None
    return on_policy.rebase(own.critic, own.statistics, statistics)


def _alike(one: PyTree, other: PyTree) -> bool:
    """Whether two trees have the same structure, shapes and types."""
    if jax.tree.structure(one) != jax.tree.structure(other):
        return False
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)


def _same(one: PyTree, other: PyTree) -> bool:
    """Whether two trees hold the same numbers."""
    pairs: Sequence[tuple[Any, Any]] = list(zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=False))
    same_structure = jax.tree.structure(one) == jax.tree.structure(other)
    return same_structure and all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)


def _digest(tree: PyTree) -> str:
    """The SHA-256 of a tree's numbers, in hexadecimal."""
    digest = hashlib.sha256()
    for name, leaf in checkpoint.named(tree):
        array = checkpoint.to_numpy(leaf)
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
