"""The limit d_k that is enforced while training: the given limit, less a margin for noise, shifted by the safety dial.

    d_k = d - min(m · error(C), s |d|, if d ≠ 0) + (1 - 2 S) · [C(π_0) - d]⁺ · 2^(-k/h)

**The margin.** If a policy's cost is exactly at the limit, half of all batches measure it above the limit. For a batch
to show that the policy keeps the limit, its cost has to be lower by about the error of the batch: m standard errors.
But a small batch must not ask for more than a share s of the limit. This cap does not apply to a limit of 0: a cost
that can be negative can stay below 0, and a cost that cannot has no error once it is 0.

s is a fifth in runs of up to a hundred epochs. A longer run has more batches of the policies near its end, and their
mean has a smaller error. A whole fifth would cost return for nothing there, so s falls like 1/√K with the epochs K.
This holds for PDO and APDO. CPO's costs stay above the limit that it enforces, and need the whole margin.

**The dial.**
S = 1/2 enforces d from the first epoch to the last: the plain algorithm. S = 1 starts as far below d as the first
policy's cost is above it, so the constraint comes before the return. S = 0 starts at the first policy's cost, so the
return comes first. In both cases the difference from d halves every h epochs, and the limit enforced in the end is d.
If the first policy keeps a limit, the dial does not change that limit.
"""

import dataclasses
from math import inf

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from apdo.core import annealing
from apdo.options import OURS, option

PLAIN = 0.5
"""S of the plain algorithm."""


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the dial and the margin. Algorithms that enforce a limit while training inherit them."""

    safety: float = option(
        PLAIN,
        "S, what comes first while the cost of the first policies is above its limit: 0 the return, 1 the constraint; "
        "0.5 is the plain algorithm",
        OURS,
        within=(0.0, 1.0),
    )
    safety_half_life: float = option(8.0, "h, epochs in which the dial's effect halves", OURS, above=0.0)
    margin: float = option(
        1.0,
        "m, by how many standard errors of a batch's cost the enforced limit is below the given one",
        OURS,
        within=(0.0, inf),
    )
    margin_most: float = option(0.2, "s, the largest margin, as a share of the limit", OURS, within=(0.0, 1.0))


class Dial(eqx.Module):
    """The state that the enforced limit depends on."""

    first: Float[Array, " M"]
    """C(π_0). It is known after the first epoch."""
    epoch: Int[Array, ""]
    """k, the number of epochs so far."""


def suited(epochs: int) -> dict[str, float]:
    """The default of `margin_most` for a run with this number of epochs."""
    return {"margin_most": annealing.in_a_long_run(Config().margin_most, epochs)}


def start(config: Config, constraints: int) -> Dial | None:
    """The dial before the first epoch; None for S = 1/2, which needs no state.

    The plain algorithm is then exactly the program without a dial. If only its arithmetic were the same, the compiler
    could round differently.
    """
    if config.safety == PLAIN:
        return None
    return Dial(first=jnp.zeros(constraints), epoch=jnp.asarray(0))


def enforce(
    config: Config, dial: Dial | None, cost: Float[Array, " M"], error: Float[Array, " M"], limit: Float[Array, " M"]
) -> tuple[Dial | None, Float[Array, " M"]]:
    """The dial for the next epoch, and d_k of this one, whose policy has this cost with this standard error."""
    below = limit
    if config.margin:
        most = jnp.where(limit == 0.0, inf, config.margin_most * jnp.abs(limit))
        below = limit - jnp.minimum(config.margin * error, most)
    if dial is None:
        return None, below
    first = jnp.where(dial.epoch == 0, cost, dial.first)
    shift = (1.0 - 2.0 * config.safety) * jnp.exp2(-dial.epoch / config.safety_half_life)
    return Dial(first=first, epoch=dial.epoch + 1), below + shift * jnp.maximum(first - limit, 0.0)


def measure(dial: Dial | None, limit: Float[Array, " M"]) -> dict[str, Array]:
    """d_k as a metric, if there is a dial."""
    return {} if dial is None else {"enforced_limit": limit}
