"""The dual step after a batch: it applies a rule of `dual`, in `relative_units` or in those of the problem."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from apdo.core import dual, relative_units


def steer(
    rule: dual.Config,
    multiplier: dual.Multiplier,
    cost: Float[Array, " M"],
    limit: Float[Array, " M"],
    step: float | Float[Array, ""],
    units: relative_units.Relative | None,
    given: Float[Array, " M"],
) -> dual.Multiplier:
    """λ after a batch with this cost. Gains are relative to `units`, or without them in the problem's own units.

    `limit` is enforced, and `given` is the problem's. With a step of 0 λ does not change, whatever terms the rule adds.
    """
    if units is None:
        moved = dual.update(rule, multiplier, cost - limit, step)
    else:
        excess, unit = units.excess(cost, limit, given), units.unit(multiplier.integral)
        moved = dual.update(rule, multiplier, excess, step, unit, units.price())
    # The step may be an argument of the compiled program, and 0 for some of the runs that share the program.
    held = step == 0.0
    return jax.tree.map(lambda old, new: jnp.where(held, old, new), multiplier, moved)
