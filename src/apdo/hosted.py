"""Training on environments of the host: an epoch is collected step by step in Python, followed by the compiled step.

`Advance` has the contract of `loop.make_advance`'s function, with one epoch per call. Every epoch begins new episodes,
whose seeds come from the run's seed and the epoch's number, so the state contains nothing of an environment. A run can
be stopped and resumed like any other. The result has the same bits if an environment behaves the same whenever it is
reset with the same seed.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
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
"""(memories [N], observations [N, O], key data [N, ...]) ↦ (actions [N, A], memories [N]).

With several seeds, the seed is the first axis of each array."""
Structure: TypeAlias = Any
"""The structure of a tree without its leaves, for which JAX has no public type."""
_AHEAD = 64
"""The number of steps whose keys are drawn together. Drawing them one by one would take as long as acting."""


def is_hosted(training: loop.Training) -> bool:
    """Whether the environments run on the host."""
    return not hasattr(training.environment, "observe")


class Advance:
    """A function that takes a state through one epoch. The environments are made at the first call.

    If one call can step the copies of all seeds, their batches are collected together, otherwise one seed after the
    other. In both cases each seed has the same batch as alone.
    """

    def __init__(self, training: loop.Training) -> None:
        self.training = training
        self._copies: host.Copies | None = None
        self._actor = Actor(partial(training.algorithm.act, training.config), training)
        self._learn = make_learn(training)

    def __call__(self, state: loop.State, count: Int[Array, ""]) -> loop.Chunk:  # noqa: ARG002
        """One epoch, whatever `count` is. An epoch is long, and its faults should be reported before the next one."""
        after, metrics, finite = self._learn(state, self._collect(state))
        return loop.Chunk(
            state=after,
            metrics=jax.tree.map(lambda leaf: leaf[None], metrics),
            done=loop.all_finite(finite).astype(jnp.int32),
            finite=finite,
        )

    def _collect(self, state: loop.State) -> Transition:
        """The batches of all seeds. The seed is the first axis."""
        training, seeds = self.training, state.key.shape[0]
        group = seeds if steps_seeds_together(training) else 1
        if self._copies is None:
            self._copies = open_copies(training, group * training.environments)
        memory = training.algorithm.memory(training.config, training.problem)
        batches = []
        for first in range(0, seeds, group):
            own = range(first, first + group)
            keys = [random.fold_in(random.fold_in(state.key[s], state.epoch), loop.COLLECT) for s in own]
            act = self._actor.of_seeds(state.algorithm, memory, own)
            try:
                batches += collect_seeds(self._copies, act, memory, keys, training.steps)
            except host.Fault as fault:
                raise failure_of(fault, training, f"epoch {int(state.epoch)}, ") from fault
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches)

    def close(self) -> None:
        """Close the environments."""
        if self._copies is not None:
            self._copies.close()
            self._copies = None


def make_learn(training: loop.Training) -> Callable[..., tuple[loop.State, PyTree, PyTree]]:
    """A compiled function (state, batches of all seeds) that gives the next state, metrics, and what was finite."""

    def own(
        algorithm: PyTree, kept: Best | None, key: PRNGKeyArray, batch: Transition, number: Int[Array, ""]
    ) -> tuple[PyTree, Best | None, PyTree, PyTree]:
        return loop.learn(training, algorithm, kept, random.fold_in(key, number), batch, number)

    def learn(state: loop.State, batch: Transition) -> tuple[loop.State, PyTree, PyTree]:
        each = (state.algorithm, state.best, state.key, batch)
        algorithm, kept, metrics, finite = loop.over_seeds(training, own, each, (state.epoch,))
        after = loop.State(algorithm=algorithm, key=state.key, epoch=state.epoch + 1, best=kept)
        return loop.keep(loop.all_finite(finite), after, state), metrics, finite

    return jax.jit(learn, donate_argnums=0)


def steps_seeds_together(training: loop.Training) -> bool:
    """Whether one call can step the copies of several seeds."""
    return getattr(training.environment, "steps_seeds_together", False)


def open_copies(training: loop.Training, count: int | None = None) -> host.Copies:
    """Copies of the training's environment: `count` of them, or as many as in the training."""
    task = training.environment
    assert isinstance(task, host.HostTask)
    try:
        return task.open(count or training.environments)
    except host.Fault as fault:
        raise failure_of(fault, training, "") from fault


def failure_of(fault: host.Fault, training: loop.Training, when: str) -> EnvironmentFailure | NumericalFailure:
    """The error that a user sees for a fault of an environment."""
    name = getattr(type(training.environment), "name", "the environment").removeprefix(OBJECT)
    place = fault.environment % training.environments
    said = f"{when}{name}, environment {place}, step {fault.step} of its episode: {fault.what}"
    if fault.numerical:
        return NumericalFailure(said)
    failure = EnvironmentFailure(said)
    failure.trace = fault.trace
    return failure


