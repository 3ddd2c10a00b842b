"""A replay buffer on the device: a ring of packed transitions.

Each transition is one row (s, a, r, c, s', terminated, step). So a batch is inserted with one copy, and a minibatch is
read with one gather. Behind the ring there is a margin of one batch. An insertion that runs over the end of the ring
continues in the margin, and the rows in the margin are then copied to the front. The time of an insertion therefore
depends on the size of the batch alone.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from apdo.core.data import Transition
from apdo.errors import InvalidInput


class Replay(eqx.Module):
    """The ring. Its first `capacity` rows can be read, and min(inserted, capacity) of them are filled."""

    rows: Float[Array, "R W"]
    inserted: Int[Array, ""]
    """Rows inserted since the beginning."""
    capacity: int = eqx.field(static=True)
    observation_size: int = eqx.field(static=True)
    action_size: int = eqx.field(static=True)
    constraints: int = eqx.field(static=True)

    @property
    def filled(self) -> Int[Array, ""]:
        """Rows that hold a transition."""
        return jnp.minimum(self.inserted, self.capacity)


def init(capacity: int, batch: int, observation_size: int, action_size: int, constraints: int) -> Replay:
    """An empty ring of `capacity` rows that takes batches of `batch` rows."""
    if capacity < batch:
        raise InvalidInput(f"the replay buffer holds {capacity} transitions, fewer than one batch of {batch}.")
    width = 2 * observation_size + action_size + constraints + 3
    return Replay(
        rows=jnp.zeros((capacity + batch, width)),
        inserted=jnp.asarray(0),
        capacity=capacity,
        observation_size=observation_size,
        action_size=action_size,
        constraints=constraints,
    )


def of(batch: Transition) -> Replay:
    """A full ring with exactly these transitions, to learn from. Nothing more can be inserted."""
    rows = _pack(batch)
    return Replay(
        rows=rows,
        inserted=jnp.asarray(rows.shape[0]),
        capacity=rows.shape[0],
        observation_size=batch.observation.shape[-1],
        action_size=batch.action.shape[-1],
        constraints=batch.cost.shape[-1],
    )


def insert(replay: Replay, batch: Transition) -> Replay:
    """The ring after B more transitions, which overwrite the oldest. A batch with NaN or infinity is not inserted."""
    rows = _pack(batch)
    count, width = rows.shape
    start = replay.inserted % replay.capacity
    before = jax.lax.dynamic_slice(replay.rows, (start, jnp.zeros_like(start)), (count, width))
    sound = jnp.all(jnp.isfinite(rows))
    rows = jnp.where(sound, rows, before)
    ring = jax.lax.dynamic_update_slice(replay.rows, rows, (start, jnp.zeros_like(start)))
    overhang = jnp.where(sound, start + count - replay.capacity, 0)
    margin = jax.lax.slice(ring, (replay.capacity, 0), (replay.capacity + count, width))
    front = jnp.where((jnp.arange(count) < overhang)[:, None], margin, ring[:count])
    ring = jax.lax.dynamic_update_slice(ring, front, (0, 0))
    return eqx.tree_at(lambda r: (r.rows, r.inserted), replay, (ring, replay.inserted + jnp.where(sound, count, 0)))


def enlarged(replay: Replay, capacity: int) -> Replay:
    """The same transitions in a larger ring, for reading. Rings that are stacked side by side need the same size."""
    rows = jnp.pad(replay.rows, ((0, capacity - replay.capacity), (0, 0)))
    return dataclasses.replace(replay, rows=rows, inserted=replay.filled, capacity=capacity)


def roll_back(keep: Bool[Array, ""], after: Replay, before: Replay) -> Replay:
    """`after` if `keep`; otherwise a ring in which the same insertion, repeated, has the same result.

    Only the count is restored, not the rows, because a ring is large. The rows of the insertion are finite, and will be
    overwritten: by the same epoch when it is repeated, or by the next insertion.
    """
    inserted = jnp.where(keep, after.inserted, before.inserted)
    return eqx.tree_at(lambda r: r.inserted, after, inserted)


def sample(replay: Replay, key: PRNGKeyArray, shape: tuple[int, ...]) -> Transition:
    """Transitions drawn uniformly, with replacement, from those in the ring."""
    return take(replay, draw(replay, key, shape))


def draw(replay: Replay, key: PRNGKeyArray, shape: tuple[int, ...]) -> Int[Array, "*shape"]:
    """Rows drawn uniformly, with replacement, from those that are filled."""
    return jax.random.randint(key, shape, 0, replay.filled)


def take_ahead(
    replay: Replay, index: Int[Array, "*shape"], steps: int, discounts: Float[Array, " K"]
) -> tuple[Transition, Int[Array, "*shape"]]:
    """Transitions over up to n = `steps` steps that begin in the given rows, and the number of steps of each.

    Reward and costs are Σ_k γ^k x_k over these steps, with one γ for each signal. `next_observation` and `terminated`
    are those of the last step. The steps of an episode must have been inserted one after the other
    (`data.by_environment`). A transition has fewer steps if its episode or the latest batch ends before.
    """
    first = replay.observation_size + replay.action_size
    flat = index.reshape(-1, 1)
    ahead = jnp.arange(steps)[None]
    rows = (flat + ahead) % replay.capacity
    signals = replay.rows[:, first : first + 1 + replay.constraints][rows]
    terminated, step = replay.rows[:, -2][rows] > 0.5, replay.rows[:, -1][rows]
    age = (replay.inserted - 1 - flat) % replay.capacity
    follows = (step == step[:, :1] + ahead) & (ahead <= age)
    goes_on = jnp.pad(~terminated[:, :-1], [(0, 0), (1, 0)], constant_values=True)
    there = jnp.cumprod((follows & goes_on).astype(jnp.int32), axis=1)
    count = jnp.sum(there, axis=1).reshape(index.shape)
    weight = there[..., None] * (discounts[None] ** ahead[0][:, None])[None]
    sums = jnp.sum(weight * signals, axis=1).reshape(*index.shape, -1)
    begin, end = take(replay, index), take(replay, (index + count - 1) % replay.capacity)
    whole = dataclasses.replace(
        begin,
        reward=sums[..., 0],
        cost=sums[..., 1:],
        next_observation=end.next_observation,
        terminated=end.terminated,
    )
    return whole, count


def episode_starts(replay: Replay) -> tuple[Int[Array, " C"], Int[Array, ""]]:
    """The indices of the rows that begin an episode (the rest of the array is 0), and their number."""
    first = (replay.rows[: replay.capacity, -1] == 0.0) & (jnp.arange(replay.capacity) < replay.filled)
    return jnp.nonzero(first, size=replay.capacity, fill_value=0)[0], jnp.sum(first)


def sample_starts(
    replay: Replay, starts: tuple[Int[Array, " C"], Int[Array, ""]], key: PRNGKeyArray, shape: tuple[int, ...]
) -> Transition:
    """First transitions of episodes, drawn at random from those that `episode_starts` gives."""
    rows, count = starts
    return take(replay, rows[jax.random.randint(key, shape, 0, count)])


def times(replay: Replay) -> tuple[Float[Array, " C"], Bool[Array, " C"], Bool[Array, " C"]]:
    """Of each row: its step's index in the episode, whether the episode terminated there, and whether it is filled."""
    held = jnp.arange(replay.capacity) < replay.filled
    return replay.rows[: replay.capacity, -1], replay.rows[: replay.capacity, -2] > 0.5, held


