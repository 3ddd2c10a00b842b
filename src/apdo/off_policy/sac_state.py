"""Constrained soft actor-critic: its settings, networks and state."""

import dataclasses
import math
from math import inf

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import random
from jaxtyping import Array, Float, Int, PRNGKeyArray

from apdo.core import categorical, descent, dual, networks, squashed
from apdo.off_policy import critics
from apdo.off_policy.path import Path
from apdo.options import OURS, one_of, option
from apdo.problem import Problem

SAC = "the SAC paper"
_KINDS = one_of("relu", "normalised-relu", "tanh")
TWINS = 2
"""The number of critics of the reward. The lower value counts."""


@dataclasses.dataclass(frozen=True)
class Learner:
    """Settings of constrained soft actor-critic. The defaults are for a fixed buffer."""

    critic_hidden: tuple[int, ...] = option((64, 64), "hidden layers of each critic", OURS, above=0, most=10**5)
    actor_hidden: tuple[int, ...] = option((64, 32), "hidden layers of the actor", OURS, above=0, most=10**5)
    activation: str = option("tanh", "activation of the actor's hidden layers", OURS, choices=one_of("relu", "tanh"))
    critic_activation: str = option(
        "tanh",
        "activation of the hidden layers of the reward's critics; normalised-relu is layer normalisation, then ReLU",
        OURS,
        choices=_KINDS,
    )
    cost_activation: str = option("tanh", "the same for the critics of costs", OURS, choices=_KINDS)
    critic_rate: float = option(2e-3, "Adam's learning rate for the critics", OURS, above=0.0)
    actor_rate: float = option(6e-4, "Adam's learning rate for the actor", OURS, above=0.0)
    temperature_rate: float = option(1e-3, "Adam's learning rate for log α", OURS, above=0.0)
    target_rate: float = option(0.01, "τ, the rate at which target networks follow", OURS, within=(0.0, 1.0))
    minibatch: int = option(128, "transitions in one iteration", OURS, above=0)
    cost_steps: int = option(
        1,
        "n: a cost target has the measured costs of n steps, and then the critic's estimate of the rest",
        OURS,
        above=0,
        most=1000,
    )
    costs: int = option(4, "critics of each cost; their spread shows their uncertainty", OURS, above=0, most=1000)
    caution: float = option(
        0.5,
        "k: actor and multipliers use mean + k · standard deviation of a cost's critics",
        OURS,
        within=(0.0, inf),
    )
    entropy: float = option(
        0.0,
        "target of the policy's entropy, which α is adjusted to: per action entry, as a difference from -1; for "
        "discrete actions, as a difference from 0.2 times the entropy of the uniform policy",
        OURS,
    )
    temperature: float = option(0.1, "α before the first iteration, in the data's units", OURS, above=0.0)
    dual_rate: float = option(
        1e-3, "step of the multipliers in one iteration; 0: the learner does not move them", OURS, within=(0.0, inf)
    )
    rule: dual.Config = option(
        dual.Pid(proportional=1.0, far=0.0), "update rule of the multipliers", OURS, choices=dual.CHOICES
    )
    initial_multiplier: float = option(
        0.0, "λ before the first iteration, in the data's units", OURS, within=(0.0, inf)
    )
    bound: float = option(2.0, "b: actions stay within ±b", OURS, above=0.0)
    cloning: float = option(
        0.0125, "w, weight of the actor's distance from the buffer's actions in its loss", OURS, within=(0.0, inf)
    )
    last_rate: float = option(0.05, "share of their initial value to which all rates fall linearly", OURS, above=0.0)
    averaged: float = option(
        0.5, "λ^OFF is the mean over this share of the iterations, the last ones", OURS, above=0.0, most=1.0
    )

    @property
    def clock(self) -> bool:
        """Whether critics see the time, if the horizon ends an episode. They always do."""
        return True

    @property
    def units(self) -> str:
        """The units of rewards and costs: powers of two near the data's spread."""
        return "powers"


class Networks(eqx.Module):
    """The critics, in one stack, and the actor."""

    critics: critics.Critics
    """The reward's twins, then the critics of each cost."""
    actor: networks.MLP
    """It maps an observation to the mean and deviation of a squashed Gaussian, or to logits."""
    bound: float = eqx.field(static=True)

    @property
    def discrete(self) -> bool:
        """Whether actions are discrete."""
        return self.critics.discrete

    def distributions(self, s: Float[Array, "B O"]) -> squashed.Squashed:
        """The distribution of the action at each state, if actions are vectors."""
        return squashed.distribution(jax.vmap(self.actor)(s), self.bound)

    def log_probabilities(self, s: Float[Array, "B O"]) -> Float[Array, "B A"]:
        """log π(·|s) at each state, if actions are discrete."""
        return jax.nn.log_softmax(jax.vmap(self.actor)(s))


