"""CPO's step: planned from the gradients, searched along, and shorter with the epochs where that is asked for.

Along the constraints CPO goes to the edge of its trust region however small the gradient there is. At an optimum that
mixes choices all of it is then noise, and costs wander with it. So where steps shrink (`anneal`) that part shrinks with
the gradient besides, as a share of the whole one's length, so that it follows the batch in proportion; and of a
measured excess a step takes back the share that it is of a whole one. Both are then averages over batches.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from apdo.algorithms import believed_step
from apdo.algorithms.around import Around
from apdo.core import policies, trust_region


def improve(
    config: trust_region.LineSearch,
    around: Around,
    gradients: Float[Array, "H K P"],
    solved: Float[Array, "H K P"],
    excess: Float[Array, " M"],
    length: float | Float[Array, ""] = 1.0,
    settles: bool | Bool[Array, ""] = False,
) -> tuple[policies.Policy, Float[Array, " M"], dict[str, Array]]:
    """The constrained step from gradients of the sums (return, then costs), H⁻¹ times them, and c = C(π) - d.

    Or so much of it as `length` says, of CPO's own or of one that settles. Returns the policy, what the step is
    believed to change in each cost, and metrics.
    """
    plan = believed_step.solve(gradients, solved, excess, config.radius, length, settles)

    def acceptable(candidate: policies.Policy) -> Bool[Array, ""]:
        gain = around.gains(candidate)
        within = around.surrogate.kl(candidate) <= length**2 * config.radius
        # A cost may use up its slack; one that is over its limit may not grow.
        safe = jnp.all(gain[1:] <= jnp.maximum(-excess, 0.0))
        # From outside the limits the way back may cost return; only from inside must a step gain some.
        return within & safe & (jnp.any(excess > 0.0) | (gain[0] > 0.0))

    new, found = around.search(config, plan.step, acceptable)
    taken = jnp.where(found.accepted, config.shrink ** (found.trials - 1), 0.0)
    metrics = around.measure(new, found) | {
        "recovering": plan.move.recovering.astype(jnp.float32),
        "constrained": plan.move.constrained.astype(jnp.float32),
        "multiplier": plan.move.multiplier,
        "belief": plan.belief,
    }
    return new, taken * plan.change, metrics
