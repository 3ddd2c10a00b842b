"""The constrained Markov decision process that an algorithm is asked to solve.

    maximise R(π)  subject to  C_i(π) ≤ d_i,  i = 1..m        (paper, equation 1)

`Problem` owns the numbers of that statement, once: every algorithm, the dual step and the report read them here.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from apdo.errors import InvalidInput


@dataclasses.dataclass(frozen=True)
class Problem:
    """Sizes, discounts and limits of a constrained Markov decision process."""

    observation_size: int
    action_size: int
    batch: int
    """Samples of one epoch: T of Algorithm 1."""
    limits: tuple[float, ...]
    """d_1..d_m, in units of the cost of one episode."""
    discount: float
    """γ of the reward."""
    cost_discount: float
    """γ of the constrained costs. The paper's C_i is discounted; for a plain total it is 1 (see `objective`)."""
    horizon: int
    """The most steps of an episode."""
    truncates: bool
    """Whether the horizon truncates an episode, so that its last step bootstraps, rather than terminates it."""
    discrete_actions: bool = False
    """Whether an action is one of `action_size` choices, given as a one-hot vector, rather than a real vector."""
    normalise: bool = False
    """Whether networks see observations normalised by their running mean and variance."""

    image: tuple[int, int, int] | None = None
    """Height, width and channels, if an observation begins with an image, as bytes in a vector."""

    def __post_init__(self) -> None:
        if not self.limits:
            raise InvalidInput("a constrained problem needs at least one limit.")
        for limit in self.limits:
            if not math.isfinite(limit):
                raise InvalidInput(f"a limit must be a finite number, not {limit}.")
        for name, value in (("discount", self.discount), ("cost discount", self.cost_discount)):
            if not 0.0 <= value <= 1.0:
                raise InvalidInput(f"the {name} must lie between 0 and 1, not {value}.")

    @property
    def constraints(self) -> int:
        """m, the number of constraints."""
        return len(self.limits)

    @property
    def limit(self) -> Float[Array, " M"]:
        """d as a vector."""
        return jnp.asarray(self.limits, dtype=jnp.float32)


class Asked(NamedTuple):
    """The task and run that an algorithm's default options may depend on: its `suited(asked)` returns the defaults."""

    horizon: int
    """The steps of an episode."""
    discrete_actions: bool
    epochs: int
    batch: int
    """The samples of an epoch."""
    given: Mapping[str, Any]
    """The options that the user has given, by dotted name."""
