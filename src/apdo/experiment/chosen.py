"""The choice of a run's policy: the best that training has found, unless the newest is asked for."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from apdo import best, loop, objective
from apdo.policy import Policy


@dataclasses.dataclass(frozen=True)
class BestPolicy:
    """A seed's best policy, with what its own batch says about it."""

    seed: int
    epoch: int
    """The policy after this many epochs of learning; it drew the batch that the other fields describe."""
    returned: float
    """The return that the objective maximises."""
    return_error: float
    cost: tuple[float, ...]
    """The costs that the limits apply to."""
    cost_error: tuple[float, ...]
    known: bool
    """Whether it keeps the limits with 95 % confidence."""
    discounted: bool = False
    """Whether return and costs are discounted."""

    def plain(self) -> dict[str, Any]:
        """The entry in `run.json`."""
        return {
            "seed": self.seed,
            "epoch": self.epoch,
            "return": self.returned,
            "return_error": self.return_error,
            "cost": list(self.cost),
            "cost_error": list(self.cost_error),
            "known": self.known,
        }

    def words(self) -> str:
        """A description of the policy in words."""
        if self.known:
            return f"the policy of epoch {self.epoch}, the best that is known to keep the limits"
        return f"the policy of epoch {self.epoch}, the nearest to the limits, for none is known to keep them"

    def figures(self) -> str:
        """Its return and costs in training, with their standard errors, as text."""
        costs = ", ".join(f"{cost:.4g} ± {error:.2g}" for cost, error in zip(self.cost, self.cost_error, strict=True))
        kind = "discounted return" if self.discounted else "return"
        return f"{kind} {self.returned:.4g} ± {self.return_error:.2g}, cost {costs}"


def best_policies(training: loop.Training, seeds: Sequence[int], state: loop.State) -> list[BestPolicy]:
    """The best policy of each seed; empty if the algorithm keeps none, or before the first epoch."""
    kept = state.best
    if kept is None:
        return []
    epoch, known, returned, return_error = jax.device_get((kept.epoch, kept.known, kept.returned, kept.return_error))
    if int(epoch[0]) == best.NONE:
        return []
    cost, cost_error = (np.asarray(values, dtype=float) for values in (kept.cost, kept.cost_error))
    return [
        BestPolicy(
            seed=seed,
            epoch=int(epoch[i]),
            returned=float(returned[i]),
            return_error=float(return_error[i]),
            cost=tuple(cost[i].tolist()),
            cost_error=tuple(cost_error[i].tolist()),
            known=bool(known[i]),
            discounted=not objective.is_total(training.problem),
        )
        for i, seed in enumerate(seeds)
    ]


def policies(training: loop.Training, seeds: Sequence[int], state: loop.State, newest: bool = False) -> list[Policy]:
    """The policy of each seed: the best if the algorithm keeps one, unless the newest is asked for."""
    after = int(state.epoch)
    there = [] if newest else best_policies(training, seeds, state)
    if state.best is None or not there:
        noisy = "; batches drawn with noise say nothing of which is best"
        why = "" if newest or loop.keeps_best(training.algorithm) else noisy
        networks = jax.vmap(training.algorithm.learned_policy)(state.algorithm)
        words = f"the newest policy, after {after} epoch{'s' * (after != 1)}{why}"
        return _policies(training, networks, [words] * len(seeds), _values(training, state))
    return _policies(training, state.best.policy, [one.words() for one in there])


def _values(training: loop.Training, state: loop.State) -> PyTree | None:
    """The newest value functions by seed; None unless there is one for the return and one for each cost."""
    own = getattr(training.algorithm, "learned_values", None)
    values = None if own is None else jax.vmap(own)(state.algorithm)
    if values is None:
        return None
    size, m = training.problem.observation_size, training.problem.constraints
    first = jax.tree.map(lambda leaf: leaf[0], values)
    found = jax.eval_shape(first, jnp.zeros((1, size)), jnp.zeros(1, jnp.int32))
    return values if found.shape == (1, 1 + m) else None


def _policies(
    training: loop.Training, networks: PyTree, about: list[str], values: PyTree | None = None
) -> list[Policy]:
    problem, choices = training.problem, getattr(training.environment, "action_choices", None)
    table = None if choices is None else choices.table()
    layout = getattr(training.environment, "observation_layout", None)
    return [
        Policy(
            jax.tree.map(lambda leaf, i=i: leaf[i], networks),
            problem.observation_size,
            seed=i,
            discrete=problem.discrete_actions,
            choices=table,
            image=problem.image,
            layout=layout,
            about=words,
            values=None if values is None else jax.tree.map(lambda leaf, i=i: leaf[i], values),
        )
        for i, words in enumerate(about)
    ]
