"""On-policy likelihood-ratio steps: π_{k+1} from samples of π_k and their advantages (paper, Algorithm 1, line 5).

Each maximises the surrogate  E[w · π_θ(a|s)/π_k(a|s) · A(s, a)]  near π_k, where w is the weight of a step in the sums
that are optimised (`objective.step_weights`). They differ in how they stay near π_k. TRPO bounds the KL divergence and
searches along the natural gradient. The natural gradient takes the same step, or a shorter one, without a search. The
plain likelihood-ratio gradient (REINFORCE) takes one Adam step. PPO clips the ratio and takes many Adam steps.
"""

import dataclasses
from collections.abc import Callable
from math import inf
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from apdo.core import annealing, descent, minibatch, trust_region
from apdo.core.policies import Policy
from apdo.options import OURS, PAPER, option
from apdo.problem import Asked

Data = TypeVar("Data")
SomePasses = TypeVar("SomePasses", bound="Passes")

_ANNEAL = f"{annealing.SHORTER} on the rate and by its square on the radius; 0: they stay as they are"
_RATE = "multiple of the natural gradient to go, up to the trust region's edge; 0: always to the edge"


@dataclasses.dataclass(frozen=True)
class Trpo(trust_region.LineSearch):
    """Trust region policy optimisation.

    Every step goes to the edge of the trust region, however small the gradient. With a rate, steps shrink with the
    gradient, so that a policy which has to mix choices can settle. They still follow the noise of each batch; annealing
    averages it.
    """

    rate: float = option(0.0, _RATE, PAPER, within=(0.0, inf))
    anneal: float = option(0.0, _ANNEAL, OURS, within=(0.0, inf))


@dataclasses.dataclass(frozen=True)
class NaturalGradient(trust_region.Curvature):
    """A step along the natural gradient, without a line search."""

    rate: float = option(0.0, _RATE, OURS, within=(0.0, inf))
    anneal: float = option(0.0, _ANNEAL, OURS, within=(0.0, inf))


@dataclasses.dataclass(frozen=True)
class LikelihoodRatio:
    """REINFORCE: one Adam step along the likelihood-ratio gradient."""

    rate: float = option(0.01, "Adam's learning rate", OURS, above=0.0)


@dataclasses.dataclass(frozen=True)
class Passes:
    """Gradient steps by Adam on shuffled minibatches of one batch."""

    rate: float = option(1e-3, "Adam's learning rate", OURS, above=0.0)
    passes: int = option(10, "passes over the batch", "the PPO paper", above=0)
    minibatches: int = option(25, "gradient steps in one pass", OURS, above=0)
    gradient_norm: float = option(0.5, "longer gradients are scaled down to this norm", OURS, above=0.0)
    most_kl: float = option(
        0.03,
        "passes end once the policy has moved so far, in KL divergence; beyond twice this the whole step is shortened, "
        "and later gradient steps too; 0: any distance",
        OURS,
        within=(0.0, inf),
    )
    anneal: float = option(
        0.0,
        f"{annealing.SHORTER} on rate and clip; 0: both are constant",
        OURS,
        within=(0.0, inf),
    )


@dataclasses.dataclass(frozen=True)
class Ppo(Passes):
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


Config = Trpo | NaturalGradient | LikelihoodRatio | Ppo
CHOICES = {"trpo": Trpo, "natural": NaturalGradient, "reinforce": LikelihoodRatio, "ppo": Ppo}


def suited(asked: Asked) -> dict[str, object]:
    """Default options of a policy step for a task and a run."""
    return {"primal.radius": trust_region.radius_for(asked.horizon, asked.epochs)}


_QUICKER = 1.05
"""The factor by which the pace of gradient steps recovers in an epoch that did not go too far."""
_ENTROPY_STRIDE = 16
"""The policy's entropy is measured at one in this many observations."""


class Samples(eqx.Module):
    """B on-policy samples, with the advantage of each action and the weight of each sample."""

    observation: Float[Array, "B O"]
    action: Float[Array, "B A"]
    advantage: Float[Array, " B"]
    weight: Float[Array, " B"]
    """The weight in the gradient, 1 on average."""


class Walk(NamedTuple):
    """The state of gradient steps between epochs."""

    moments: optax.OptState
    """Adam's state."""
    pace: Float[Array, ""]
    """The current share of the configured rate, at most 1.

    If a policy has become narrow, a small change of its mean is a large KL divergence. One pass at the configured rate
    can then go far beyond `most_kl`. KL grows with the square of the rate.
    """


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


@runtime_checkable
class Shortening(Protocol):
    """A bound that shortens a step of TRPO (`overshoot.Crossing`)."""

    def share(self, surrogate: Surrogate, policy: Policy, natural: trust_region.Product) -> Float[Array, ""]:
        """The share of the step `natural(g)` that is taken, where g is the surrogate's gradient."""
        ...


