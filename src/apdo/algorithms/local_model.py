"""Local models of R(π) and C_i(π) around the policy that drew a batch, for CPO and PCPO.

Gradients are those of the sums of one episode, R(π) and C_i(π), as `objective` defines them. In c + bᵀx both terms
therefore have the same unit, and multipliers are in reward per cost.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from apdo import objective
from apdo.algorithms import on_policy
from apdo.algorithms.surrogate import Surrogate
from apdo.core import policies, trust_region
from apdo.core.data import Transition
from apdo.problem import Problem


class LocalModel(eqx.Module):
    """A policy and the batch that it drew, from which R and C_i of policies nearby are estimated."""

    policy: policies.Policy
    surrogate: Surrogate
    advantage: Float[Array, "B K"]
    """The advantage of each signal, times the weight of the step in the sum of an episode."""
    row: Int[Array, " B"]
    """The index of each sample's environment."""

    @staticmethod
    def of(
        problem: Problem, policy: policies.Policy, batch: Transition, advantage: Float[Array, "T N K"]
    ) -> "LocalModel":
        """The local model around the policy that drew the batch."""
        centred = advantage - jnp.mean(advantage, axis=(0, 1), keepdims=True)
        weighted = objective.step_weights(problem, batch)[..., None] * centred
        samples = on_policy.samples(problem, batch, advantage[..., 0])
        return LocalModel(
            policy=policy,
            surrogate=Surrogate.at(policy, samples),
            advantage=weighted.reshape(-1, advantage.shape[-1]),
            row=jnp.broadcast_to(jnp.arange(advantage.shape[1]), advantage.shape[:2]).reshape(-1),
        )

    def gains(self, candidate: policies.Policy) -> Float[Array, " K"]:
        """The change of the return and of each cost, estimated by the surrogate."""
        return jnp.sum((self.surrogate.ratio(candidate) - 1.0)[:, None] * self.advantage, axis=0)

    def gradients(self, parts: int) -> Float[Array, "H K P"]:
        """∇R and ∇C_i, estimated separately from each of `parts` parts of the environments."""
        mine = (self.row[None] % parts == jnp.arange(parts)[:, None]).astype(self.advantage.dtype)
        mine = mine / jnp.maximum(jnp.mean(mine, axis=1, keepdims=True), 1e-9)

        def by_part(candidate: policies.Policy) -> Float[Array, "H K"]:
            return mine @ ((self.surrogate.ratio(candidate) - 1.0)[:, None] * self.advantage)

        found = jax.jacrev(by_part)(self.policy)
        flat = jax.vmap(jax.vmap(lambda leaf: ravel_pytree(leaf)[0]))(found)
        # A single environment has no second half.
        return jnp.where(jnp.all(jnp.any(mine > 0.0, axis=1)), flat, jnp.sum(flat, axis=0, keepdims=True))

    def search(
        self,
        config: trust_region.LineSearch,
        step: Float[Array, " P"],
        acceptable: Callable[[policies.Policy], Bool[Array, ""]],
    ) -> tuple[policies.Policy, trust_region.Backtrack]:
        """The policy that a line search along a step finds, and the search's result."""
        parameters, unravel = ravel_pytree(self.policy)
        allowed = lambda theta: acceptable(unravel(theta))  # noqa: E731
        found = trust_region.backtrack(allowed, parameters, step, config.shrink, config.trials)
        return unravel(found.parameters), found

    def measure(self, new: policies.Policy, found: trust_region.Backtrack) -> dict[str, Array]:
        """Metrics of the step to a new policy."""
        return {
            "kl": self.surrogate.kl(new),
            "surrogate_gain": self.gains(new)[0],
            "step_accepted": found.accepted.astype(jnp.float32),
        }


def solver(
    config: trust_region.LineSearch, model: LocalModel
) -> Callable[[Float[Array, "H K P"]], Float[Array, "H K P"]]:
    """v ↦ H⁻¹v, with the Fisher matrix H of the policy."""
    product = trust_region.fisher(config, model.policy, model.surrogate.samples.observation)
    one = lambda vector: trust_region.conjugate_gradient(product, vector, config.iterations)  # noqa: E731
    return jax.vmap(jax.vmap(one))