def spread(replay: Replay) -> Float[Array, " K"]:
    """The standard deviation of the reward and of each cost over the transitions in the ring."""
    first = replay.observation_size + replay.action_size
    signals = replay.rows[: replay.capacity, first : first + 1 + replay.constraints]
    held = (jnp.arange(replay.capacity) < replay.filled)[:, None]
    return jnp.std(signals, axis=0, where=jnp.broadcast_to(held, signals.shape))


def range_of(replay: Replay) -> Float[Array, "2 K"]:
    """The minimum and maximum of the reward and of each cost in the ring, extended to include 0."""
    first = replay.observation_size + replay.action_size
    signals = replay.rows[: replay.capacity, first : first + 1 + replay.constraints]
    held = (jnp.arange(replay.capacity) < replay.filled)[:, None]
    seen = jnp.where(held, signals, 0.0)
    return jnp.stack([jnp.minimum(jnp.min(seen, axis=0), 0.0), jnp.maximum(jnp.max(seen, axis=0), 0.0)])


def take(replay: Replay, index: Int[Array, "*shape"]) -> Transition:
    """The transitions in the given rows."""
    rows = replay.rows[index]
    o, a, m = replay.observation_size, replay.action_size, replay.constraints
    edges = [o, o + a, o + a + 1, o + a + 1 + m, 2 * o + a + 1 + m, 2 * o + a + 2 + m]
    observation, action, reward, cost, next_observation, terminated, step = jnp.split(rows, edges, axis=-1)
    return Transition(
        observation=observation,
        action=action,
        reward=reward[..., 0],
        cost=cost,
        next_observation=next_observation,
        terminated=terminated[..., 0] > 0.5,
        truncated=jnp.zeros(index.shape, dtype=bool),
        step=step[..., 0].astype(jnp.int32),
    )


def _pack(batch: Transition) -> Float[Array, "B W"]:
    def column(values: Array) -> Float[Array, "B 1"]:
        return values.astype(jnp.float32)[:, None]

    columns = [
        batch.observation,
        batch.action,
        column(batch.reward),
        batch.cost,
        batch.next_observation,
        column(batch.terminated),
        column(batch.step),
    ]
    return jnp.concatenate(columns, axis=-1)
