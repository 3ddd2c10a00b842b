"""Safety-Gymnasium's point tasks, in JAX: move to goals past hazards, or run in a circle between walls.

The robot (`point.xml`) is a rigid body in the plane, whose centre of mass is c ahead of its origin. θ is its heading, ω
its spin, v its velocity in its own axes (x ahead), and a the acceleration of its origin in the same axes:

    m a_x             = F - d v_x + m c ω²       F = 0.3 clip(u_0, ±0.05)
    m a_y + m c α     = -d v_y
    m c a_y + J α     = T - e ω                  T = 0.3 clip(u_1 - 0.3 ω, ±0.05)

Nothing else acts on it: MuJoCo computes a distance of 0 between the sphere and the floor, which is not a contact. A
step holds the action for ten steps of 2 ms of MuJoCo's Euler rule, which is semi-implicit and evaluates the damping at
the end of the step.

The feedback on ω is unstable at steps of this length, also in the original. Within the bounds of T a difference grows
by a factor of 3.7 in each step, until ω oscillates between the bounds. Single steps therefore agree with the original,
but long episodes agree only in distribution.

Constants are those of the compiled model (Safety-Gymnasium 1.0.0, MuJoCo 2.3.3); tests/data has episodes of it.
"""

import dataclasses
import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from apdo.envs.environment import Outcome

TIMESTEP = 0.002
SUBSTEPS = 10
ROBOT_RADIUS = 0.1
ARROW, ARROW_SIZE = 0.1, 0.05
"""The robot is a sphere with a cube ahead of it: the cube's distance, and half its side."""
SPHERE = 4.0 / 3.0 * math.pi * ROBOT_RADIUS**3
BOX = (2.0 * ARROW_SIZE) ** 3
"""The masses of sphere and cube, for a density of 1."""
MASS = SPHERE + BOX
AHEAD = ARROW * BOX / MASS
"""c, from the origin to the centre of mass."""
INERTIA = 0.4 * SPHERE * ROBOT_RADIUS**2 + BOX * ((2.0 * ARROW_SIZE) ** 2 / 6.0 + ARROW**2)
"""J, about the origin."""
DRAG = 0.01
SPIN_DRAG = 0.005
GEAR = 0.3
MOST_FORCE = 0.05
GRAVITY = 9.81
MAGNETIC = -0.5
"""The magnetic field, along y."""
BINS = 16
GOAL_SIZE = 0.3
HAZARD_SIZE = 0.2
VASE_SIZE = 0.1
"""Half the side of the vase, which is a cube."""
VASE_GYRATION = 0.12
VASE_FRICTION = 0.3
"""The vase's radius of gyration and friction, fitted to recorded pushes.

A vase that slid on its four corners would have 0.14 and 1. The original's vase also hops."""
HAZARDS = 8
AGENT_KEEPOUT, GOAL_KEEPOUT, HAZARD_KEEPOUT, VASE_KEEPOUT = 0.4, 0.305, 0.18, 0.15
"""Minimum distances of placed objects: the sum of both between two objects, and an object's own from the edge."""
CIRCLE_RADIUS = 1.5
WALL = 1.125
PLACE_TRIES = 32
"""The draws for one object before the layout is started again. The original has 100; at least one in three fits."""
GOAL_TRIES = 10_000
"""The draws for a goal before the episode ends. At least one in twenty fits."""
_DRAWS = 16

Objects = Float[Array, "objects 2"]


class Robot(eqx.Module):
    """The point robot, and the action that is applied to it."""

    position: Float[Array, "2"]
    """The position of the body's origin."""
    heading: Float[Array, ""]
    velocity: Float[Array, "2"]
    """The velocity of the origin, in the world's axes."""
    spin: Float[Array, ""]
    action: Float[Array, "2"]
    """The latest action, which the accelerometer measures."""


