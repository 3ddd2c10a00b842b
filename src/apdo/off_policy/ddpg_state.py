"""Primal-dual DDPG's settings, networks and state."""

import dataclasses
from math import inf

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import random
from jaxtyping import Array, Float, Int, PRNGKeyArray

from apdo.core import descent, dual, networks
from apdo.off_policy import critics
from apdo.off_policy.path import Path
from apdo.options import OURS, PAPER, one_of, option
from apdo.problem import Problem


@dataclasses.dataclass(frozen=True)
class Learner:
    """Settings of the off-policy learner itself."""

    critic_hidden: tuple[int, ...] = option(
        (100, 100), "hidden layers of each critic, tanh", PAPER, above=0, most=10**5
    )
    actor_hidden: tuple[int, ...] = option((64, 32), "hidden layers of the actor, tanh", PAPER, above=0, most=10**5)
    critic_rate: float = option(1e-3, "Adam's learning rate for the critics", PAPER, above=0.0)
    actor_rate: float = option(1e-3, "Adam's learning rate for the actor", PAPER, above=0.0)
    dual_rate: float = option(1e-2, "step of dual ascent in one iteration", PAPER, above=0.0)
    rule: dual.Config = option(dual.Ascent(), "update rule of the multipliers", PAPER, choices=dual.CHOICES)
    dual_states: str = option(
        "batch",
        "states at which the dual gradient is taken: those of the minibatch, or only starts of episodes",
        PAPER,
        choices=one_of("batch", "starts"),
    )
    units: str = option(
        "own",
        "units of rewards, costs and multipliers while learning: their own, or the data's spread",
        PAPER,
        choices=one_of("own", "data"),
    )
    initial_multiplier: float = option(0.0, "λ before the first iteration, in these units", OURS, within=(0.0, inf))
    target_rate: float = option(0.001, "τ, the rate at which target networks follow", PAPER, within=(0.0, 1.0))
    minibatch: int = option(64, "transitions in one iteration", PAPER, above=0)
    clock: bool = option(False, "whether the critics see the time, if the horizon ends an episode", PAPER)
    bound: float = option(0.0, "a tanh keeps μ within ±bound; 0: no bound", PAPER, within=(0.0, inf))
    action_noise: float = option(
        0.0, "standard deviation of the noise around μ(s) in the targets and gradients", PAPER, within=(0.0, inf)
    )
    cloning: float = option(
        0.0, "w, weight of the actor's distance from the buffer's actions in its loss", PAPER, within=(0.0, inf)
    )
    last_rate: float = option(
        1.0,
        "share of their initial value to which all rates fall linearly",
        PAPER,
        above=0.0,
    )
    averaged: float = option(
        1.0, "λ^OFF is the mean over this share of the iterations, the last ones", PAPER, above=0.0, most=1.0
    )
    bounded: bool = option(
        False, "whether cost critics' targets are clipped to the range that an episode's cost can have", PAPER
    )


class Networks(eqx.Module):
    """The critics (reward first, then the costs, in one stack) and the actor."""

    critics: critics.Critics
    actor: networks.MLP
    bound: float = eqx.field(static=True, default=0.0)
    """The bound b: the actor's outputs stay within ±b. With 0 they are unbounded."""

    @property
    def discrete(self) -> bool:
        """Whether actions are discrete: critics have an output for each action, and the actor gives logits."""
        return self.critics.discrete

    def q(self, s: Float[Array, "B O"], a: Float[Array, "B A"], step: Int[Array, " B"]) -> Float[Array, "K B"]:
        """(Q_R, Q_C1..Q_Cm) at each state, action (or vector of probabilities) and step of the episode."""
        return self.critics.q(s, a, step)

    def mu(self, s: Float[Array, "B O"]) -> Float[Array, "B A"]:
        """μ(s) at each state."""
        output = jax.vmap(self.actor)(s)
        return jax.nn.softmax(output) if self.discrete else networks.bounded(output, self.bound)


class LearnerState(eqx.Module):
    """Everything that the next iteration needs, besides the buffer."""

    learned: Networks
    target: Networks
    critic_optimiser: optax.OptState
    actor_optimiser: optax.OptState
    multiplier: dual.Multiplier
    """λ, in the learner's units."""
    path: Path
    cloning: Float[Array, ""]
    """w, the cloning weight: as configured, or a member's own in an ensemble."""
    iteration: Int[Array, ""]
    key: PRNGKeyArray


def start(
    config: Learner, problem: Problem, key: PRNGKeyArray, caution: Float[Array, ""] | None = None
) -> LearnerState:
    """Random networks, target networks equal to them, and the configured multipliers (lines 1 to 3)."""
    critic_key, actor_key, run_key = random.split(key, 3)
    o, a = problem.observation_size, problem.action_size
    learned = Networks(
        critics=critics.init(critic_key, problem, 1 + problem.constraints, config.critic_hidden, clock=config.clock),
        actor=networks.mlp(actor_key, o, config.actor_hidden, a),
        bound=config.bound,
    )
    return LearnerState(
        learned=learned,
        target=learned,
        critic_optimiser=descent.init(optax.adam(config.critic_rate), learned.critics.stack),
        actor_optimiser=descent.init(optax.adam(config.actor_rate), learned.actor),
        multiplier=dual.start(config.rule, jnp.full((problem.constraints,), config.initial_multiplier)),
        path=Path.start(problem.constraints),
        cloning=jnp.asarray(config.cloning) if caution is None else config.cloning * caution,
        iteration=jnp.asarray(0),
        key=run_key,
    )
