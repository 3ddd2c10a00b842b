"""The dual step that follows a batch: a rule of `dual`, in the units that its gains are counted in."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from apdo.core import dual


def steer(
    rule: dual.Config,
    multiplier: dual.Multiplier,
    cost: Float[Array, " M"],
    limit: Float[Array, " M"],
    step: float | Float[Array, ""],
    units: dual.Relative | None,
) -> dual.Multiplier:
    """λ after a batch with this cost, in relative units or, where there are none, in the problem's own.

    With a step of 0 it stays what it is, whatever the rule adds.
    """
    if units is None:
        moved = dual.update(rule, multiplier, cost - limit, step)
    else:
        moved = relative(rule, multiplier, cost, limit, step, units)
    # The step may be an argument of the program, and 0 for some of the runs that share it.
    held = step == 0.0
    return jax.tree.map(lambda old, new: jnp.where(held, old, new), multiplier, moved)


def relative(
    rule: dual.Config,
    multiplier: dual.Multiplier,
    cost: Float[Array, " M"],
    limit: Float[Array, " M"],
    step: float | Float[Array, ""],
    units: dual.Relative,
) -> dual.Multiplier:
    """λ after a batch with this cost, by gains that are pure numbers."""
    unit = units.unit(multiplier.integral)
    return dual.update(rule, multiplier, units.excess(cost, limit), step, unit, units.price())