def rest(position: Float[Array, "2"], heading: Float[Array, ""]) -> Robot:
    """A robot at rest, with no action."""
    zero = jnp.zeros(2)
    return Robot(position=position, heading=heading, velocity=zero, spin=jnp.asarray(0.0), action=zero)


def drive(robot: Robot, action: Float[Array, "2"]) -> Robot:
    """The robot after a step under an action."""
    action = jnp.clip(action, -1.0, 1.0)
    robot = eqx.tree_at(lambda r: r.action, robot, action)
    for _ in range(SUBSTEPS):
        robot = _substep(robot)
    # The heading is kept small, because large floating-point numbers are less precise.
    turns = jnp.round(robot.heading / (2.0 * math.pi))
    return eqx.tree_at(lambda r: r.heading, robot, robot.heading - 2.0 * math.pi * turns)


def _substep(robot: Robot) -> Robot:
    ahead, aside, turn = _acceleration(robot, TIMESTEP)
    c, s = jnp.cos(robot.heading), jnp.sin(robot.heading)
    velocity = robot.velocity + TIMESTEP * jnp.stack([c * ahead - s * aside, s * ahead + c * aside])
    spin = robot.spin + TIMESTEP * turn
    return Robot(
        position=robot.position + TIMESTEP * velocity,
        heading=robot.heading + TIMESTEP * spin,
        velocity=velocity,
        spin=spin,
        action=robot.action,
    )


def _acceleration(robot: Robot, implicit: float) -> tuple[Array, Array, Array]:
    """The accelerations of the origin, ahead and sideways, and of the heading.

    The damping is evaluated `implicit` seconds later.
    """
    ahead, aside = _turned(robot.velocity, robot.heading)
    force = GEAR * jnp.clip(robot.action[0], -MOST_FORCE, MOST_FORCE)
    torque = GEAR * jnp.clip(robot.action[1] - GEAR * robot.spin, -MOST_FORCE, MOST_FORCE)
    mass, coupling, inertia = MASS + implicit * DRAG, MASS * AHEAD, INERTIA + implicit * SPIN_DRAG
    thrust = force - DRAG * ahead + coupling * jnp.square(robot.spin)
    drag = -DRAG * aside
    twist = torque - SPIN_DRAG * robot.spin
    determinant = mass * inertia - coupling**2
    return (
        thrust / mass,
        (inertia / determinant) * drag - (coupling / determinant) * twist,
        (mass / determinant) * twist - (coupling / determinant) * drag,
    )


def _turned(vector: Float[Array, "2"], heading: Float[Array, ""]) -> tuple[Array, Array]:
    """A vector of the world in the robot's axes."""
    c, s = jnp.cos(heading), jnp.sin(heading)
    return c * vector[0] + s * vector[1], c * vector[1] - s * vector[0]


def sense(robot: Robot) -> Float[Array, "12"]:
    """Accelerometer, velocimeter, gyro and magnetometer, three numbers each, in the robot's axes."""
    accelerated = _acceleration(robot, 0.0)
    moving = _turned(robot.velocity, robot.heading)
    north = _turned(jnp.asarray([0.0, MAGNETIC]), robot.heading)
    zero = jnp.asarray(0.0)
    readings = (*accelerated[:2], GRAVITY + zero, *moving, zero, zero, zero, robot.spin, *north, zero)
    return jnp.stack(readings)


def lidar(robot: Robot, objects: Objects, reach: float) -> Float[Array, " bins"]:
    """The proximity of the nearest object in each bin around the robot: 1 at the robot's origin, 0 from `reach` on.

    An object counts fully in its own bin. It counts partly in the two neighbouring bins, more in the nearer one.
    """
    offset = objects - robot.position[None]
    distance = _distance(objects, robot.position[None])
    angle = jnp.arctan2(offset[:, 1], offset[:, 0]) - robot.heading
    away = angle[:, None] * (BINS / (2.0 * math.pi)) - (jnp.arange(BINS) + 0.5)[None]
    away = away - BINS * jnp.round(away / BINS)
    share = jnp.clip(1.5 - jnp.abs(away), 0.0, 1.0)
    nearness = jnp.maximum(0.0, 1.0 - distance / reach)
    return jnp.max(share * nearness[:, None], axis=0)


