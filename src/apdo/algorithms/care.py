"""Care: how PDO continues from an off-policy actor that APDO has adopted.

Such an actor is near the optimum, where L is flat and a small change of λ changes costs a lot. PDO's usual steps would
lose the optimum again. They use the multipliers of the previous epoch, so costs oscillate about their limits. And they
go to the edge of the trust region, even if their direction is mostly noise. With care

    λ moves first, so that a policy step responds to the costs of its own batch   (`first` of PDO)
    a step of TRPO is multiplied by the agreement of two halves of its batch:     d_1·g_2 / d·g

Here g is a gradient and d = H⁻¹g; indices 1 and 2 are the halves of the environments, and without index it is all of
them. g_1 and g_2 are the true gradient plus independent noise, so the ratio is the true share of the predicted gain.

Before the adoption nothing changes: with shorter steps a policy that still has to learn takes twice as long
(docs/transfer.md).
"""

from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from apdo.errors import InvalidInput
from apdo.problem import Asked

Careful = Bool[Array, ""] | None
"""Whether this epoch's steps are careful; None if no epoch's ever are."""
_NEEDED = {"companion": False, "adjust": "primal-dual", "values": "separate"}
"""The values of other options that care needs: one jump with an actor, and multipliers that can move first."""


@runtime_checkable
class Config(Protocol):
    """The part of APDO's settings that care depends on."""

    @property
    def careful(self) -> bool:
        """Whether PDO's steps are careful after the adoption of an actor."""
        ...


def suited(asked: Asked) -> dict[str, object]:
    """The default: care if actions are choices, unless a given option contradicts it."""
    meant = all(asked.given.get(name, needed) == needed for name, needed in _NEEDED.items())
    return {"careful": True} if asked.discrete_actions and meant and "first" not in asked.given else {}


def start(config: Config) -> Careful:
    """The state before the first actor; InvalidInput if other options contradict care."""
    if not config.careful:
        return None
    for name, needed in _NEEDED.items():
        if (given := getattr(config, name)) != needed:
            raise InvalidInput(f"careful goes on from the actor of a jump; with {name} {given} it has no meaning.")
    return jnp.asarray(False)


def agreement(gradients: Float[Array, "H P"], directions: Float[Array, "H P"]) -> Float[Array, ""]:
    """d_1·g_2 / d·g, clipped to [0, 1]. It is 1 for a single environment, which is both halves."""
    confirmed = jnp.mean(jnp.sum(gradients * directions[::-1], axis=1))
    promised = jnp.vdot(jnp.mean(gradients, axis=0), jnp.mean(directions, axis=0))
    return jnp.clip(confirmed / jnp.where(promised > 0.0, promised, 1.0), 0.0, 1.0)
