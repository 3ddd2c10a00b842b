"""Stochastic policies as networks: Gaussian if an action is a vector, categorical if it is a choice.

Both have the same methods, so code that improves a policy need not know which kind it is.
"""

import dataclasses
from math import inf
from typing import TypeAlias, TypeVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from apdo.core import categorical, gaussian, networks
from apdo.core.statistics import CLIP, Statistics
from apdo.options import OURS, PAPER, option

Policy: TypeAlias = gaussian.Policy | categorical.Policy
N = TypeVar("N")


@dataclasses.dataclass(frozen=True)
class Config:
    """The shape of a policy network, and its initial exploration."""

    hidden: tuple[int, ...] = option((64, 32), "hidden layers of the policy network, tanh", PAPER, above=0, most=10**5)
    log_std: float = option(-0.5, "initial log standard deviation of each action entry", OURS)
    output_scale: float = option(
        0.01,
        "factor on the last layer's initial weights: near 0 the first policy is pure exploration",
        OURS,
        within=(0.0, inf),
    )
    bound: float = option(0.0, "a tanh keeps the mean action within ±bound; 0: no bound", PAPER, within=(0.0, inf))


def init(
    config: Config,
    key: PRNGKeyArray,
    observation_size: int,
    action_size: int,
    *,
    discrete: bool,
    image: networks.Image | None = None,
) -> Policy:
    """A new policy. `discrete`: an action is one of `action_size` choices; `image`: observations begin with one."""
    network = networks.build(key, observation_size, config.hidden, action_size, config.output_scale, image)
    if discrete:
        return categorical.Policy(logits=network)
    return gaussian.Policy(mean=network, log_std=jnp.full((action_size,), config.log_std), bound=config.bound)


class Normalised(eqx.Module):
    """A policy network behind the normalisation of its observations."""

    network: PyTree
    statistics: Statistics

    def __call__(self, observation: Float[Array, " O"]) -> PyTree:
        """The action distribution at one raw observation."""
        return self.network(self.statistics.normalise(observation))

    def around(self) -> dict[str, np.ndarray]:
        """The normalisation before the network, under the names of an exported policy's arrays."""
        if float(self.statistics.count) == 0:
            return {}
        return {
            "observation_mean": np.asarray(self.statistics.mean),
            "observation_std": np.asarray(self.statistics.scale()),
            "observation_clip": np.asarray(CLIP, dtype=np.float32),
        }


def over_raw(network: N, statistics: Statistics | None) -> N | Normalised:
    """A policy for raw observations: it normalises them by the statistics, if there are any, before the network."""
    return network if statistics is None else Normalised(network=network, statistics=statistics)