def init(config: Config | Passes, policy: Policy, pace_of: optax.OptState = ()) -> optax.OptState:
    """The optimiser's state before the first epoch; empty for trust-region steps.

    Gradient steps begin at the configured rate, or at the pace of another walk of the same policy.
    """
    optimiser = _optimiser(config)
    if optimiser is None:
        return ()
    moments = optimiser.init(ravel_pytree(policy)[0])
    if not isinstance(config, Passes):
        return moments
    return Walk(moments=moments, pace=pace_of.pace if isinstance(pace_of, Walk) else jnp.ones(()))


def improve(
    config: Config,
    policy: Policy,
    optimiser: optax.OptState,
    samples: Samples,
    key: PRNGKeyArray,
    shortening: Shortening | None = None,
    epochs: Int[Array, ""] | int = 0,
) -> tuple[Policy, optax.OptState, dict[str, Array]]:
    """One primal step, in the epoch with the number `epochs`."""
    surrogate = Surrogate.at(policy, samples)
    parameters, unravel = ravel_pytree(policy)
    accepted = jnp.asarray(True)
    match config:
        case Trpo():
            length = step_length(config, optimiser, epochs)
            parameters, accepted = _trust_region_step(config, surrogate, policy, shortening, length)
        case NaturalGradient():
            parameters = parameters + natural_step(config, surrogate, policy, step_length(config, optimiser, epochs))
        case LikelihoodRatio():
            parameters, optimiser = _likelihood_ratio_step(config, surrogate, policy, optimiser)
        case Ppo():
            config = annealed(config, optimiser)
            loss = lambda candidate, part: -clipped_gain(config, part, candidate)  # noqa: E731
            new, optimiser = descend(config, loss, surrogate, surrogate, policy, optimiser, key)
            return new, optimiser, measure(surrogate, new, accepted)
    new = unravel(parameters)
    return new, optimiser, measure(surrogate, new, accepted)


def counter(config: Config) -> Int[Array, ""] | None:
    """The counter of epochs for steps that shrink, which begins at 0; None for other steps."""
    return jnp.asarray(0) if isinstance(config, Trpo | NaturalGradient) and config.anneal else None


def step_length(
    config: Config | Passes, optimiser: optax.OptState, epochs: Int[Array, ""] | int = 0
) -> float | Float[Array, ""]:
    """The length of the coming epoch's steps, relative to the first epoch's.

    For gradient steps, Adam's count of them is converted to epochs. For other steps, `epochs` counts.
    """
    match config:
        case LikelihoodRatio():
            return 1.0
        case Passes():
            if not config.anneal:
                return 1.0
            counted = optax.tree_utils.tree_get(optimiser, "count") / (config.passes * config.minibatches)
            return annealing.length(config.anneal, counted)
        case _:
            return annealing.length(config.anneal, epochs)


def annealed(config: SomePasses, optimiser: optax.OptState) -> SomePasses:
    """The settings of the coming epoch's gradient steps."""
    if not config.anneal:
        return config
    length = step_length(config, optimiser)
    shorter = {name: length * getattr(config, name) for name in ("rate", "clip") if hasattr(config, name)}
    if isinstance(config, Ppo) and config.entropy != 0.0:
        shorter["entropy"] = length * config.entropy
    return dataclasses.replace(config, **shorter)


def measure(surrogate: Surrogate, new: Policy, accepted: Bool[Array, ""]) -> dict[str, Array]:
    """Metrics of a step to a new policy."""
    return {
        "kl": surrogate.kl(new),
        "surrogate_gain": surrogate.gain(new),
        "step_accepted": accepted.astype(jnp.float32),
        "entropy": jnp.mean(jax.vmap(lambda o: new(o).entropy())(surrogate.samples.observation[::_ENTROPY_STRIDE])),
    }


def fisher(config: trust_region.Curvature, policy: Policy, observation: Float[Array, "B O"]) -> trust_region.Product:
    """The Fisher product at `policy`, estimated on every n-th sample, with n from the configured fraction."""
    parameters, unravel = ravel_pytree(policy)
    stride = max(1, round(1.0 / config.fraction))
    subset = observation[::stride]
    return trust_region.fisher_product(lambda theta: jax.vmap(unravel(theta))(subset), parameters, config.damping)


def natural_step(
    config: Trpo | NaturalGradient, surrogate: Surrogate, policy: Policy, length: float | Float[Array, ""] = 1.0
) -> Float[Array, " P"]:
    """The share `length` of the natural step: H⁻¹g times the rate, or to the trust region's edge if that is nearer."""
    return _natural_step(config, surrogate, policy, length)[0]