class Actor:
    """`act(parameters, memory, observation, key)` for all environments in one compiled call.

    Acting reads only a few arrays of a state, which also contains critics, optimisers and buffers. Only the arrays that
    are read are passed to the compiled call. Each array takes about a microsecond to pass, and slicing a buffer by seed
    would copy it. The call runs on the host's processor, where the environments are: the latency of a call to an
    accelerator is longer than acting for a few environments. Several seeds can act in one call.
    """

    def __init__(
        self, act: Callable[..., tuple[Array, PyTree]], training: loop.Training, environments: int | None = None
    ) -> None:
        self._act = act
        self._environments = environments or training.environments
        self._observations = jax.ShapeDtypeStruct(
            (self._environments, training.problem.observation_size), np.dtype(np.float32)
        )
        self._compiled: dict[int | None, tuple[list[int], Callable[..., tuple[Array, PyTree]]]] = {}
        """For each number of seeds that act: the indices of the arrays that acting reads, and the program."""

    def of(self, parameters: PyTree, memory: PyTree) -> ActOnBatch:
        """The acting function with these parameters."""
        return self._acting(parameters, memory, None)

    def of_seeds(self, parameters: PyTree, memory: PyTree, seeds: Sequence[int]) -> ActOnBatch:
        """The acting function of some consecutive seeds. The seed is the first axis of all its arguments."""
        count = jax.tree.leaves(parameters)[0].shape[0]
        chosen = slice(seeds[0], seeds[-1] + 1)
        return self._acting(parameters, memory, len(seeds), None if len(seeds) == count else chosen)

    def _acting(self, parameters: PyTree, memory: PyTree, seeds: int | None, chosen: slice | None = None) -> ActOnBatch:
        leaves, structure = jax.tree.flatten(parameters)
        if seeds not in self._compiled:
            shapes = [jax.ShapeDtypeStruct(x.shape if seeds is None else x.shape[1:], x.dtype) for x in leaves]
            self._compiled[seeds] = self._prepare(shapes, structure, memory, seeds)
        read, program = self._compiled[seeds]
        given = [leaves[i] if chosen is None else leaves[i][chosen] for i in read]
        return partial(program, jax.device_put(given, _host()))

    def _prepare(
        self, shapes: list[jax.ShapeDtypeStruct], structure: Structure, memory: PyTree, seeds: int | None
    ) -> tuple[list[int], Callable[..., tuple[Array, PyTree]]]:
        def on_batch(leaves: list[Any], memory: PyTree, observation: Array, keys: Array) -> tuple[Array, PyTree]:
            act = partial(self._act, jax.tree.unflatten(structure, leaves))
            return jax.vmap(act)(memory, observation, random.wrap_key_data(keys))

        memories = jax.eval_shape(lambda: spread(memory, (self._environments,)))
        keys = jax.eval_shape(lambda: random.key_data(random.split(random.key(0), self._environments)))
        traced = jax.make_jaxpr(on_batch)(shapes, memories, self._observations, keys).jaxpr
        used = {id(variable) for equation in traced.eqns for variable in equation.invars}
        used |= {id(variable) for variable in traced.outvars}
        read = [i for i, variable in enumerate(traced.invars[: len(shapes)]) if id(variable) in used]

        def on_what_is_read(own: list[Array], *rest: PyTree) -> tuple[Array, PyTree]:
            given = dict(zip(read, own, strict=True))
            # Arrays that are not read still need their shape and type, because constructors check them.
            leaves = [given[i] if i in given else _nothing(shape) for i, shape in enumerate(shapes)]
            return on_batch(leaves, *rest)

        def on_seeds(own: list[Array], *rest: PyTree) -> tuple[Array, PyTree]:
            with jax.default_matmul_precision("highest"):
                if seeds is None:
                    return on_what_is_read(own, *rest)
                # Seeds act one after the other, with the same operations as alone, and therefore the same bits.
                parts = [jax.tree.map(lambda leaf, s=s: leaf[s], (own, *rest)) for s in range(seeds)]
                return jax.tree.map(lambda *each: jnp.stack(each), *[on_what_is_read(*part) for part in parts])

        return read, jax.jit(on_seeds)


def _host() -> SingleDeviceSharding:
    """The host's processor, or JAX's first device if JAX was configured without the processor."""
    try:
        return SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    except RuntimeError:
        return SingleDeviceSharding(jax.local_devices()[0])


def _nothing(shape: jax.ShapeDtypeStruct) -> Array:
    """An array of zeros as a placeholder, which the compiled program removes. Random keys need a value of their own."""
    if jnp.issubdtype(shape.dtype, jax.dtypes.prng_key):
        return random.split(random.key(0), shape.shape)
    return jnp.zeros(shape.shape, shape.dtype)


