"""Which limit is enforced while training: the given one, less a margin for noise, moved by the safety dial.

    d_k = d - min(m · error(C), s |d|, if d ≠ 0) + (1 - 2 S) · [C(π_0) - d]⁺ · 2^(-k/h)

**The margin.** A policy whose cost is at the limit is beyond it half of the time, by what a batch can tell. To be known
to keep the limit it has to stay below by about as much as the batch may err, m standard errors; but a small batch must
not ask for more than a share s of the limit. A limit of 0 has no share: a cost that can be negative can stay below it,
and one that cannot has no error once it is 0.

s is a fifth in runs of up to a hundred epochs. Of a longer run more batches speak of the policies near its end, and
their mean errs less. A whole fifth would cost return for nothing there, so that s falls like 1/√K with the epochs (PDO
and APDO; CPO's costs stay above what it enforces, and need all of it).

**The dial.**
S = 1/2 enforces d from the first epoch to the last: the plain algorithm. S = 1 begins as far below d as the first
policy lies above it, so that its excess is given back before the return counts. S = 0 begins at what the first policy
costs, so that the return comes first. Either way the difference halves every h epochs, and what is enforced in the end
is d. A constraint that the first policy keeps has nothing to trade and stays as it is.
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
    """Where the dial stands; algorithms that enforce a limit while training have these among their own settings."""

    safety: float = option(
        PLAIN,
        "S, what comes first while the first policy's excess is worked off: 0 the return, 1 the constraint; "
        "0.5 is the plain algorithm",
        OURS,
        within=(0.0, 1.0),
    )
    safety_half_life: float = option(8.0, "h, epochs in which what the dial changes halves", OURS, above=0.0)
    margin: float = option(
        1.0,
        "m: the enforced limit is so many standard errors of a batch's cost below the given one",
        OURS,
        within=(0.0, inf),
    )
    margin_most: float = option(
        0.2, "s: the most that the margin takes, as a share of the limit", OURS, within=(0.0, 1.0)
    )


class Dial(eqx.Module):
    """What the enforced limit depends on."""

    first: Float[Array, " M"]
    """C(π_0), once the first epoch is over."""
    epoch: Int[Array, ""]
    """k."""


def suited(epochs: int) -> dict[str, object]:
    """The most that the margin takes in a run of so many epochs, where nothing else is given."""
    return {"margin_most": annealing.in_a_long_run(Config().margin_most, epochs)}


def start(config: Config, constraints: int) -> Dial | None:
    """Before the first epoch; None in the middle, where there is nothing to remember.

    So the plain algorithm is the same program as without a dial. If it were only the same arithmetic, a compiler would
    be free to round it otherwise.
    """
    if config.safety == PLAIN:
        return None
    return Dial(first=jnp.zeros(constraints), epoch=jnp.asarray(0))


def enforce(
    config: Config, dial: Dial | None, cost: Float[Array, " M"], error: Float[Array, " M"], limit: Float[Array, " M"]
) -> tuple[Dial | None, Float[Array, " M"]]:
    """The dial for the next epoch, and d_k of this one, whose policy costs `cost`, up to a standard error."""
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
    """d_k as a metric, where it is not d throughout."""
    return {} if dial is None else {"enforced_limit": limit}