def _natural_step(
    config: Trpo | NaturalGradient, surrogate: Surrogate, policy: Policy, length: float | Float[Array, ""]
) -> tuple[Float[Array, " P"], trust_region.Product]:
    """The natural step s H⁻¹g, and the map v ↦ s H⁻¹v with the same factor s."""
    gradient = ravel_pytree(jax.grad(surrogate.gain)(policy))[0]
    product = fisher(config, policy, surrogate.samples.observation)
    solve = lambda vector: trust_region.conjugate_gradient(product, vector, config.iterations)  # noqa: E731
    direction = solve(gradient)
    factor = length * trust_region.factor_to_edge(product, direction, config.radius, config.rate or inf)
    return factor * direction, lambda vector: factor * solve(vector)


def _trust_region_step(
    config: Trpo,
    surrogate: Surrogate,
    policy: Policy,
    shortening: Shortening | None,
    length: float | Float[Array, ""],
) -> tuple[Float[Array, " P"], Bool[Array, ""]]:
    parameters, unravel = ravel_pytree(policy)

    def acceptable(theta: Float[Array, " P"]) -> Bool[Array, ""]:
        candidate = unravel(theta)
        return (surrogate.gain(candidate) > 0.0) & (surrogate.kl(candidate) <= length**2 * config.radius)

    step, natural = _natural_step(config, surrogate, policy, length)
    if shortening is not None:
        step = shortening.share(surrogate, policy, natural) * step
    found = trust_region.backtrack(acceptable, parameters, step, config.shrink, config.trials)
    return found.parameters, found.accepted


def _likelihood_ratio_step(
    config: LikelihoodRatio, surrogate: Surrogate, policy: Policy, state: optax.OptState
) -> tuple[Float[Array, " P"], optax.OptState]:
    parameters, _ = ravel_pytree(policy)
    gradient = jax.grad(lambda p: -surrogate.gain(p))(policy)
    return descent.step(optax.adam(config.rate), parameters, ravel_pytree(gradient)[0], state)


def clipped_gain(config: Ppo, surrogate: Surrogate, policy: Policy) -> Float[Array, ""]:
    """PPO's surrogate: the mean of w · min(ratio · A, clip(ratio) · A), plus the weighted entropy."""
    ratio, advantage = surrogate.ratio(policy), surrogate.samples.advantage
    clipped = jnp.clip(ratio, 1.0 - config.clip, 1.0 + config.clip)
    gain = jnp.mean(surrogate.samples.weight * jnp.minimum(ratio * advantage, clipped * advantage))
    if isinstance(config.entropy, float) and not config.entropy:
        return gain
    entropy = jax.vmap(lambda observation: policy(observation).entropy())(surrogate.samples.observation)
    return gain + config.entropy * jnp.mean(surrogate.samples.weight * entropy)


def descend(
    config: Passes,
    loss: Callable[[Policy, Data], Float[Array, ""]],
    data: Data,
    surrogate: Surrogate,
    policy: Policy,
    walk: optax.OptState,
    key: PRNGKeyArray,
) -> tuple[Policy, optax.OptState]:
    """The policy after passes over `data`, with a gradient step on the loss of each minibatch.

    The samples are the first axis of every array in `data`, so that a minibatch has the same type. `surrogate` is that
    of all samples; it measures how far the policy has moved.
    """
    assert isinstance(walk, Walk)
    start, unravel = ravel_pytree(policy)
    optimiser = _optimiser(dataclasses.replace(config, rate=walk.pace * config.rate))
    assert optimiser is not None

    def one(carry: tuple[Array, optax.OptState], part: Data) -> tuple[tuple[Array, optax.OptState], None]:
        theta, state = carry
        gradient = jax.grad(lambda theta: loss(unravel(theta), part))(theta)
        return descent.step(optimiser, theta, gradient, state), None

    def near(carry: tuple[Array, optax.OptState]) -> Bool[Array, ""]:
        return surrogate.kl(unravel(carry[0])) <= config.most_kl

    (parameters, moments), _ = minibatch.sweep(
        one,
        (start, walk.moments),
        data,
        key,
        size=max(1, surrogate.samples.advantage.shape[0] // config.minibatches),
        passes=config.passes,
        going=near if config.most_kl else None,
    )
    if not config.most_kl:
        return unravel(parameters), Walk(moments=moments, pace=walk.pace)
    far = surrogate.kl(unravel(parameters)) / (2.0 * config.most_kl)
    share = jnp.where(far > 1.0, 1.0 / jnp.sqrt(far), 1.0)
    parameters = jnp.where(far > 1.0, start + share * (parameters - start), parameters)
    pace = jnp.minimum(1.0, walk.pace * jnp.where(far > 1.0, share, _QUICKER))
    return unravel(parameters), Walk(moments=moments, pace=pace)


def _optimiser(config: Config | Passes) -> optax.GradientTransformation | None:
    match config:
        case LikelihoodRatio():
            return optax.adam(config.rate)
        case Passes():
            return optax.chain(optax.clip_by_global_norm(config.gradient_norm), optax.adam(config.rate))
        case _:
            return None
