"""The surrogate objective, by which samples of π_k tell how good a policy π near π_k is, and how far from it.

    gain  E[w · (π(a|s)/π_k(a|s) - 1) · A(s, a)]
    KL    E[KL(π_k(·|s) ‖ π(·|s))]

A is the advantage of an action, and w the weight of a step in the sums that are optimised (`objective.step_weights`).
The gain is 0 at π_k. Its gradient there is that of the sums, up to a factor.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from apdo.core.policies import Policy

_ENTROPY_STRIDE = 16
"""The policy's entropy is measured at one in this many observations."""


class Samples(eqx.Module):
    """B on-policy samples, with the advantage of each action and the weight of each sample."""

    observation: Float[Array, "B O"]
    action: Float[Array, "B A"]
    advantage: Float[Array, " B"]
    weight: Float[Array, " B"]
    """The weight in the gradient, 1 on average."""


class Surrogate(eqx.Module):
    """The surrogate objective and KL divergence of policies near the one that drew the samples."""

    samples: Samples
    old: eqx.Module
    old_log_prob: Float[Array, " B"]

    @staticmethod
    def at(policy: Policy, samples: Samples) -> "Surrogate":
        """The surrogate of `policy`'s own samples."""
        old = jax.vmap(policy)(samples.observation)
        log_prob = jax.vmap(lambda d, a: d.log_prob(a))(old, samples.action)
        return Surrogate(samples=samples, old=old, old_log_prob=log_prob)

    def ratio(self, policy: Policy) -> Float[Array, " B"]:
        """π(a|s)/π_k(a|s) at each sample."""
        log_prob = jax.vmap(lambda o, a: policy(o).log_prob(a))(self.samples.observation, self.samples.action)
        return jnp.exp(log_prob - self.old_log_prob)

    def gain(self, policy: Policy) -> Float[Array, ""]:
        """The mean of w · (π(a|s)/π_k(a|s) - 1) · A."""
        return jnp.mean(self.samples.weight * (self.ratio(policy) - 1.0) * self.samples.advantage)

    def kl(self, policy: Policy) -> Float[Array, ""]:
        """Mean KL(π_k ‖ π) over the samples."""
        new = jax.vmap(policy)(self.samples.observation)
        return jnp.mean(jax.vmap(lambda old, new: old.kl(new))(self.old, new))

    def measure(self, new: Policy, accepted: Bool[Array, ""] | bool = True) -> dict[str, Array]:
        """Metrics of a step to a new policy."""
        return {
            "kl": self.kl(new),
            "surrogate_gain": self.gain(new),
            "step_accepted": jnp.asarray(accepted).astype(jnp.float32),
            "entropy": jnp.mean(jax.vmap(lambda o: new(o).entropy())(self.samples.observation[::_ENTROPY_STRIDE])),
        }