def spread(memory: PyTree, rows: tuple[int, ...]) -> PyTree:
    """The memory, repeated along the axes `rows`: environments, or seeds and environments."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*rows, *leaf.shape)), memory)


def key_data(key: PRNGKeyArray, environments: int) -> Iterator[np.ndarray]:
    """An iterator over steps: for each step, the data of one key per environment, [N, ...]."""
    for piece in itertools.count():
        yield from np.asarray(_keys_ahead(key, np.int32(piece), environments))


@partial(jax.jit, static_argnums=2)
def _keys_ahead(key: PRNGKeyArray, piece: Int[Array, ""], environments: int) -> Array:
    return random.key_data(random.split(random.fold_in(key, piece), (_AHEAD, environments)))


def collect(copies: host.Copies, act: ActOnBatch, memory: PyTree, key: PRNGKeyArray, steps: int) -> Transition:
    """T steps of N environments, each starting with a new episode, as in `rollout.collect`."""

    def act_alone(memories: PyTree, observation: ArrayLike, keys: ArrayLike) -> tuple[Array, PyTree]:
        alone = jax.tree.map(lambda leaf: leaf[0], memories)
        actions, after = act(alone, np.asarray(observation)[0], np.asarray(keys)[0])
        return actions, jax.tree.map(lambda leaf: leaf[None], after)

    return collect_seeds(copies, act_alone, memory, [key], steps)[0]


def collect_seeds(
    copies: host.Copies, act: ActOnBatch, memory: PyTree, keys: Sequence[PRNGKeyArray], steps: int
) -> list[Transition]:
    """The batches of several seeds at once. The copies of one seed are next to each other."""
    arrays = copies.arrays
    s, n = len(keys), arrays.count // len(keys)
    rows = arrays.count
    record = {
        "observation": np.empty((steps, rows, arrays.observation.shape[1]), np.float32),
        "action": np.empty((steps, rows, arrays.action.shape[1]), np.float32),
        "reward": np.empty((steps, rows), np.float32),
        "cost": np.empty((steps, rows, arrays.cost.shape[1]), np.float32),
        "next_observation": np.empty((steps, rows, arrays.observation.shape[1]), np.float32),
        "terminated": np.empty((steps, rows), bool),
        "truncated": np.empty((steps, rows), bool),
        "step": np.empty((steps, rows), np.int32),
    }
    after = ["reward", "cost", "next_observation", "terminated", "truncated"]
    if hasattr(arrays, "plain_reward"):
        record["plain_reward"] = np.empty((steps, rows), np.float32)
        after.append("plain_reward")
    memories = fresh = spread(memory, (s, n))
    remembers = bool(jax.tree.leaves(memory))
    drawn = [key_data(random.fold_in(key, _ACT), n) for key in keys]
    seeds = [_entropy(random.fold_in(key, _RESET)) for key in keys]
    with copies.watched():
        copies.reset(list(itertools.chain(*seeds)))
        for t in range(steps):
            record["observation"][t], record["step"][t] = arrays.observation, arrays.step
            # `record` is a copy. The compiled call may read its argument's memory directly, and the environments
            # overwrite their own arrays.
            seen = record["observation"][t].reshape(s, n, -1)
            actions, memories = act(memories, seen, np.stack([next(one) for one in drawn]))
            arrays.action[:] = record["action"][t] = np.asarray(actions).reshape(rows, -1)
            copies.step(last=t + 1 == steps)
            for name in after:
                record[name][t] = getattr(arrays, name)
            over = (arrays.terminated | arrays.truncated).reshape(s, n)
            if remembers and over.any():
                memories = jax.tree.map(
                    lambda new, old, o=over: jnp.where(o.reshape(s, n, *(1,) * (old.ndim - 2)), new, old),
                    fresh,
                    memories,
                )
    each = [slice(i * n, (i + 1) * n) for i in range(s)]
    return [Transition(**{name: jnp.asarray(values[:, own]) for name, values in record.items()}) for own in each]


def play(
    training: loop.Training,
    network: scaled.RawPolicy,
    key: PRNGKeyArray,
    episodes: int,
    factors: np.ndarray,
    deterministic: bool,
) -> np.ndarray:
    """Whole episodes of a fixed policy: Σ_t factor^t · (reward, costs, costs) of each, [episodes, 1 + 2M].

    Every copy plays a fixed number of episodes. The episodes that end first would be a biased sample.
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
    """An iterator over the steps of one episode of a fixed policy, in the given environment object.

    Each item is the number of steps, the sums of reward and costs so far, and whether the episode is over. The caller
    may inspect the environment at each item.
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
