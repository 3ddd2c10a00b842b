"""Training on environments of the host: an epoch is collected step by step in Python, then learned from as ever.

`Advance` does what `loop.make_advance`'s function does, one epoch in a call. Every epoch begins fresh episodes, whose
seeds come from the run's seed and the epoch's number, so that nothing of an environment is left in the state: a run can
be stopped and resumed like any other, bit for bit where an environment does the same whenever it is reset with the same
seed.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.typing import ArrayLike
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from apdo import loop
from apdo.algorithms import scaled
from apdo.core.data import Transition
from apdo.envs import OBJECT, host
from apdo.errors import EnvironmentFailure, NumericalFailure

_RESET, _ACT = range(2)

ActOnBatch = Callable[[PyTree, PyTree, ArrayLike, ArrayLike], tuple[Array, PyTree]]
"""(parameters, memories [N], observations [N, O], key data [N, ...]) ↦ (actions [N, A], memories [N])."""
_AHEAD = 64
"""Steps whose keys are drawn at once: drawing them one by one would take as long as acting."""


def is_hosted(training: loop.Training) -> bool:
    """Whether the environments run on the host."""
    return not hasattr(training.environment, "observe")


class Advance:
    """Takes a state through one epoch; the environments are made when they are first needed."""

    def __init__(self, training: loop.Training) -> None:
        self.training = training
        self._copies: host.Copies | None = None
        self._act = acting_on_batches(partial(training.algorithm.act, training.config))
        self._learn = jax.jit(self._learn_all, donate_argnums=0)

    def __call__(self, state: loop.State, count: Int[Array, ""]) -> loop.Chunk:  # noqa: ARG002
        """One epoch, however many were asked for: each is long, and its faults are told before the next begins."""
        if self._copies is None:
            self._copies = open_copies(self.training)
        batches = []
        for s in range(state.key.shape[0]):
            own = jax.tree.map(lambda leaf, s=s: leaf[s], state.algorithm)
            key = random.fold_in(random.fold_in(state.key[s], state.epoch), loop.COLLECT)
            memory = self.training.algorithm.memory(self.training.config, self.training.problem)
            try:
                batches.append(collect(self._copies, self._act, own, memory, key, self.training.steps))
            except host.Fault as fault:
                raise told(fault, self.training, f"epoch {int(state.epoch)}, ") from fault
        batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches)
        after, metrics, finite = self._learn(state, batch)
        return loop.Chunk(
            state=after,
            metrics=jax.tree.map(lambda leaf: leaf[None], metrics),
            done=loop.all_finite(finite).astype(jnp.int32),
            finite=finite,
        )

    def _learn_all(self, state: loop.State, batch: Transition) -> tuple[loop.State, PyTree, PyTree]:
        each = (state.algorithm, state.key, batch)
        learn = partial(_learn, self.training)
        algorithm, metrics, finite = loop.over_seeds(self.training, learn, each, (state.epoch,))
        after = loop.State(algorithm=algorithm, key=state.key, epoch=state.epoch + 1)
        return loop.keep(loop.all_finite(finite), after, state), metrics, finite

    def close(self) -> None:
        """Let go of the environments."""
        if self._copies is not None:
            self._copies.close()
            self._copies = None


def _learn(
    training: loop.Training, algorithm: PyTree, key: PRNGKeyArray, batch: Transition, number: Int[Array, ""]
) -> tuple[PyTree, PyTree, PyTree]:
    return loop.learn(training, algorithm, random.fold_in(key, number), batch)


def open_copies(training: loop.Training, count: int | None = None) -> host.Copies:
    """The training's environments, or so many."""
    task = training.environment
    assert isinstance(task, host.HostTask)
    try:
        return task.open(count or training.environments)
    except host.Fault as fault:
        raise told(fault, training, "") from fault


def told(fault: host.Fault, training: loop.Training, when: str) -> EnvironmentFailure | NumericalFailure:
    """The fault as the sentence that a user reads."""
    name = getattr(type(training.environment), "name", "the environment").removeprefix(OBJECT)
    kind = NumericalFailure if fault.numerical else EnvironmentFailure
    return kind(f"{when}{name}, environment {fault.environment}, step {fault.step} of its episode: {fault.what}")


def acting_on_batches(act: Callable[..., tuple[Array, PyTree]]) -> ActOnBatch:
    """`act(parameters, memory, observation, key)` for all environments in one compiled call."""

    @jax.jit
    def on_batch(parameters: PyTree, memory: PyTree, observation: Array, keys: Array) -> tuple[Array, PyTree]:
        with jax.default_matmul_precision("highest"):
            return jax.vmap(partial(act, parameters))(memory, observation, random.wrap_key_data(keys))

    return on_batch