def push(before: Robot, robot: Robot, vase: Float[Array, "2"], heading: Float[Array, ""]) -> tuple[Array, Array]:
    """Position and heading of the vase after the robot has moved, and perhaps pushed it.

    The vase is so light (8 mg) that it stops almost at once and hardly affects the robot. It moves just far enough to
    be clear of the robot again, along the force at the point where the two overlap most. This force follows the motion
    of the robot's surface at that point, within a cone of friction. It turns the vase as it would turn a sliding body.
    """
    depth, normal, arm = _contact(robot, vase, heading)
    turn = robot.heading - before.heading
    turn = turn - 2.0 * math.pi * jnp.round(turn / (2.0 * math.pi))
    surface = robot.position - before.position + turn * _left(vase + arm - robot.position)
    tangent = _left(normal)
    ahead = jnp.maximum(_dot(normal, surface), 1e-6)
    wanted = normal + _dot(tangent, surface) / ahead * tangent
    # Sliding: velocity along the force, and turning along the torque over the square of the radius of gyration.
    lever = _left(arm) / VASE_GYRATION
    force = wanted - lever * _dot(lever, wanted) / (1.0 + _dot(lever, lever))
    pressure = jnp.abs(_dot(normal, force))
    share = jnp.clip(_dot(tangent, force) / jnp.maximum(pressure, 1e-9), -VASE_FRICTION, VASE_FRICTION)
    force = normal + share * tangent
    turning = _dot(lever, force)
    speed = _dot(normal, force + turning * lever)
    way = jnp.maximum(depth, 0.0) / jnp.maximum(speed, 0.1)
    return vase + way * force, heading + way * turning / VASE_GYRATION


def _contact(robot: Robot, vase: Float[Array, "2"], heading: Float[Array, ""]) -> tuple[Array, Array, Array]:
    """The point where robot and vase overlap most: depth, direction into the vase, and position from its centre."""
    disc, arrow = _disc_contact(robot, vase, heading), _arrow_contact(robot, vase, heading)
    deeper = disc[0] > arrow[0]
    depth, normal, arm = (jnp.where(deeper, one, other) for one, other in zip(disc, arrow, strict=True))
    return depth, normal, arm


def _disc_contact(robot: Robot, vase: Float[Array, "2"], heading: Float[Array, ""]) -> tuple[Array, Array, Array]:
    """The contact of the robot's sphere, along the line to the nearest point of the vase."""
    centre = _rotated(robot.position - vase, -heading)
    nearest = jnp.clip(centre, -VASE_SIZE, VASE_SIZE)
    away = nearest - centre
    distance = jnp.sqrt(jnp.sum(jnp.square(away)))
    # If the sphere's centre is inside the vase, the direction is towards the vase's centre.
    inside = distance < 1e-6
    away = jnp.where(inside, -centre, away)
    normal = away / jnp.maximum(jnp.sqrt(jnp.sum(jnp.square(away))), 1e-6)
    return ROBOT_RADIUS - distance, _rotated(normal, heading), _rotated(nearest, heading)


