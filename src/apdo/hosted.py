"""Training on environments of the host: an epoch is collected step by step in Python, then learned from as ever.

`Advance` does what `loop.make_advance`'s function does, one epoch in a call. Every epoch begins fresh episodes, whose
seeds come from the run's seed and the epoch's number, so that nothing of an environment is left in the state: a run can
be stopped and resumed like any other, bit for bit where an environment does the same whenever it is reset with the same
seed.
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
"""(memories [N], observations [N, O], key data [N, ...]) ↦ (actions [N, A], memories [N]); seeds go in front."""
Structure: TypeAlias = Any
"""How leaves make a tree; JAX does not name the type."""
_AHEAD = 64
"""Steps whose keys are drawn at once: drawing them one by one would take as long as acting."""


def is_hosted(training: loop.Training) -> bool:
    """Whether the environments run on the host."""
    return not hasattr(training.environment, "observe")


class Advance:
    """Takes a state through one epoch; the environments are made when they are first needed.

    Where one call can step the copies of all seeds they are collected together, else one seed after the other. Each has
    the batch that it would have alone.
    """

    def __init__(self, training: loop.Training) -> None:
        self.training = training
        self._copies: host.Copies | None = None
        self._actor = Actor(partial(training.algorithm.act, training.config), training)
        self._learn = jax.jit(self._learn_all, donate_argnums=0)

    def __call__(self, state: loop.State, count: Int[Array, ""]) -> loop.Chunk:  # noqa: ARG002
        """One epoch, however many were asked for: each is long, and its faults are told before the next begins."""
        after, metrics, finite = self._learn(state, self._collect(state))
        return loop.Chunk(
            state=after,
            metrics=jax.tree.map(lambda leaf: leaf[None], metrics),
            done=loop.all_finite(finite).astype(jnp.int32),
            finite=finite,
        )

    def _collect(self, state: loop.State) -> Transition:
        """The batch of every seed, the seeds in front."""
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


def steps_seeds_together(training: loop.Training) -> bool:
    """Whether one call steps the copies of several seeds."""
    return getattr(training.environment, "steps_seeds_together", False)


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
    place = fault.environment % training.environments
    said = f"{when}{name}, environment {place}, step {fault.step} of its episode: {fault.what}"
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
    Several seeds act in one call, too.
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
        """By the number of seeds that act: the arrays that acting reads, and the program."""

    def of(self, parameters: PyTree, memory: PyTree) -> ActOnBatch:
        """Acting with these parameters."""
        return self._acting(parameters, memory, None)

    def of_seeds(self, parameters: PyTree, memory: PyTree, seeds: Sequence[int]) -> ActOnBatch:
        """Acting with those of some seeds in a row; memories, observations and keys have the seeds in front, too."""
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
            # What is not read must still be of its type: shapes are checked where a distribution is made of it.
            leaves = [given[i] if i in given else _nothing(shape) for i, shape in enumerate(shapes)]
            return on_batch(leaves, *rest)

        def on_seeds(own: list[Array], *rest: PyTree) -> tuple[Array, PyTree]:
            with jax.default_matmul_precision("highest"):
                if seeds is None:
                    return on_what_is_read(own, *rest)
                # One after the other, with the same operations as if each were alone.
                parts = [jax.tree.map(lambda leaf, s=s: leaf[s], (own, *rest)) for s in range(seeds)]
                return jax.tree.map(lambda *each: jnp.stack(each), *[on_what_is_read(*part) for part in parts])

        return read, jax.jit(on_seeds)


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


def spread(memory: PyTree, rows: tuple[int, ...]) -> PyTree:
    """The same memory for each environment, and each seed where there are several."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*rows, *leaf.shape)), memory)


def key_data(key: PRNGKeyArray, environments: int) -> Iterator[np.ndarray]:
    """For every step a key for each environment, as data [N, ...]."""
    for piece in itertools.count():
        yield from np.asarray(_keys_ahead(key, np.int32(piece), environments))


@partial(jax.jit, static_argnums=2)
def _keys_ahead(key: PRNGKeyArray, piece: Int[Array, ""], environments: int) -> Array:
    return random.key_data(random.split(random.fold_in(key, piece), (_AHEAD, environments)))


def collect(copies: host.Copies, act: ActOnBatch, memory: PyTree, key: PRNGKeyArray, steps: int) -> Transition:
    """T steps of N environments, each starting with a fresh episode, like `rollout.collect`."""

    def act_alone(memories: PyTree, observation: ArrayLike, keys: ArrayLike) -> tuple[Array, PyTree]:
        alone = jax.tree.map(lambda leaf: leaf[0], memories)
        actions, after = act(alone, np.asarray(observation)[0], np.asarray(keys)[0])
        return actions, jax.tree.map(lambda leaf: leaf[None], after)

    return collect_seeds(copies, act_alone, memory, [key], steps)[0]


def collect_seeds(
    copies: host.Copies, act: ActOnBatch, memory: PyTree, keys: Sequence[PRNGKeyArray], steps: int
) -> list[Transition]:
    """The same for several seeds at once, whose copies stand one after the other: a batch for each."""
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
            # A copy: the compiled call may look into the array itself, which the environments overwrite.
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
