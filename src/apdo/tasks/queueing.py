"""A queueing network: admit traffic for utility, and serve it with power, so that arrivals stay below service.

This is the communication network control of the paper's introduction, after Altman, *Constrained Markov Decision
Processes*, chapter 1.1: maximise the utility of the admitted traffic, while the long-term rate of arrivals to each
queue stays below the long-term rate of its service.

n queues share one server. In each slot a packet arrives at queue i with probability a_i. An action chooses whether
packets are admitted, which queue the server serves (or none), and at which power. An admitted packet that finds room
gives a reward of u_i. The server then completes a packet of its queue with probability μ, which depends on the power.
Costs of a slot:

    for each queue i   packets admitted to i - packets that the server could complete for i
    power              the power that the server draws

The first n costs have limit 0 (arrivals at most service), and the last has a budget. All are discounted sums. With
small buffers the network is a finite CMDP (`model`), which can be solved exactly. With large buffers it is a task for
learning. Both use `slot`.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int, PRNGKeyArray

from apdo.envs.environment import Outcome
from apdo.errors import InvalidInput
from apdo.finite import FiniteCMDP
from apdo.options import OURS, option

MOST_QUEUES = 9
"""The most queues. With the power, their constraints are the most that CPO solves exactly."""
MOST_STATES = 20_000
"""The most states of a network that can be converted to a finite CMDP."""
ONE_HOT_BUFFER = 20
"""The largest buffer for which observations are one-hot queue lengths. Beyond it they are fractions."""


@dataclasses.dataclass(frozen=True)
class QueueingNetwork:
    """Queues that share a server with two levels of power."""

    arrival: tuple[float, ...] = option((0.5, 0.4), "a_i, probability of a packet in a slot, for each queue", OURS)
    utility: tuple[float, ...] = option((1.0, 0.6), "u_i, reward for an admitted packet of each queue", OURS)
    service: tuple[float, ...] = option(
        (0.5, 0.9), "μ, probability of completing a packet, at low and at high power", OURS
    )
    power: tuple[float, ...] = option((0.3, 1.0), "power drawn in a slot, low and high", OURS)
    budget: float = option(0.5, "limit on the mean power of a slot", OURS, above=0.0)
    buffer: int = option(4, "most packets in a queue", OURS, above=0, most=10**6)
    discount: float = option(0.95, "γ", OURS, within=(0.0, 0.9999))
    horizon: int = option(120, "slots after which an episode is cut off", OURS, above=0)

    discrete_actions = True
    horizon_terminates = False

    def __post_init__(self) -> None:
        if len(self.arrival) != len(self.utility) or not self.arrival:
            raise InvalidInput(
                f"arrival and utility need one number for each queue, and have {len(self.arrival)} and "
                f"{len(self.utility)}."
            )
        if len(self.arrival) > MOST_QUEUES:
            raise InvalidInput(f"a network has at most {MOST_QUEUES} queues, not {len(self.arrival)}.")
        if len(self.service) != len(self.power) or not self.service:
            raise InvalidInput(
                f"service and power need one number for each level, and have {len(self.service)} and {len(self.power)}."
            )
        for name, values in (("arrival", self.arrival), ("service", self.service)):
            if not all(0.0 <= value <= 1.0 for value in values):
                raise InvalidInput(f"{name} must be probabilities, and is {values}.")

    @property
    def queues(self) -> int:
        """n, the number of queues."""
        return len(self.arrival)

    @property
    def observation_size(self) -> int:
        """The size of the observed queue lengths."""
        return self.queues * (self.buffer + 1 if self.buffer <= ONE_HOT_BUFFER else 2)

    @property
    def action_size(self) -> int:
        """The number of actions: admit or not, times idle or a queue and a level of power."""
        return 2 * (1 + self.queues * len(self.service))

    @property
    def cost_names(self) -> tuple[str, ...]:
        """The names of the costs: a rate for each queue, and the power."""
        return (*(f"arrivals less service {i + 1}" for i in range(self.queues)), "power")

    @property
    def limits(self) -> tuple[float, ...]:
        """Limits of 0 for arrivals less service, and the power budget times 1/(1-γ) effective slots."""
        return (0.0,) * self.queues + (self.budget / (1.0 - self.discount),)

    def reset(self, key: PRNGKeyArray) -> Int[Array, " n"]:  # noqa: ARG002
        """Empty queues."""
        return jnp.zeros(self.queues, dtype=jnp.int32)

    def observe(self, state: Int[Array, " n"]) -> Float[Array, " O"]:
        """Each length one-hot. With large buffers: its fraction of the buffer, and whether the queue is empty."""
        if self.buffer <= ONE_HOT_BUFFER:
            return jax.nn.one_hot(state, self.buffer + 1).reshape(-1)
        return jnp.concatenate([state / self.buffer, (state == 0).astype(jnp.float32)])

    def lengths(self, observation: Float[Array, " O"]) -> Float[Array, " n"]:
        """The queue lengths that an observation shows."""
        if self.buffer <= ONE_HOT_BUFFER:
            return observation.reshape(self.queues, -1) @ jnp.arange(self.buffer + 1.0)
        return jnp.round(observation[: self.queues] * self.buffer)

    def step(self, state: Int[Array, " n"], action: Float[Array, " A"], key: PRNGKeyArray) -> Outcome:
        """One slot with random arrivals and service."""
        arrival_key, service_key = jax.random.split(key)
        admits, share, power = (jnp.asarray(part)[jnp.argmax(action)] for part in self.choices())
        arrives = jax.random.uniform(arrival_key, (self.queues,)) < jnp.asarray(self.arrival)
        completes = jax.random.uniform(service_key, (self.queues,)) < share
        following, reward, rate = self.slot(state, admits * arrives, completes.astype(jnp.int32))
        cost = jnp.concatenate([rate.astype(jnp.float32), power[None]])
        return Outcome(
            state=following,
            observation=self.observe(following),
            reward=reward,
            cost=cost,
            terminated=jnp.asarray(False),
        )

    def slot(
        self, length: Int[Array, " n"], offered: Int[Array, " n"], completes: Int[Array, " n"]
    ) -> tuple[Int[Array, " n"], Float[Array, ""], Int[Array, " n"]]:
        """Lengths after a slot, its utility, and admitted packets less completed ones, for given random outcomes.

        Service of an empty queue counts too: the constraint compares rates, not packets.
        """
        admitted = offered * (length < self.buffer)
        after = jnp.maximum(length + admitted - completes, 0)
        return after, jnp.vdot(jnp.asarray(self.utility), admitted), admitted - completes

    def choices(self) -> tuple[Int[np.ndarray, " A"], Float[np.ndarray, "A n"], Float[np.ndarray, " A"]]:
        """For each action: whether it admits, the probability of completing a packet of each queue, and the power."""
        served: list[tuple[np.ndarray, float]] = [(np.zeros(self.queues), 0.0)]
        for queue, level in itertools.product(range(self.queues), range(len(self.service))):
            served.append((self.service[level] * np.eye(self.queues)[queue], self.power[level]))
        admits = np.repeat([0, 1], len(served)).astype(np.int32)
        share = np.tile(np.stack([chance for chance, _ in served]), (2, 1)).astype(np.float32)
        return admits, share, np.tile([power for _, power in served], 2).astype(np.float32)

    def observations(self) -> Float[np.ndarray, "S O"]:
        """The observation of each state of the model."""
        return np.asarray(jax.vmap(self.observe)(jnp.asarray(self._lengths())))

    def model(self) -> FiniteCMDP:
        """The network as a finite CMDP. A state is the lengths of all queues; the last queue's index varies fastest."""
        return _model(self)

    def _lengths(self) -> Int[np.ndarray, "S n"]:
        grid = np.indices((self.buffer + 1,) * self.queues)
        return grid.reshape(self.queues, -1).T.astype(np.int32)