def _arrow_contact(robot: Robot, vase: Float[Array, "2"], heading: Float[Array, ""]) -> tuple[Array, Array, Array]:
    """The contact of the robot's cube, along the normal of a side of either square in which they overlap least."""
    slant = heading - robot.heading
    spread = jnp.abs(jnp.cos(slant)) + jnp.abs(jnp.sin(slant))
    centre = robot.position + ARROW * _rotated(jnp.asarray([1.0, 0.0]), robot.heading)
    away = vase - centre
    seen = jnp.stack([_rotated(away, -robot.heading), _rotated(away, -heading)])
    reach = jnp.stack([ARROW_SIZE + VASE_SIZE * spread, VASE_SIZE + ARROW_SIZE * spread])
    overlap = (reach[:, None] - jnp.abs(seen)).reshape(4)
    least = jnp.min(overlap)
    chosen = (jnp.arange(4) == jnp.argmin(overlap)).reshape(2, 2)
    across = jnp.where(chosen, _signs(seen), 0.0)
    normal = _rotated(across[0], robot.heading) + _rotated(across[1], heading)
    # The contact point is a corner of the other square.
    corner = -VASE_SIZE * _rotated(_signs(_rotated(normal, -heading)), heading)
    tip = ARROW_SIZE * _rotated(_signs(_rotated(normal, -robot.heading)), robot.heading) - away
    return least, normal, jnp.where(jnp.any(chosen[0]), corner, tip)


def _signs(vectors: Float[Array, "*n 2"]) -> Float[Array, "*n 2"]:
    return jnp.where(vectors < 0.0, -1.0, 1.0)


def _rotated(vectors: Float[Array, "*n 2"], angle: Float[Array, ""]) -> Float[Array, "*n 2"]:
    c, s = jnp.cos(angle), jnp.sin(angle)
    x, y = vectors[..., 0], vectors[..., 1]
    return jnp.stack([c * x - s * y, s * x + c * y], axis=-1)


def _dot(one: Float[Array, "2"], other: Float[Array, "2"]) -> Float[Array, ""]:
    """The inner product, written as a sum: some GPUs would compute a matrix product with less precision."""
    return jnp.sum(one * other)


def _left(vector: Float[Array, "2"]) -> Float[Array, "2"]:
    """The vector turned by a right angle."""
    return jnp.stack([-vector[1], vector[0]])


class GoalState(eqx.Module):
    """The robot and the positions of all objects."""

    robot: Robot
    goal: Float[Array, "2"]
    hazards: Float[Array, "hazards 2"]
    vase: Float[Array, "vases 2"]
    vase_heading: Float[Array, " vases"]


