"""PPO's step (Schulman et al. 2017): gradient steps on a surrogate that ignores ratios beyond a clip.

    maximise over θ   E[w · min(ρ A, clip(ρ) A)] + η E[w · entropy(π_θ(·|s))],      ρ = π_θ(a|s) / π_k(a|s)

clip(ρ) is the point of [1 - ε, 1 + ε] nearest to ρ, A the advantage, w the weight of a sample, and η the weight of
the entropy, 0 unless asked for. The clip is the only bound of the paper; here the passes over a batch are bounded in
KL divergence too (`gradient_steps`).
"""

import dataclasses
from math import inf
from typing import TypeVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from apdo.algorithms import gradient_steps
from apdo.algorithms.surrogate import Surrogate
from apdo.core.policies import Policy
from apdo.options import OURS, option

SomePpo = TypeVar("SomePpo", bound="Ppo")


@dataclasses.dataclass(frozen=True)
class Ppo(gradient_steps.Passes):
    """Proximal policy optimisation with a clipped ratio.

    With enough passes every ratio reaches the edge of the clip, however small the advantage. With annealing, the clip
    and Adam's rate fall, as in the PPO paper's settings for Atari. A policy that has to mix choices can then settle.
    """

    clip: float = option(
        0.2, "how far the likelihood ratio may leave 1 before its gradient is dropped", "the PPO paper", above=0.0
    )
    entropy: float = option(
        0.0,
        "weight of the policy's entropy: a nat counts as so many standard deviations of the advantages (of "
        "A_R - Σ λ_i A_Ci, in PDO); it falls with the length of the steps",
        OURS,
        within=(0.0, inf),
    )

    def shortened(self: SomePpo, length: float | Float[Array, ""]) -> SomePpo:
        """The settings of steps that are shorter by this factor."""
        shorter = dataclasses.replace(self, rate=length * self.rate, clip=length * self.clip)
        return shorter if self.entropy == 0.0 else dataclasses.replace(shorter, entropy=length * self.entropy)


def improve(
    config: Ppo, surrogate: Surrogate, policy: Policy, walk: optax.OptState, key: PRNGKeyArray
) -> tuple[Policy, optax.OptState]:
    """The policy after an epoch's gradient steps."""
    config = gradient_steps.annealed(config, walk)

    def loss(candidate: Policy, part: Surrogate) -> Float[Array, ""]:
        return -clipped_gain(config, part, candidate)

    return gradient_steps.descend(config, loss, surrogate, surrogate, policy, walk, key)


def clipped(config: Ppo, ratio: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """clip(ρ)."""
    return jnp.clip(ratio, 1.0 - config.clip, 1.0 + config.clip)


def clipped_gain(config: Ppo, surrogate: Surrogate, policy: Policy) -> Float[Array, ""]:
    """The mean of w · min(ρ A, clip(ρ) A), plus the weighted entropy."""
    ratio, advantage = surrogate.ratio(policy), surrogate.samples.advantage
    worst = jnp.minimum(ratio * advantage, clipped(config, ratio) * advantage)
    gain = jnp.mean(surrogate.samples.weight * worst)
    if isinstance(config.entropy, float) and not config.entropy:
        return gain
    entropy = jax.vmap(lambda observation: policy(observation).entropy())(surrogate.samples.observation)
    return gain + config.entropy * jnp.mean(surrogate.samples.weight * entropy)