@functools.lru_cache(maxsize=16)
def _model(network: QueueingNetwork) -> FiniteCMDP:
    n, states = network.queues, (network.buffer + 1) ** network.queues
    if states > MOST_STATES:
        raise InvalidInput(
            f"a network with {states} states is too large to write down as a finite CMDP (at most {MOST_STATES}); "
            "lower the buffer."
        )
    lengths = network._lengths()
    admits, share, power = network.choices()
    actions = len(admits)
    rows, columns, chances = [], [], []
    reward, cost = np.zeros((states, actions)), np.zeros((n + 1, states, actions))
    cost[n] = power[None]
    play = jax.jit(jax.vmap(network.slot, in_axes=(0, None, None)))
    place = (network.buffer + 1) ** np.arange(n - 1, -1, -1)
    for action, arrives, completes in itertools.product(
        range(actions), itertools.product((0, 1), repeat=n), itertools.product((0, 1), repeat=n)
    ):
        chance = _chance(network.arrival, arrives) * _chance(share[action].tolist(), completes)
        if chance == 0.0:
            continue
        offered = jnp.asarray(arrives, dtype=jnp.int32) * int(admits[action])
        after, utility, rate = play(jnp.asarray(lengths), offered, jnp.asarray(completes, dtype=jnp.int32))
        rows.append(np.arange(states) * actions + action)
        columns.append(np.asarray(after) @ place)
        chances.append(np.full(states, chance))
        reward[:, action] += chance * np.asarray(utility, dtype=np.float64)
        cost[:n, :, action] += chance * np.asarray(rate, dtype=np.float64).T
    entries = (np.concatenate(chances), (np.concatenate(rows), np.concatenate(columns)))
    transition = scipy.sparse.coo_array(entries, shape=(states * actions, states)).tocsr()
    start = np.zeros(states)
    start[0] = 1.0
    return FiniteCMDP.of(
        transition, reward, cost, start, network.discount, np.asarray(network.limits), cost_names=network.cost_names
    )


def _chance(probabilities: tuple[float, ...] | list[float], outcome: tuple[int, ...]) -> float:
    """The probability of this outcome of independent events."""
    return float(np.prod([p if happens else 1.0 - p for p, happens in zip(probabilities, outcome, strict=True)]))