def key_data(key: PRNGKeyArray, environments: int) -> Iterator[np.ndarray]:
    """For every step a key for each environment, as data [N, ...]."""
    for piece in itertools.count():
        yield from np.asarray(_keys_ahead(key, np.int32(piece), environments))


@partial(jax.jit, static_argnums=2)
def _keys_ahead(key: PRNGKeyArray, piece: Int[Array, ""], environments: int) -> Array:
    return random.key_data(random.split(random.fold_in(key, piece), (_AHEAD, environments)))


def collect(
    copies: host.Copies, act: ActOnBatch, parameters: PyTree, memory: PyTree, key: PRNGKeyArray, steps: int
) -> Transition:
    """T steps of N environments, each starting with a fresh episode, like `rollout.collect`."""
    arrays = copies.arrays
    n = arrays.count
    record = {
        "observation": np.empty((steps, n, arrays.observation.shape[1]), np.float32),
        "action": np.empty((steps, n, arrays.action.shape[1]), np.float32),
        "reward": np.empty((steps, n), np.float32),
        "cost": np.empty((steps, n, arrays.cost.shape[1]), np.float32),
        "next_observation": np.empty((steps, n, arrays.observation.shape[1]), np.float32),
        "terminated": np.empty((steps, n), bool),
        "truncated": np.empty((steps, n), bool),
        "step": np.empty((steps, n), np.int32),
    }
    fresh = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (n, *leaf.shape)), memory)
    remembers = bool(jax.tree.leaves(memory))
    keys = key_data(random.fold_in(key, _ACT), n)
    memories = fresh
    with copies.watched():
        copies.reset(_entropy(random.fold_in(key, _RESET)))
        for t in range(steps):
            record["observation"][t], record["step"][t] = arrays.observation, arrays.step
            # A copy: the compiled call may look into the array itself, which the environments overwrite.
            actions, memories = act(parameters, memories, record["observation"][t], next(keys))
            arrays.action[:] = record["action"][t] = np.asarray(actions)
            copies.step(last=t + 1 == steps)
            for name in ("reward", "cost", "next_observation", "terminated", "truncated"):
                record[name][t] = getattr(arrays, name)
            over = arrays.terminated | arrays.truncated
            if remembers and over.any():
                memories = jax.tree.map(
                    lambda new, old, o=over: jnp.where(o.reshape(-1, *(1,) * (old.ndim - 1)), new, old), fresh, memories
                )
    return Transition(**{name: jnp.asarray(values) for name, values in record.items()})


def play(
    training: loop.Training,
    network: scaled.RawPolicy,
    key: PRNGKeyArray,
    episodes: int,
    factors: np.ndarray,
    deterministic: bool,
) -> np.ndarray:
    """Whole episodes of a fixed policy: Σ_t factor^t · (reward, costs, costs) of each, [episodes, 1 + 2M].

    Every copy plays a number of episodes that is fixed beforehand: whichever end soonest would not be a fair sample.
    """

    def act(policy: scaled.RawPolicy, memory: tuple[()], observation: Array, key: PRNGKeyArray) -> tuple[Array, tuple]:
        distribution = policy.inner(observation)
        return distribution.mode() if deterministic else distribution.sample(key), memory

    on_batch = acting_on_batches(act)
    n = min(training.environments, episodes)
    quota = np.asarray([episodes // n + (i < episodes % n) for i in range(n)])
    copies = open_copies(training, n)
    done: list[np.ndarray] = []
    played, running = np.zeros(n, dtype=int), np.zeros((n, len(factors)))
    keys, arrays = key_data(random.fold_in(key, _ACT), n), copies.arrays
    try:
        with copies.watched():
            copies.reset(_entropy(random.fold_in(key, _RESET)))
            while True:
                weight = factors[None] ** arrays.step[:, None]
                arrays.action[:] = np.asarray(on_batch(network, (), arrays.observation.copy(), next(keys))[0])
                copies.step(last=False)
                running += weight * np.concatenate([arrays.reward[:, None], arrays.cost, arrays.cost], axis=1)
                for i in np.flatnonzero(arrays.terminated | arrays.truncated):
                    if played[i] < quota[i]:
                        done.append(running[i].copy())
                    played[i] += 1
                    running[i] = 0.0
                if (played >= quota).all():
                    return np.stack(done)
    except host.Fault as fault:
        raise told(fault, training, "") from fault
    finally:
        copies.close()


def _entropy(key: PRNGKeyArray) -> list[int]:
    """Four words of 32 bits for the environments' seeds."""
    return np.asarray(random.bits(key, (4,), dtype=jnp.uint32)).tolist()
