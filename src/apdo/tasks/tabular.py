"""Finite constrained tasks with known optima, to compare algorithms with.

Each is a `FiniteCMDP` (`model`), and an environment with the same dynamics. An observation is a one-hot vector of the
state, an action is one of A choices, and a step's reward and costs are r(s, a) and c(s, a). Episodes are cut off after
`horizon` steps, where γ^horizon is small. The rest of an episode is at most this share of the whole sum.
"""

import abc
import dataclasses
import functools
from math import inf

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from apdo.envs.environment import Outcome
from apdo.errors import InvalidInput
from apdo.finite import FiniteCMDP
from apdo.options import OURS, option


class Tables(eqx.Module):
    """A model in the form that an environment needs: the few possible successors of each state and action."""

    start: Float[np.ndarray, " S"]
    """The cumulative start distribution."""
    successor: Int[np.ndarray, "S A W"]
    """The possible successors. S means the end of the episode."""
    chance: Float[np.ndarray, "S A W"]
    reward: Float[np.ndarray, "S A"]
    cost: Float[np.ndarray, "S A M"]


@functools.lru_cache(maxsize=64)
def tables(task: "Tabular") -> Tables:
    """The tables of a task, which are computed once."""
    model = task.model()
    s, a = model.states, model.actions
    width = int(np.diff(model.transition.indptr).max()) + 1
    successor, chance = np.full((s * a, width), s, dtype=np.int32), np.zeros((s * a, width))
    for row in range(s * a):
        entries = slice(model.transition.indptr[row], model.transition.indptr[row + 1])
        count = entries.stop - entries.start
        successor[row, :count] = model.transition.indices[entries]
        chance[row, :count] = model.transition.data[entries]
        chance[row, count] = model.ending.reshape(-1)[row]
    return Tables(
        start=np.cumsum(model.start).astype(np.float32),
        successor=successor.reshape(s, a, width),
        chance=np.cumsum(chance, axis=-1).reshape(s, a, width).astype(np.float32),
        reward=model.reward.astype(np.float32),
        cost=np.moveaxis(model.cost, 0, -1).astype(np.float32),
    )


class Tabular(abc.ABC):
    """An environment for the finite CMDP that a subclass, a frozen dataclass of options, has as its `model`."""

    discrete_actions = True
    horizon_terminates = False

    @abc.abstractmethod
    def model(self) -> FiniteCMDP:
        """The task as arrays."""

    def observations(self) -> Float[np.ndarray, "S O"]:
        """The observation of each state of the model."""
        return np.eye(self.observation_size, dtype=np.float32)

    @property
    def observation_size(self) -> int:
        """S, the number of states."""
        return tables(self).reward.shape[0]

    @property
    def action_size(self) -> int:
        """A, the number of actions."""
        return tables(self).reward.shape[1]

    @property
    def cost_names(self) -> tuple[str, ...]:
        """The model's names of the costs."""
        return self.model().cost_names

    @property
    def limits(self) -> tuple[float, ...]:
        """The model's limits."""
        return tuple(float(limit) for limit in self.model().limits)

    def reset(self, key: PRNGKeyArray) -> Int[Array, ""]:
        """A state drawn from the start distribution."""
        return _draw(jnp.asarray(tables(self).start), key)

    def observe(self, state: Int[Array, ""]) -> Float[Array, " O"]:
        """The state as a one-hot vector; all zeros once the episode has ended."""
        return jax.nn.one_hot(state, self.observation_size)

    def step(self, state: Int[Array, ""], action: Float[Array, " A"], key: PRNGKeyArray) -> Outcome:
        """Draw the next state."""
        table, chosen = tables(self), jnp.argmax(action)
        chance, successor = jnp.asarray(table.chance)[state, chosen], jnp.asarray(table.successor)[state, chosen]
        following = successor[_draw(chance, key)]
        return Outcome(
            state=following,
            observation=self.observe(following),
            reward=jnp.asarray(table.reward)[state, chosen],
            cost=jnp.asarray(table.cost)[state, chosen],
            terminated=following == self.observation_size,
        )


def _draw(cumulative: Float[Array, " W"], key: PRNGKeyArray) -> Int[Array, ""]:
    """An index drawn by inverting its distribution function. Rounding may leave the last value slightly below 1."""
    u = jax.random.uniform(key) * cumulative[-1]
    return jnp.sum(u >= cumulative).astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class TwoState(Tabular):
    """A machine that works while cool, and may continue to work when hot, at the cost of wear.

    In state 0 (cool), working gives a reward of 1 and heats the machine with probability w. In state 1 (hot), working
    gives a reward of 1, costs 1 and keeps the machine hot; resting gives no reward and cools it. Resting while cool
    changes nothing.

    **The optimum in closed form.** Let x_0, x_1 be the discounted visits from a cool start and y the discounted hours
    of hot work, which is C(π). Resting while cool only loses time, so R = x_0 + y. Every step is in one of the states,
    x_0 + x_1 = 1/(1-γ), and heat comes from working: x_1 = γ (w x_0 + y). So x_1 = γ (w/(1-γ) + y)/(1 + γw), and

        R = 1/(1-γ) · 1/(1+γw) + y · (1 - γ(1-w))/(1+γw),

    which increases with y. So the limit binds, C = d, as long as d is below the cost of always working,
    d_max = γw / ((1-γ)(1 - γ(1-w))), and the multiplier is the slope:

        λ* = (1 - γ(1-w)) / (1 + γw),      π*(work | hot) = d / x_1.
    """

    heating: float = option(0.3, "w, the probability that an hour's work heats the machine", OURS, within=(0.0, 1.0))
    limit: float = option(2.0, "limit on discounted hours of hot work", OURS, within=(0.0, inf))
    discount: float = option(0.9, "γ", OURS, within=(0.0, 0.999))
    horizon: int = option(60, "steps after which an episode is cut off", OURS, above=0)

    def model(self) -> FiniteCMDP:
        """The model. Actions: rest, work."""
        w = self.heating
        transition = np.array([[[1.0, 0.0], [1.0 - w, w]], [[1.0, 0.0], [0.0, 1.0]]])
        reward = np.array([[0.0, 1.0], [0.0, 1.0]])
        cost = np.array([[[0.0, 0.0], [0.0, 1.0]]])
        return FiniteCMDP.of(
            transition, reward, cost, np.eye(2)[0], self.discount, np.array([self.limit]), cost_names=["hot hours"]
        )