@dataclasses.dataclass(frozen=True)
class PointGoal:
    """Move to one goal after the other. A subclass defines the obstacles."""

    extent: ClassVar[float]
    hazards: ClassVar[int]
    vases: ClassVar[int]
    observation_size: ClassVar[int]

    action_size = 2
    discrete_actions = False
    cost_names = ("hazards",)
    limits = (25.0,)
    discount = 0.99
    horizon = 1000
    horizon_terminates = False
    reach: ClassVar[float] = 3.0
    defaults: ClassVar[dict[str, Any]] = {"samples": 2_000_000, "constrain": "total", "normalise": True}
    """Default settings of a run on such tasks. The limit is on the total of an episode."""

    def reset(self, key: PRNGKeyArray) -> GoalState:
        """All objects placed clear of each other, and the robot at rest. The goal is then drawn as any later goal."""
        layout_key, goal_key, angle_key = jax.random.split(key, 3)
        places = _layout(layout_key, self.extent, self._keepouts())
        angles = jax.random.uniform(angle_key, (1 + self.vases,), maxval=2.0 * math.pi)
        robot = rest(places[0], angles[0])
        hazards, vase = places[2 : 2 + self.hazards], places[2 + self.hazards :]
        state = GoalState(robot=robot, goal=places[1], hazards=hazards, vase=vase, vase_heading=angles[1:])
        goal, _ = self.next_goal(state, goal_key)
        return eqx.tree_at(lambda s: s.goal, state, goal)

    def _keepouts(self) -> tuple[float, ...]:
        return (AGENT_KEEPOUT, GOAL_KEEPOUT, *[HAZARD_KEEPOUT] * self.hazards, *[VASE_KEEPOUT] * self.vases)

    def next_goal(
        self, state: GoalState, key: PRNGKeyArray, wanted: Bool[Array, ""] | bool = True
    ) -> tuple[Float[Array, "2"], Bool[Array, ""]]:
        """A new goal clear of all objects, and whether one was found. If none is `wanted`, it is the old goal."""
        others = jnp.concatenate([state.robot.position[None], state.hazards, state.vase])
        agent, _, *rest_of_them = self._keepouts()
        apart = jnp.asarray([agent, *rest_of_them]) + GOAL_KEEPOUT
        half = self.extent - GOAL_KEEPOUT

        def missing(carry: tuple[Array, Array, Array]) -> Array:
            tried, found, _ = carry
            return ~found & (tried < GOAL_TRIES // _DRAWS)

        def draw(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            tried, _, goal = carry
            drawn = jax.random.uniform(jax.random.fold_in(key, tried), (_DRAWS, 2), minval=-half, maxval=half)
            fits = _clear(drawn, others, apart)
            return tried + 1, jnp.any(fits), jnp.where(jnp.any(fits), _first(drawn, fits), goal)

        _, found, goal = jax.lax.while_loop(missing, draw, (jnp.asarray(0), ~jnp.asarray(wanted), state.goal))
        return goal, found

    def step(self, state: GoalState, action: Float[Array, "2"], key: PRNGKeyArray) -> Outcome:
        """Drive. Reaching a goal is rewarded, and the next one is drawn. If there is none, the episode ends."""
        before = _distance(state.robot.position, state.goal)
        robot = drive(state.robot, action)
        now = _distance(robot.position, state.goal)
        reached = now <= GOAL_SIZE
        inside = jnp.any(_distance(robot.position[None], state.hazards) < HAZARD_SIZE)
        moved = eqx.tree_at(lambda s: s.robot, state, robot)
        if self.vases:
            vase, turned = push(state.robot, robot, state.vase[0], state.vase_heading[0])
            moved = eqx.tree_at(lambda s: (s.vase, s.vase_heading), moved, (vase[None], turned[None]))
        goal, found = self.next_goal(moved, key, reached)
        onward = eqx.tree_at(lambda s: s.goal, moved, goal)
        return Outcome(
            state=onward,
            observation=self.observe(onward),
            reward=before - now + reached,
            cost=inside.astype(jnp.float32)[None],
            terminated=~found,
        )

    def observe(self, state: GoalState) -> Float[Array, " O"]:
        """The robot's sensors; then a lidar for the goal, one for the hazards and one for the vase."""
        kinds = (state.goal[None], state.hazards, state.vase)
        seen = [lidar(state.robot, objects, self.reach) for objects in kinds if len(objects)]
        return jnp.concatenate([sense(state.robot), *seen])


@dataclasses.dataclass(frozen=True)
class PointGoal0(PointGoal):
    """No obstacles, and no costs."""

    extent = 1.0
    hazards = 0
    vases = 0
    observation_size = 12 + BINS


@dataclasses.dataclass(frozen=True)
class PointGoal1(PointGoal):
    """Eight hazards and a vase. A step costs 1 while the robot's origin is inside a hazard; the vase has no cost."""

    extent = 1.5
    hazards = HAZARDS
    vases = 1
    observation_size = 12 + 3 * BINS


@dataclasses.dataclass(frozen=True)
class PointCircle:
    """Run along a circle around the origin. A subclass defines the number of walls; a step beyond one costs 1."""

    walls: ClassVar[int]

    observation_size = 12 + BINS
    action_size = 2
    discrete_actions = False
    cost_names = ("outside",)
    limits = (25.0,)
    discount = 0.99
    horizon = 500
    horizon_terminates = False
    reach: ClassVar[float] = 6.0
    placed: ClassVar[float] = 0.8
    defaults: ClassVar[dict[str, Any]] = PointGoal.defaults

    def reset(self, key: PRNGKeyArray) -> Robot:
        """The robot at rest, at a random position around the centre."""
        place_key, angle_key = jax.random.split(key)
        place = jax.random.uniform(place_key, (2,), minval=-self.placed, maxval=self.placed)
        return rest(place, jax.random.uniform(angle_key, (), maxval=2.0 * math.pi))

    def step(self, state: Robot, action: Float[Array, "2"], key: PRNGKeyArray) -> Outcome:  # noqa: ARG002
        """Drive. The reward is the speed around the origin, and decreases with the distance from the circle."""
        robot = drive(state, action)
        (x, y), (u, v) = robot.position, robot.velocity
        radius = jnp.maximum(jnp.sqrt(x**2 + y**2), 1e-9)
        reward = 0.1 * ((v * x - u * y) / radius) / (1.0 + jnp.abs(radius - CIRCLE_RADIUS))
        outside = jnp.abs(robot.position[: self.walls // 2]) > WALL
        return Outcome(
            state=robot,
            observation=self.observe(robot),
            reward=reward,
            cost=jnp.any(outside).astype(jnp.float32)[None],
            terminated=jnp.asarray(False),
        )

    def observe(self, state: Robot) -> Float[Array, " O"]:
        """The robot's sensors, and a lidar for the circle's centre."""
        return jnp.concatenate([sense(state), lidar(state, jnp.zeros((1, 2)), self.reach)])


@dataclasses.dataclass(frozen=True)
class PointCircle0(PointCircle):
    """No walls, and no cost."""

    walls = 0


@dataclasses.dataclass(frozen=True)
class PointCircle1(PointCircle):
    """Walls at x = ±1.125."""

    walls = 2


@dataclasses.dataclass(frozen=True)
class PointCircle2(PointCircle):
    """Walls at x = ±1.125 and at y = ±1.125."""

    walls = 4


def _distance(one: Float[Array, "*n 2"], other: Float[Array, "*m 2"]) -> Float[Array, "*k"]:
    return jnp.sqrt(jnp.sum(jnp.square(one - other), axis=-1))


def _clear(drawn: Float[Array, "draws 2"], others: Objects, apart: Float[Array, " objects"]) -> Bool[Array, " draws"]:
    """Whether each draw is clear of all other objects."""
    return jnp.all(_distance(drawn[:, None], others[None]) >= apart[None], axis=-1)


def _first(drawn: Float[Array, "draws 2"], fits: Bool[Array, " draws"]) -> Float[Array, "2"]:
    """The first draw that fits. It is computed without a gather, which is slow under vmap."""
    chosen = fits & (jnp.cumsum(fits) == 1)
    return jnp.sum(jnp.where(chosen[:, None], drawn, 0.0), axis=0)


def _layout(key: PRNGKeyArray, extent: float, keepouts: tuple[float, ...]) -> Objects:
    """Positions drawn one after the other, each clear of those before it. If one does not fit, all are drawn again."""
    count = len(keepouts)
    own = jnp.asarray(keepouts)

    def place(placed: Objects, turn: tuple[Array, Array, Array]) -> tuple[Objects, Bool[Array, ""]]:
        i, keepout, drawn = turn
        drawn = drawn * (extent - keepout)
        fits = _clear(drawn, placed, own + keepout)
        return jnp.where(jnp.arange(count)[:, None] == i, _first(drawn, fits)[None], placed), jnp.any(fits)

    def attempt(carry: tuple[Array, Array, Objects]) -> tuple[Array, Array, Objects]:
        tried, _, _ = carry
        # Sixteen draws where eleven are needed: XLA compiles draws in powers of two several times faster.
        drawn = jax.random.uniform(jax.random.fold_in(key, tried), (16, PLACE_TRIES, 2), minval=-1.0)[:count]
        nowhere = jnp.full((count, 2), jnp.inf)
        placed, found = jax.lax.scan(place, nowhere, (jnp.arange(count), own, drawn))
        return tried + 1, jnp.all(found), placed

    start = (jnp.asarray(0), jnp.asarray(False), jnp.zeros((count, 2)))
    return jax.lax.while_loop(lambda carry: ~carry[1], attempt, start)[2]
