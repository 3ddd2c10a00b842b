"""Categorical policies: one of A choices, drawn from softmax(logits_θ(s)).

A choice is a one-hot vector of length A, so code for action vectors also works for choices. log π(a|s) is a·log p. The
expected value of a function that is linear in the action is that function at the vector of probabilities.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from apdo.core import networks


class Categorical(eqx.Module):
    """Choice a with probability p_a = exp(logit_a) / Σ_b exp(logit_b)."""

    logits: Float[Array, " A"]

    @property
    def probabilities(self) -> Float[Array, " A"]:
        """The probabilities p of the choices."""
        return jax.nn.softmax(self.logits)

    def sample(self, key: PRNGKeyArray) -> Float[Array, " A"]:
        """One draw."""
        return jax.nn.one_hot(jax.random.categorical(key, self.logits), self.logits.shape[0])

    def mode(self) -> Float[Array, " A"]:
        """The most likely choice."""
        return jax.nn.one_hot(jnp.argmax(self.logits), self.logits.shape[0])

    def log_prob(self, action: Float[Array, " A"]) -> Float[Array, ""]:
        """log π(a)."""
        return jnp.vdot(action, jax.nn.log_softmax(self.logits))

    def kl(self, other: "Categorical") -> Float[Array, ""]:
        """KL(self ‖ other)."""
        return jnp.vdot(self.probabilities, jax.nn.log_softmax(self.logits) - jax.nn.log_softmax(other.logits))

    def entropy(self) -> Float[Array, ""]:
        """-Σ p log p."""
        return -jnp.vdot(self.probabilities, jax.nn.log_softmax(self.logits))

    def fisher(self, tangent: "Categorical") -> "Categorical":
        """The Fisher matrix of the logits, diag(p) - p pᵀ, times a tangent."""
        p = self.probabilities
        return Categorical(logits=p * (tangent.logits - jnp.vdot(p, tangent.logits)))


class Policy(eqx.Module):
    """π_θ: a tanh network for the logits."""

    logits: networks.Network

    def __call__(self, observation: Float[Array, " O"]) -> Categorical:
        """The distribution over choices at one observation."""
        return Categorical(logits=self.logits(observation))
