"""Training on environments of the host: an epoch is collected step by step in Python, then learned from as ever.

`Advance` does what `loop.make_advance`'s function does, one epoch in a call. Every epoch begins fresh episodes, whose
seeds come from the run's seed and the epoch's number, so that nothing of an environment is left in the state: a run can
be stopped and resumed like any other, bit for bit where an environment does the same whenever it is reset with the same
seed.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.sharding import SingleDeviceSharding
from jax.typing import ArrayLike
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from apdo import loop
from apdo.algorithms import scaled
from apdo.best import Best
from apdo.core.data import Transition
from apdo.envs import OBJECT, host
from apdo.errors import EnvironmentFailure, NumericalFailure

_RESET, _ACT = range(2)

ActOnBatch = Callable[[PyTree, ArrayLike, ArrayLike], tuple[Array, PyTree]]
"""(memories [N], observations [N, O], key data [N, ...]) ↦ (actions [N, A], memories [N])."""
Structure: TypeAlias = Any
"""How leaves make a tree; JAX does not name the type."""
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
        self._actor = Actor(partial(training.algorithm.act, training.config), training)
        self._learn = jax.jit(self._learn_all, donate_argnums=0)

    def __call__(self, state: loop.State, count: Int[Array, ""]) -> loop.Chunk:  # noqa: ARG002
        """One epoch, however many were asked for: each is long, and its faults are told before the next begins."""
        if self._copies is None:
            self._copies = open_copies(self.training)
        batches = []
        for s in range(state.key.shape[0]):
            key = random.fold_in(random.fold_in(state.key[s], state.epoch), loop.COLLECT)
            memory = self.training.algorithm.memory(self.training.config, self.training.problem)
            act = self._actor.of(state.algorithm, memory, seed=s)
            try:
                batches.append(collect(self._copies, act, memory, key, self.training.steps))
            except host.Fault as fault:
                raise failure_of(fault, self.training, f"epoch {int(state.epoch)}, ") from fault
        batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches)
        after, metrics, finite = self._learn(state, batch)
        return loop.Chunk(
            state=after,
            metrics=jax.tree.map(lambda leaf: leaf[None], metrics),
            done=loop.all_finite(finite).astype(jnp.int32),
            finite=finite,
        )

    def _learn_all(self, state: loop.State, batch: Transition) -> tuple[loop.State, PyTree, PyTree]:
        each = (state.algorithm, state.best, state.key, batch)
        learn = partial(_learn, self.training)
        algorithm, kept, metrics, finite = loop.over_seeds(self.training, learn, each, (state.epoch,))
        after = loop.State(algorithm=algorithm, key=state.key, epoch=state.epoch + 1, best=kept)
        return loop.keep(loop.all_finite(finite), after, state), metrics, finite

    def close(self) -> None:
        """Let go of the environments."""
        if self._copies is not None:
            self._copies.close()
            self._copies = None


def _learn(
    training: loop.Training,
    algorithm: PyTree,
    kept: Best | None,
    key: PRNGKeyArray,
    batch: Transition,
    number: Int[Array, ""],
) -> tuple[PyTree, Best | None, PyTree, PyTree]:
    return loop.learn(training, algorithm, kept, random.fold_in(key, number), batch, number)


def open_copies(training: loop.Training, count: int | None = None) -> host.Copies:
    """The training's environments, or so many."""
    task = training.environment
    assert isinstance(task, host.HostTask)
    try:
        return task.open(count or training.environments)
    except host.Fault as fault:
        raise failure_of(fault, training, "") from fault


def failure_of(fault: host.Fault, training: loop.Training, when: str) -> EnvironmentFailure | NumericalFailure:
    """The fault as the sentence that a user reads."""
    name = getattr(type(training.environment), "name", "the environment").removeprefix(OBJECT)
    said = f"{when}{name}, environment {fault.environment}, step {fault.step} of its episode: {fault.what}"
    if fault.numerical:
        return NumericalFailure(said)
    failure = EnvironmentFailure(said)
    failure.trace = fault.trace
    return failure


class Actor:
    """`act(parameters, memory, observation, key)` for all environments in one compiled call.

    Acting reads a few arrays of a state that holds critics, optimisers and buffers besides. A call hands over only
    those that are read: each array costs about a microsecond, and slicing a buffer by seed would copy it. It is made on
    the host, where the environments are: an accelerator takes longer to be asked than to act for a few of them.
    """

    def __init__(
        self, act: Callable[..., tuple[Array, PyTree]], training: loop.Training, environments: int | None = None
    ) -> None:
        self._act = act
        self._environments = environments or training.environments
        self._observations = jax.ShapeDtypeStruct(
            (self._environments, training.problem.observation_size), np.dtype(np.float32)
        )
        self._read: list[int] = []
        self._compiled: Callable[..., tuple[Array, PyTree]] | None = None

    def of(self, parameters: PyTree, memory: PyTree, seed: int | None = None) -> ActOnBatch:
        """Acting with these parameters, or with those of one seed."""
        leaves, structure = jax.tree.flatten(parameters)
        if self._compiled is None:
            shapes = [jax.ShapeDtypeStruct(x.shape if seed is None else x.shape[1:], x.dtype) for x in leaves]
            self._prepare(shapes, structure, memory)
        own = jax.device_put([leaves[i] if seed is None else leaves[i][seed] for i in self._read], _host())
        return partial(cast(Callable[..., tuple[Array, PyTree]], self._compiled), own)

    def _prepare(self, shapes: list[jax.ShapeDtypeStruct], structure: Structure, memory: PyTree) -> None:
        def on_batch(leaves: list[Any], memory: PyTree, observation: Array, keys: Array) -> tuple[Array, PyTree]:
            with jax.default_matmul_precision("highest"):
                act = partial(self._act, jax.tree.unflatten(structure, leaves))
                return jax.vmap(act)(memory, observation, random.wrap_key_data(keys))

        memories = jax.eval_shape(lambda: spread(memory, self._environments))
        keys = jax.eval_shape(lambda: random.key_data(random.split(random.key(0), self._environments)))
        traced = jax.make_jaxpr(on_batch)(shapes, memories, self._observations, keys).jaxpr
        read = {id(variable) for equation in traced.eqns for variable in equation.invars}
        read |= {id(variable) for variable in traced.outvars}
        self._read = [i for i, variable in enumerate(traced.invars[: len(shapes)]) if id(variable) in read]

        def on_what_is_read(own: list[Array], memory: PyTree, observation: Array, keys: Array) -> tuple[Array, PyTree]:
            given = dict(zip(self._read, own, strict=True))
            # What is not read must still be of its type: shapes are checked where a distribution is made of it.
            leaves = [given[i] if i in given else _nothing(shape) for i, shape in enumerate(shapes)]
            return on_batch(leaves, memory, observation, keys)

        self._compiled = jax.jit(on_what_is_read)


