"""Deterministic policies, a = μ_θ(s), with the methods of a distribution."""

import equinox as eqx
from jaxtyping import Array, Float, PRNGKeyArray

from apdo.core import networks


class Deterministic(eqx.Module):
    """A distribution with all its mass on one action."""

    action: Float[Array, " A"]

    def sample(self, key: PRNGKeyArray) -> Float[Array, " A"]:  # noqa: ARG002
        """The action."""
        return self.action

    def mode(self) -> Float[Array, " A"]:
        """The action."""
        return self.action


class Policy(eqx.Module):
    """μ_θ as a policy."""

    mean: networks.MLP
    bound: float = eqx.field(static=True, default=0.0)
    """The bound b: actions stay within ±b. With 0 they are unbounded."""

    def __call__(self, observation: Float[Array, " O"]) -> Deterministic:
        """The action distribution at one observation."""
        return Deterministic(action=networks.bounded(self.mean(observation), self.bound))
