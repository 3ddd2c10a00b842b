"""Care: how PDO goes on from an off-policy actor that APDO has taken.

Such an actor is near the optimum, where L is flat and a small change of λ moves costs far. Steps of a policy that still
has to learn lose it again: their multipliers are those of the epoch before, so that costs swing about their limits, and
they are as long as a trust region allows, however little of their direction is more than noise. With care

    λ moves first, so that a policy's step answers to its own batch's costs   (`first` of PDO)
    a step of TRPO is as much shorter as two halves of its batch disagree:    · d_1·g_2 / d·g

with g a gradient and d = H⁻¹g, of one half of the environments or of all. Where g is the truth and noise, g_1 and g_2
have the truth in common and nothing else, so that the ratio is the share of what a step promises that is true.

Before that nothing is different: with shorter steps a policy that still has to learn takes twice as long
(docs/transfer.md).
"""

from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from apdo.errors import InvalidInput
from apdo.problem import Asked

Careful = Bool[Array, ""] | None
"""Whether an epoch is one of care; None: none ever is."""
_NEEDED = {"companion": False, "adjust": "primal-dual", "values": "separate"}
"""What care needs of other options: an actor of one jump, and multipliers that can move first."""


@runtime_checkable
class Config(Protocol):
    """What of APDO's settings it depends on."""

    @property
    def careful(self) -> bool:
        """Whether PDO goes on with care."""
        ...


def suited(asked: Asked) -> dict[str, object]:
    """Care where actions are choices, unless an option that was given speaks against it."""
    meant = all(asked.given.get(name, needed) == needed for name, needed in _NEEDED.items())
    return {"careful": True} if asked.discrete_actions and meant and "first" not in asked.given else {}


def start(config: Config) -> Careful:
    """Before the first actor; InvalidInput where other options leave nothing to take care of."""
    if not config.careful:
        return None
    for name, needed in _NEEDED.items():
        if (given := getattr(config, name)) != needed:
            raise InvalidInput(f"careful goes on from the actor of a jump; with {name} {given} it has no meaning.")
    return jnp.asarray(False)


def agreement(gradients: Float[Array, "H P"], directions: Float[Array, "H P"]) -> Float[Array, ""]:
    """d_1·g_2 / d·g, within 0 and 1; 1 where a single environment is both halves."""
    confirmed = jnp.mean(jnp.sum(gradients * directions[::-1], axis=1))
    promised = jnp.vdot(jnp.mean(gradients, axis=0), jnp.mean(directions, axis=0))
    return jnp.clip(confirmed / jnp.where(promised > 0.0, promised, 1.0), 0.0, 1.0)