def _host() -> SingleDeviceSharding:
    """The host's processor, or the device that there is where JAX was told to leave that out."""
    try:
        return SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    except RuntimeError:
        return SingleDeviceSharding(jax.local_devices()[0])


def _nothing(shape: jax.ShapeDtypeStruct) -> Array:
    """Zeros that nobody reads, and that the compiled program leaves out; keys are none of JAX's numbers."""
    if jnp.issubdtype(shape.dtype, jax.dtypes.prng_key):
        return random.split(random.key(0), shape.shape)
    return jnp.zeros(shape.shape, shape.dtype)


def spread(memory: PyTree, environments: int) -> PyTree:
    """The same memory for each environment."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (environments, *leaf.shape)), memory)


def key_data(key: PRNGKeyArray, environments: int) -> Iterator[np.ndarray]:
    """For every step a key for each environment, as data [N, ...]."""
    for piece in itertools.count():
        yield from np.asarray(_keys_ahead(key, np.int32(piece), environments))


@partial(jax.jit, static_argnums=2)
def _keys_ahead(key: PRNGKeyArray, piece: Int[Array, ""], environments: int) -> Array:
    return random.key_data(random.split(random.fold_in(key, piece), (_AHEAD, environments)))


def collect(copies: host.Copies, act: ActOnBatch, memory: PyTree, key: PRNGKeyArray, steps: int) -> Transition:
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
    after = ["reward", "cost", "next_observation", "terminated", "truncated"]
    if hasattr(arrays, "plain_reward"):
        record["plain_reward"] = np.empty((steps, n), np.float32)
        after.append("plain_reward")
    fresh = spread(memory, n)
    remembers = bool(jax.tree.leaves(memory))
    keys = key_data(random.fold_in(key, _ACT), n)
    memories = fresh
    with copies.watched():
        copies.reset(_entropy(random.fold_in(key, _RESET)))
        for t in range(steps):
            record["observation"][t], record["step"][t] = arrays.observation, arrays.step
            # A copy: the compiled call may look into the array itself, which the environments overwrite.
            actions, memories = act(memories, record["observation"][t], next(keys))
            arrays.action[:] = record["action"][t] = np.asarray(actions)
            copies.step(last=t + 1 == steps)
            for name in after:
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
    n = min(training.environments, episodes)
    on_batch = Actor(partial(_acts, deterministic), training, n).of(network, ())
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
                arrays.action[:] = np.asarray(on_batch((), arrays.observation.copy(), next(keys))[0])
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
        raise failure_of(fault, training, "") from fault
    finally:
        copies.close()


def watch(
    training: loop.Training, network: scaled.RawPolicy, env: host.Env, key: PRNGKeyArray, deterministic: bool
) -> Iterator[tuple[int, float, np.ndarray, bool]]:
    """One episode of a fixed policy in this very environment, which can be looked at whenever a step is handed over.

    Steps so far, rewards and costs so far, and whether it is over.
    """
    task = cast(Any, training.environment)
    act = Actor(partial(_acts, deterministic), training, 1).of(network, ())
    copies = host.InProcess(dataclasses.replace(task.plan(), make=lambda: env), 1)
    arrays, keys = copies.arrays, key_data(random.fold_in(key, _ACT), 1)
    gained, spent = 0.0, np.zeros(arrays.cost.shape[1])
    try:
        copies.reset(_entropy(random.fold_in(key, _RESET)))
        yield 0, gained, spent, False
        for t in range(task.horizon):
            arrays.action[:] = np.asarray(act((), arrays.observation.copy(), next(keys))[0])
            copies.step(last=True)
            gained, spent = gained + float(arrays.reward[0]), spent + arrays.cost[0]
            over = bool(arrays.terminated[0] | arrays.truncated[0])
            yield t + 1, gained, spent, over
            if over:
                return
    except host.Fault as fault:
        raise failure_of(fault, training, "") from fault


def _acts(
    deterministic: bool, policy: scaled.RawPolicy, memory: tuple[()], observation: Array, key: PRNGKeyArray
) -> tuple[Array, tuple[()]]:
    distribution = policy.inner(observation)
    return distribution.mode() if deterministic else distribution.sample(key), memory


def _entropy(key: PRNGKeyArray) -> list[int]:
    """Four words of 32 bits for the environments' seeds."""
    return np.asarray(random.bits(key, (4,), dtype=jnp.uint32)).tolist()