@dataclasses.dataclass(frozen=True)
class Gridworld(Tabular):
    """Fetch a prize across hazardous ground, or walk around it.

    Every step moves one cell in the chosen direction or, with probability `slip`, in a random one; the edge of the grid
    stops it. Leaving a hazardous cell (h) costs 1. Entering the goal (G) gives the prize and ends the episode. The way
    through the hazards takes 5 steps, and the way around them 9. An earlier prize is discounted less.
    """

    slip: float = option(0.1, "probability that a step goes in a random direction", OURS, within=(0.0, 1.0))
    prize: float = option(10.0, "reward at the goal", OURS, above=0.0)
    limit: float = option(1.0, "limit on discounted steps taken from hazardous cells", OURS, within=(0.0, inf))
    discount: float = option(0.95, "γ", OURS, within=(0.0, 0.999))
    horizon: int = option(120, "steps after which an episode is cut off", OURS, above=0)

    layout = ("......", ".hhhh.", "ShhhhG")
    moves = ((-1, 0), (0, 1), (1, 0), (0, -1))
    """North, east, south, west."""

    def model(self) -> FiniteCMDP:
        """The model. States are the cells, row by row."""
        cells = [(row, column) for row, line in enumerate(self.layout) for column in range(len(line))]
        kind = "".join(self.layout)
        index = {cell: i for i, cell in enumerate(cells)}
        transition, ending = np.zeros((len(cells), 4, len(cells))), np.zeros((len(cells), 4))
        for i, (row, column) in enumerate(cells):
            for action in range(4):
                for direction, (down, right) in enumerate(self.moves):
                    chance = self.slip / 4 + (1.0 - self.slip) * (direction == action)
                    reached = index.get((row + down, column + right), i)
                    if kind[reached] == "G":
                        ending[i, action] += chance
                    else:
                        transition[i, action, reached] += chance
        hazard = np.array([mark == "h" for mark in kind], dtype=float)
        start = np.array([mark == "S" for mark in kind], dtype=float)
        cost = np.broadcast_to(hazard[:, None], ending.shape)[None]
        return FiniteCMDP.of(
            transition,
            self.prize * ending,
            cost,
            start,
            self.discount,
            np.array([self.limit]),
            ending=ending,
            cost_names=["hazardous steps"],
        )


@dataclasses.dataclass(frozen=True)
class Garnet(Tabular):
    """A random sparse CMDP (Archibald, McKinnon and Thomas 1995): from each state and action a few states may follow.

    Rewards and costs of a state and action are uniform on [0, 1]. Limits are interpolated between the costs of two
    policies: the one with the highest return without constraints (tightness 0), and the one whose costs have the least
    sum (tightness 1). With a tightness below 0 a constraint is slack.
    """

    instance: int = option(0, "which random CMDP", OURS, within=(0, 2**31))
    states: int = option(20, "S", OURS, above=1, most=2000)
    actions: int = option(4, "A", OURS, above=1, most=100)
    branching: int = option(3, "states that may follow a state and action", OURS, above=0)
    tightness: tuple[float, ...] = option(
        (0.5,), "one for each constraint, with commas: 0 does not restrict, 1 restricts most", OURS
    )
    discount: float = option(0.9, "γ", OURS, within=(0.0, 0.999))
    horizon: int = option(60, "steps after which an episode is cut off", OURS, above=0)

    def __post_init__(self) -> None:
        if self.branching > self.states:
            raise InvalidInput(f"branching must be at most the {self.states} states, and is {self.branching}.")
        if not self.tightness or not all(-inf < t <= 1 for t in self.tightness):
            raise InvalidInput(f"tightness must be one number up to 1 for each constraint, not {self.tightness}.")

    def model(self) -> FiniteCMDP:
        """The model. It is the same for the same options on any machine."""
        return _garnet(self)


@functools.lru_cache(maxsize=64)
def _garnet(task: Garnet) -> FiniteCMDP:
    from apdo import exact

    s, a, m = task.states, task.actions, len(task.tightness)
    rng = np.random.default_rng(task.instance)
    transition = np.zeros((s, a, s))
    for i in range(s):
        for j in range(a):
            reached = rng.choice(s, task.branching, replace=False)
            transition[i, j, reached] = rng.dirichlet(np.ones(task.branching))
    reward, cost, start = rng.random((s, a)), rng.random((m, s, a)), np.full(s, 1.0 / s)
    free = FiniteCMDP.of(transition, reward, cost, start, task.discount, np.full(m, s / (1.0 - task.discount)))
    thrifty = dataclasses.replace(free, reward=-cost.sum(axis=0))
    nothing = np.zeros(m)
    most, least = (exact.evaluate(free, exact.lagrangian(p, nothing).policy).costs for p in (free, thrifty))
    limits = (1.0 - np.asarray(task.tightness)) * most + np.asarray(task.tightness) * least
    return free.with_limits(limits)