class State(eqx.Module):
    """Everything that the next iteration needs, besides the buffer."""

    learned: Networks
    target: critics.Critics
    log_temperature: Float[Array, ""]
    """log α, in the learner's units."""
    critic_optimiser: optax.OptState
    actor_optimiser: optax.OptState
    temperature_optimiser: optax.OptState
    multiplier: dual.Multiplier
    """λ, in the learner's units."""
    size: Float[Array, " K"]
    """The current units of the reward and of the costs; 0 before the first iteration."""
    variance: Float[Array, " A"]
    """The variance of actions around the median of their distribution, averaged over the latest iterations."""
    path: Path
    cloning: Float[Array, ""]
    """w, the cloning weight: as configured, or a member's own in an ensemble."""
    iteration: Int[Array, ""]
    key: PRNGKeyArray


def start(config: Learner, problem: Problem, key: PRNGKeyArray, caution: Float[Array, ""] | None = None) -> State:
    """Random critics, target networks equal to them, and an actor that is nearly uniform."""
    critic_key, actor_key, run_key = random.split(key, 3)
    count = TWINS + config.costs * problem.constraints
    kinds = (config.critic_activation,) * TWINS + (config.cost_activation,) * (count - TWINS)
    kind = kinds if len(set(kinds)) > 1 else kinds[0]
    judges = critics.init(critic_key, problem, count, config.critic_hidden, clock=config.clock, activation=kind)
    outputs = problem.action_size if problem.discrete_actions else 2 * problem.action_size
    actor = networks.mlp(
        actor_key, problem.observation_size, config.actor_hidden, outputs, _FIRST, activation=config.activation
    )
    log_temperature = jnp.log(jnp.asarray(config.temperature))
    return State(
        learned=Networks(critics=judges, actor=actor, bound=config.bound),
        target=judges,
        log_temperature=log_temperature,
        critic_optimiser=descent.init(optax.adam(config.critic_rate), judges.stack),
        actor_optimiser=descent.init(optax.adam(config.actor_rate), actor),
        temperature_optimiser=descent.init(optax.adam(config.temperature_rate), log_temperature),
        multiplier=dual.start(config.rule, jnp.full((problem.constraints,), config.initial_multiplier)),
        size=jnp.zeros(1 + problem.constraints),
        variance=jnp.full((problem.action_size,), config.bound**2 / 3.0),
        path=Path.start(problem.constraints),
        cloning=jnp.asarray(config.cloning) if caution is None else config.cloning * caution,
        iteration=jnp.asarray(0),
        key=run_key,
    )


_FIRST = 0.01
"""The factor on the initial weights of the actor's last layer."""


def target_entropy(config: Learner, problem: Problem) -> float:
    """The target H of the policy's entropy, in nats."""
    a = problem.action_size
    if problem.discrete_actions:
        return _MIXED * math.log(a) + config.entropy
    return a * (config.entropy - 1.0)


_MIXED = 0.2
"""The target of the entropy for discrete actions, as a share of the uniform policy's entropy."""


def acting(state: State) -> squashed.Policy | categorical.Policy:
    """The actor as a policy, with a deviation that depends on the state."""
    learned = state.learned
    if learned.discrete:
        return categorical.Policy(logits=learned.actor)
    return squashed.Policy(network=learned.actor, bound=learned.bound)


def in_units(state: State, size: Float[Array, " K"]) -> State:
    """The same learner in other units. Values, λ and α are unchanged in the problem's own units."""
    old = jnp.where(state.size > 0.0, state.size, size)
    ratio = old / size
    constraints = size.shape[0] - 1
    count = state.target.stack.biases[0].shape[0]
    each = (count - TWINS) // constraints
    by_critic = jnp.concatenate([jnp.repeat(ratio[:1], TWINS), jnp.repeat(ratio[1:], each)])

    def scaled(stack: networks.MLP) -> networks.MLP:
        weight, bias = stack.weights[-1] * by_critic[:, None, None], stack.biases[-1] * by_critic[:, None]
        return dataclasses.replace(stack, weights=(*stack.weights[:-1], weight), biases=(*stack.biases[:-1], bias))

    price = ratio[0] / ratio[1:]
    multiplier = eqx.tree_at(
        lambda m: (m.value, m.integral),
        state.multiplier,
        (state.multiplier.value * price, state.multiplier.integral * price),
    )
    return eqx.tree_at(
        lambda s: (s.learned.critics.stack, s.target.stack, s.multiplier, s.log_temperature, s.size),
        state,
        (
            scaled(state.learned.critics.stack),
            scaled(state.target.stack),
            multiplier,
            state.log_temperature + jnp.log(ratio[0]),
            size,
        ),
    )
