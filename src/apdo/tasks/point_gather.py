"""Point-gather: a point robot collects apples for reward and bombs at a cost (paper, section 4 and appendix B).

Two apples (reward 10 each) and eight bombs (cost 1 each) lie on distinct cells of a grid around the robot. An action is
a distance to move and an angle to turn; the robot turns, moves, and takes every object nearer than 1 to its centre of
mass. It senses the objects in front of it through ten bins per kind. Nothing is integrated: the task is pure
kinematics.
"""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from apdo.envs.environment import Outcome
from apdo.options import PAPER, PUBLISHED, option

APPLES = 2
BOMBS = 8
OBJECTS = APPLES + BOMBS
ARENA = 6.0
CATCH_RANGE = 1.0
SENSOR_RANGE = 6.0
SENSOR_SPAN = math.pi
BINS = 10
# A sphere of radius 0.5 and a 1.0×0.2×0.2 box 0.6 ahead of its centre, of one density: the box pulls the body's centre
# of mass forward by 0.6 times its share of the mass.
CENTRE_AHEAD = 0.6 * 4.0 / (100.0 * 4.0 / 3.0 * math.pi * 0.125 + 4.0)
CENTRE_HEIGHT = 0.5
CELLS = np.array(
    [(x, y) for x in range(-6, 6, 2) for y in range(-6, 6, 2) if math.hypot(x, y) >= 2.0], dtype=np.float32
)


class State(eqx.Module):
    """The robot, and the objects that are left: apples first, then bombs."""

    position: Float[Array, "2"]
    heading: Float[Array, ""]
    velocity: Float[Array, "3"]
    """It is drawn at reset and never changes. The policy observes it, but it does not move the robot."""
    objects: Float[Array, "objects 2"]
    remaining: Bool[Array, " objects"]


@dataclasses.dataclass(frozen=True)
class PointGather:
    """The task, exactly as the published experiments run it."""

    clip_actions: bool = option(False, "clip actions to the nominal ±1 (move) and ±0.25 (turn)", PUBLISHED)
    bomb_penalty: float = option(0.0, "amount subtracted from the reward for each bomb (published code: 1)", PAPER)

    observation_size = 9 + 2 * BINS
    action_size = 2
    discrete_actions = False
    cost_names = ("bombs",)
    limits = (0.2,)
    discount = 0.995
    horizon = 15
    horizon_terminates = True

    def reset(self, key: PRNGKeyArray) -> State:
        """Objects on ten distinct cells, and the robot at the origin with a little noise."""
        cell_key, noise_key = jax.random.split(key)
        noise = jax.random.normal(noise_key, (8,))
        return self.place(
            objects=_distinct_cells(cell_key),
            position=0.01 * noise[:2],
            heading=0.01 * noise[2],
            velocity=0.1 * noise[3:6],
        )

    def place(
        self,
        objects: Float[Array, "objects 2"],
        position: Float[Array, "2"],
        heading: Float[Array, ""],
        velocity: Float[Array, "3"],
    ) -> State:
        """A state with the given objects (apples first), position, heading and velocity."""
        return State(
            position=position,
            heading=heading,
            velocity=velocity,
            objects=objects,
            remaining=jnp.ones(OBJECTS, dtype=bool),
        )

    def step(self, state: State, action: Float[Array, "2"], key: PRNGKeyArray) -> Outcome:  # noqa: ARG002
        """Turn, move, clip to the arena, take what is within reach."""
        if self.clip_actions:
            bound = jnp.asarray([1.0, 0.25])
            action = jnp.clip(action, -bound, bound)
        heading = state.heading + action[1]
        moved = state.position + action[0] * jnp.stack([jnp.cos(heading), jnp.sin(heading)])
        moved = State(
            position=jnp.clip(moved, -ARENA, ARENA),
            heading=heading,
            velocity=state.velocity,
            objects=state.objects,
            remaining=state.remaining,
        )
        offset = moved.objects - _centre_of_mass(moved)[None]
        caught = moved.remaining & (jnp.sum(jnp.square(offset), axis=-1) < CATCH_RANGE**2)
        left = eqx.tree_at(lambda s: s.remaining, moved, moved.remaining & ~caught)
        apples = jnp.sum(caught[:APPLES], dtype=jnp.float32)
        bombs = jnp.sum(caught[APPLES:], dtype=jnp.float32)
        return Outcome(
            state=left,
            observation=self.observe(left),
            reward=10.0 * apples - self.bomb_penalty * bombs,
            cost=bombs[None],
            terminated=~jnp.any(left.remaining),
        )

    def observe(self, state: State) -> Float[Array, "29"]:
        """Pose, velocity, centre of mass, apple bins, bomb bins."""
        centre = _centre_of_mass(state)
        readings = _sense(state, centre)
        return jnp.concatenate(
            [
                state.position,
                state.heading[None],
                state.velocity,
                centre,
                jnp.full((1,), CENTRE_HEIGHT),
                jnp.max(readings[:APPLES], axis=0),
                jnp.max(readings[APPLES:], axis=0),
            ]
        )


def _centre_of_mass(state: State) -> Float[Array, "2"]:
    return state.position + CENTRE_AHEAD * jnp.stack([jnp.cos(state.heading), jnp.sin(state.heading)])


def _sense(state: State, centre: Float[Array, "2"]) -> Float[Array, "objects bins"]:
    """The reading of each bin for each object alone: 1 - distance/range if the object is seen in it, else 0."""
    offset = state.objects - centre[None]
    distance = jnp.sqrt(jnp.sum(jnp.square(offset), axis=-1))
    bearing = jnp.arctan2(offset[:, 1], offset[:, 0]) - state.heading
    angle = bearing - 2.0 * math.pi * jnp.round(bearing / (2.0 * math.pi))
    seen = state.remaining & (distance <= SENSOR_RANGE) & (jnp.abs(angle) <= SENSOR_SPAN / 2)
    index = jnp.floor((angle + SENSOR_SPAN / 2) / (SENSOR_SPAN / BINS))
    # An object at exactly +π/2 belongs to the last bin.
    index = jnp.clip(index, 0, BINS - 1)
    reading = jnp.where(seen, 1.0 - distance / SENSOR_RANGE, 0.0)
    return jnp.where(index[:, None] == jnp.arange(BINS)[None], reading[:, None], 0.0)


def _distinct_cells(key: PRNGKeyArray) -> Float[Array, "objects 2"]:
    """The first ten of a uniformly shuffled deck of cells (Fisher-Yates, stopped early)."""
    place = jnp.arange(len(CELLS))
    turns = jnp.arange(OBJECTS)
    # Sixteen draws for ten: XLA compiles draws in powers of two several times faster.
    left = len(CELLS) - turns
    spots = turns + jnp.floor(jax.random.uniform(key, (16,))[:OBJECTS] * left).astype(turns.dtype)

    def draw(deck: Int[Array, " cells"], turn: tuple[Array, Array]) -> tuple[Int[Array, " cells"], Int[Array, ""]]:
        i, spot = turn
        drawn = jnp.sum(jnp.where(place == spot, deck, 0))
        first = jnp.sum(jnp.where(place == i, deck, 0))
        return jnp.where(place == spot, first, deck), drawn

    _, cells = jax.lax.scan(draw, place, (turns, spots))
    return jnp.asarray(CELLS)[cells]
