"""Navigation: a point moves to a goal around two walls of hazards, or straight through them at a cost.

The point moves in the plane by its acceleration a, clipped to ±1, with friction:

    v' = 0.8 v + 0.06 a,    x' = x + v'                at most 0.3 per step along each axis

The first wall can be passed at the top, the second at the bottom, and the straight way leads through both. A step
inside a wall costs 1. The reward is the progress towards the goal, less a small amount per step. Reaching the goal
gives a bonus and ends the episode. Leaving the arena gives a penalty and ends it too.
"""

import dataclasses
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from apdo.envs.environment import Outcome

HALF_WIDTH, HALF_HEIGHT = 6.0, 4.0
"""The arena is -HALF_WIDTH to HALF_WIDTH in x, and -HALF_HEIGHT to HALF_HEIGHT in y."""
START, START_SPREAD = (-4.5, 0.0), (0.3, 1.0)
"""An episode starts uniformly within the spread around this point, at rest."""
GOAL, GOAL_RADIUS = (4.5, 0.0), 0.6
WALLS = ((-2.3, -HALF_HEIGHT, -0.9, 1.5), (0.9, -1.5, 2.3, HALF_HEIGHT))
"""Left, bottom, right and top of each wall of hazards."""
FRICTION, THRUST = 0.8, 0.06
TOP_SPEED = THRUST / (1.0 - FRICTION)
PROGRESS, TIME, BONUS, FINE = 2.5, 0.1, 14.0, 5.0
"""The reward per unit of progress, the loss per step, the bonus at the goal, and the penalty for leaving the arena."""


class State(eqx.Module):
    """The point's position, and its velocity per step."""

    position: Float[Array, "2"]
    velocity: Float[Array, "2"]


@dataclasses.dataclass(frozen=True)
class Navigation:
    """The task. Its limit is on the steps of an episode that are inside a hazard."""

    observation_size = 4
    action_size = 2
    discrete_actions = False
    cost_names = ("steps in hazards",)
    limits = (3.0,)
    discount = 0.99
    horizon = 200
    horizon_terminates = False
    defaults: ClassVar[dict[str, str]] = {"constrain": "total"}
    """The limit is on a plain count of steps, not on a discounted sum."""

    def reset(self, key: PRNGKeyArray) -> State:
        """A random position near the start, at rest."""
        spread = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0) * jnp.asarray(START_SPREAD)
        return self.place(jnp.asarray(START) + spread, jnp.zeros(2))

    def place(self, position: Float[Array, "2"], velocity: Float[Array, "2"]) -> State:
        """A state with the given position and velocity."""
        return State(position=position, velocity=velocity)

    def observe(self, state: State) -> Float[Array, "4"]:
        """Position and velocity, scaled to about ±1."""
        size = jnp.asarray([HALF_WIDTH, HALF_HEIGHT])
        return jnp.concatenate([state.position / size, state.velocity / TOP_SPEED])

    def step(self, state: State, action: Float[Array, "2"], key: PRNGKeyArray) -> Outcome:  # noqa: ARG002
        """Accelerate and move; then determine reward, cost and the end of the episode."""
        velocity = FRICTION * state.velocity + THRUST * jnp.clip(action, -1.0, 1.0)
        moved = self.place(state.position + velocity, velocity)
        arrived = distance_to_goal(moved.position) < GOAL_RADIUS
        outside = jnp.any(jnp.abs(moved.position) > jnp.asarray([HALF_WIDTH, HALF_HEIGHT]))
        progress = distance_to_goal(state.position) - distance_to_goal(moved.position)
        return Outcome(
            state=moved,
            observation=self.observe(moved),
            reward=PROGRESS * progress - TIME + BONUS * arrived - FINE * outside,
            cost=in_hazard(moved.position).astype(jnp.float32)[None],
            terminated=arrived | outside,
        )


def distance_to_goal(position: Float[Array, "2"]) -> Float[Array, ""]:
    """The distance from a point to the goal's centre."""
    return jnp.sqrt(jnp.sum(jnp.square(position - jnp.asarray(GOAL))))


def in_hazard(position: Float[Array, "2"]) -> Bool[Array, ""]:
    """Whether a point lies in one of the walls."""
    walls = jnp.asarray(WALLS)
    return jnp.any(jnp.all((position[None] >= walls[:, :2]) & (position[None] <= walls[:, 2:]), axis=1))
