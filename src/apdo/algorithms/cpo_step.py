"""CPO's step: it is planned from the gradients, followed by a line search, and shrinks with the epochs if asked for.

Along the active constraints CPO always goes to the edge of its trust region, even if the gradient there is small. At an
optimum that mixes choices this gradient is only noise, and costs wander with it. If steps shrink (`anneal`), this part
of the step therefore also shrinks in proportion to that gradient, relative to the length of the whole gradient. A
shortened step also removes only the same share of a measured excess. Both effects then average the noise over batches.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from apdo.algorithms import believed_step
from apdo.algorithms.local_model import LocalModel
from apdo.core import policies, trust_region


def improve(
    config: trust_region.LineSearch,
    model: LocalModel,
    gradients: Float[Array, "H K P"],
    solved: Float[Array, "H K P"],
    excess: Float[Array, " M"],
    length: float | Float[Array, ""] = 1.0,
    settles: bool | Bool[Array, ""] = False,
) -> tuple[policies.Policy, Float[Array, " M"], dict[str, Array]]:
    """The constrained step from gradients of the sums (return, then costs), H⁻¹ times them, and c = C(π) - d.

    The step is shortened to the share `length`; for `settles` see `constrained_step.Move.shortened`. The result is the
    policy, the predicted change of each cost, and metrics.
    """
    plan = believed_step.solve(gradients, solved, excess, config.radius, length, settles)

    def acceptable(candidate: policies.Policy) -> Bool[Array, ""]:
        gain = model.gains(candidate)
        within = model.surrogate.kl(candidate) <= length**2 * config.radius
        # A cost below its limit may rise up to it; a cost above its limit must not rise.
        safe = jnp.all(gain[1:] <= jnp.maximum(-excess, 0.0))
        # While any limit is exceeded, the step may lose return. Otherwise it has to gain some.
        return within & safe & (jnp.any(excess > 0.0) | (gain[0] > 0.0))

    new, found = model.search(config, plan.step, acceptable)
    taken = jnp.where(found.accepted, config.shrink ** (found.trials - 1), 0.0)
    metrics = model.measure(new, found) | {
        "recovering": plan.move.recovering.astype(jnp.float32),
        "constrained": plan.move.constrained.astype(jnp.float32),
        "multiplier": plan.move.multiplier,
        "belief": plan.belief,
    }
    return new, taken * plan.change, metrics
