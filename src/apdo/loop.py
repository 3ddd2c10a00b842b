"""Training: an epoch collects a batch, then makes the algorithm's step. S seeds run in one program.

Every random draw uses a key folded from the seed's own key and the epoch's number. An epoch's draws therefore do not
depend on what the process computed before. Epochs run in chunks inside one compiled loop. After each epoch all its
results are checked. If one is NaN or infinite, the loop stops with the state from before this epoch. Besides the newest
policy the best one is kept (`apdo.best`).

Seeds may also differ in numbers of their configurations (`apdo.arguments`): limits, gains, rates. These numbers are
then arguments of the program, with one row per seed, so that one program serves many settings.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.sharding import AxisType, PartitionSpec
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Int, Key, PRNGKeyArray, PyTree

from apdo import arguments, best, rollout
from apdo.algorithms import scaled
from apdo.algorithms.contract import Algorithm, OwnConfig
from apdo.best import Best
from apdo.core import replay
from apdo.core.data import Transition
from apdo.envs.environment import Environment
from apdo.envs.host import HostTask
from apdo.problem import Problem

CHUNK = 32
"""The most epochs in one call of the compiled loop."""

Numbers = Mapping[str, Array]
"""Numbers in which seeds differ: for each path in `Training`, an array [S]."""
NONE: Numbers = {}

_SEEDS = "seeds"
_DEVICES = "devices"
_STAGES = ["sampled", "measured", "new"]
COLLECT, _STEP, _ADJUST = range(3)


@dataclasses.dataclass(frozen=True)
class Training:
    """The part of a training that does not change while it runs."""

    algorithm: Algorithm
    config: OwnConfig
    problem: Problem
    environment: Environment | HostTask
    steps: int
    """T, the steps of each environment in an epoch."""
    environments: int
    """N, the number of environments side by side."""
    side_by_side: bool
    """Whether the seeds run as one vmapped computation, or one after the other inside the program."""


class State(eqx.Module):
    """Everything that the next epoch needs, for S seeds."""

    algorithm: PyTree
    key: Key[Array, " S"]
    epoch: Int[Array, ""]
    best: Best | None = None
    """The best policy of each seed; None if the algorithm's batches are not drawn by its learned policy."""


class Chunk(eqx.Module):
    """The result of a call of the compiled loop."""

    state: State
    metrics: dict[str, Array]
    """The metrics by name, [CHUNK, S, ...]. Only the first `done` rows are valid."""
    done: Int[Array, ""]
    """The number of completed epochs."""
    finite: dict[str, Bool[Array, " S"]]
    """For each quantity, whether it was finite in the last attempted epoch of each seed."""

    def failures(self) -> list[str]:
        """The quantities that were not finite in some seed, causes before effects."""
        return failures_in(self.finite)


def failures_in(finite: Mapping[str, ArrayLike]) -> list[str]:
    """The quantities that were not finite in some seed, causes before effects."""
    bad = [name for name, flags in finite.items() if not np.all(flags)]
    return sorted(bad, key=lambda name: _STAGES.index(name.split()[0]))


def suits_side_by_side() -> bool:
    """Whether running seeds side by side is faster on this machine.

    On an accelerator it is. On a CPU a single seed already uses the whole processor, and plain products of two matrices
    are faster than batched ones, so seeds take turns.
    """
    return jax.default_backend() != "cpu"


def over_seeds(
    training: Training, function: Callable[..., PyTree], arguments: tuple[PyTree, ...], shared: tuple[PyTree, ...] = ()
) -> PyTree:
    """`function(*arguments, *shared)` for each seed. The seed is the first axis of `arguments`, but not of `shared`.

    If there are several devices, the seeds are spread evenly over them. Products are in full single precision: with the
    reduced precision that accelerators prefer, conjugate gradient loses a few percent of a trust-region step's gain.
    """

    def on_one(arguments: tuple[PyTree, ...], shared: tuple[PyTree, ...]) -> PyTree:
        if training.side_by_side:
            axes = (0,) * len(arguments) + (None,) * len(shared)
            return jax.vmap(function, in_axes=axes, axis_name=_SEEDS)(*arguments, *shared)
        if jax.tree.leaves(arguments)[0].shape[0] == 1:
            alone = jax.tree.map(lambda leaf: leaf[0], arguments)
            return jax.tree.map(lambda leaf: leaf[None], function(*alone, *shared))
        return jax.lax.map(lambda own: function(*own, *shared), arguments)

    count = devices_for(jax.tree.leaves(arguments)[0].shape[0])
    with jax.default_matmul_precision("highest"):
        if count == 1:
            return on_one(arguments, shared)
        devices = jax.devices()[:count]
        mesh = jax.make_mesh((count,), (_DEVICES,), axis_types=(AxisType.Auto,), devices=devices)
        split = (PartitionSpec(_DEVICES), PartitionSpec())
        return jax.shard_map(on_one, mesh=mesh, in_specs=split, out_specs=split[0], check_vma=False)(arguments, shared)


def devices_for(seeds: int) -> int:
    """The number of this machine's devices to use: the most over which the seeds can be spread evenly."""
    return max(count for count in range(1, len(jax.devices()) + 1) if seeds % count == 0)


def start(training: Training, seeds: list[int], numbers: Numbers = NONE) -> State:
    """The state before epoch 0."""
    keys = jnp.stack([random.key(seed) for seed in seeds])
    algorithm, kept, run_keys = make_start(training)(dict(numbers), keys)
    return State(algorithm=algorithm, key=run_keys, epoch=jnp.asarray(0, dtype=jnp.int32), best=kept)


def make_start(training: Training) -> Callable[..., tuple[PyTree, Best | None, Key[Array, " S"]]]:
    """A compiled function (numbers, keys) that gives what each seed begins with, and the key of its run.

    Everything is in one program, because each operation outside takes as long to start as a small program.
    """

    def one(numbers: Numbers, key: PRNGKeyArray) -> tuple[PyTree, Best | None, PRNGKeyArray]:
        own = arguments.put(training, numbers)
        init_key, run_key = random.split(key)
        algorithm = own.algorithm.init(own.config, own.problem, init_key)
        return *_strongly_typed((algorithm, first_best(own, algorithm))), run_key

    return jax.jit(lambda *each: over_seeds(training, one, each))


def keeps_best(algorithm: Algorithm) -> bool:
    """Whether batches are drawn by the learned policy itself, without additional exploration noise."""
    return getattr(algorithm, "samples_its_policy", True)


def first_best(training: Training, algorithm: PyTree) -> Best | None:
    """The state of one seed's best policy before the first epoch; None if none is kept."""
    if not keeps_best(training.algorithm):
        return None
    return best.start(training.algorithm.learned_policy(algorithm), training.problem)


def epoch(
    training: Training, algorithm: PyTree, kept: Best | None, key: PRNGKeyArray, number: Int[Array, ""]
) -> tuple[PyTree, Best | None, PyTree, PyTree]:
    """One epoch of one seed: the algorithm's next state, the best policy so far, metrics, and what was finite."""
    key = random.fold_in(key, number)
    config, problem, environment = training.config, training.problem, training.environment
    assert isinstance(environment, Environment)  # environments of the host have their own loop (`hosted`)
    act = partial(training.algorithm.act, config, algorithm)
    batch = rollout.collect(
        environment,
        act,
        training.algorithm.memory(config, problem),
        random.fold_in(key, COLLECT),
        steps=training.steps,
        environments=training.environments,
        seeds_axis=_SEEDS if training.side_by_side else None,
    )
    return learn(training, algorithm, kept, key, batch, number)


def learn(
    training: Training,
    algorithm: PyTree,
    kept: Best | None,
    key: PRNGKeyArray,
    batch: Transition,
    number: Int[Array, ""],
) -> tuple[PyTree, Best | None, PyTree, PyTree]:
    """The second half of an epoch: the result of `epoch`, from its batch. `key` is the epoch's key."""
    step_key = random.fold_in(key, _STEP)
    after, metrics = training.algorithm.step(training.config, training.problem, algorithm, batch, step_key)
    if kept is not None:
        # The batch was drawn by the policy from before the step, so its estimates are those of that policy.
        policy = training.algorithm.learned_policy(algorithm)
        kept = best.update(kept, training.problem, policy, metrics, jnp.sum(batch.ended, dtype=jnp.int32), number)
    return after, kept, metrics, _finite(batch, metrics, after)


def make_advance(training: Training) -> Callable[..., Chunk]:
    """A compiled function (state, count[, numbers]) that takes a state through `count` ≤ CHUNK epochs.

    The buffers of the given state are donated, so it cannot be used again. `numbers` replace the training's own.
    """

    def own_epoch(numbers: Numbers, *rest: PyTree) -> tuple[PyTree, Best | None, PyTree, PyTree]:
        return epoch(arguments.put(training, numbers), *rest)

    def advance(state: State, count: Int[Array, ""], numbers: Numbers = NONE) -> Chunk:
        @jax.jit  # traced once, though used twice below
        def attempt(state: State) -> tuple[State, PyTree, PyTree]:
            each = (dict(numbers), state.algorithm, state.best, state.key)
            after, kept, metrics, finite = over_seeds(training, own_epoch, each, (state.epoch,))
            return State(algorithm=after, key=state.key, epoch=state.epoch + 1, best=kept), metrics, finite

        _, metrics, finite = jax.eval_shape(attempt, state)
        blank = Chunk(
            state=state,
            metrics=jax.tree.map(lambda x: jnp.zeros((CHUNK, *x.shape), x.dtype), metrics),
            done=jnp.asarray(0, dtype=jnp.int32),
            finite=jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), finite),
        )

        def body(chunk: Chunk) -> Chunk:
            after, metrics, finite = attempt(chunk.state)
            sound = all_finite(finite)
            return Chunk(
                state=keep(sound, after, chunk.state),
                metrics=jax.tree.map(lambda past, now: past.at[chunk.done].set(now), chunk.metrics, metrics),
                done=chunk.done + sound.astype(jnp.int32),
                finite=finite,
            )

        return jax.lax.while_loop(lambda chunk: (chunk.done < count) & all_finite(chunk.finite), body, blank)

    return jax.jit(advance, donate_argnums=0)


def make_adjuster(training: Training) -> "Adjuster":
    """The adjuster of a training."""
    return Adjuster(training)


class Adjuster:
    """The algorithm's adjustment for all seeds, in compiled pieces. `numbers` are as in `make_advance`."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.adjustment = getattr(training.algorithm, "adjustment", None)
        if self.adjustment is not None:
            self._begin = jax.jit(partial(_own, training, self.adjustment.begin))
            self._work = jax.jit(partial(_own, training, self.adjustment.work), donate_argnums=2)
            self._finish = jax.jit(partial(_own, training, partial(_finish, self.adjustment.finish)), donate_argnums=1)

    def due(self, epoch: int) -> bool:
        """Whether an adjustment follows this epoch."""
        return self.adjustment is not None and self.adjustment.due(self.training.config, epoch)

    def open(self, state: State) -> Bool[np.ndarray, " S"]:
        """Whether each seed waits for an adjustment."""
        if self.adjustment is None:
            return np.zeros(state.key.shape, dtype=bool)
        return np.asarray(jax.vmap(partial(self.adjustment.open, self.training.config))(state.algorithm))

    @property
    def total(self) -> int:
        """The number of iterations of one adjustment."""
        return 0 if self.adjustment is None else self.adjustment.iterations(self.training.config)

    def begin(self, state: State, numbers: Numbers = NONE) -> PyTree:
        """The learners before their first iteration."""
        keys = jax.vmap(lambda key: random.fold_in(random.fold_in(key, state.epoch), _ADJUST))(state.key)
        return _strongly_typed(self._begin(dict(numbers), state.algorithm, keys))

    def work(self, state: State, learner: PyTree, iterations: ArrayLike, numbers: Numbers = NONE) -> PyTree:
        """The learners after `iterations` further iterations: one number for all seeds, or an array [S]."""
        more = jnp.broadcast_to(jnp.asarray(iterations, dtype=jnp.int32), state.key.shape)
        return self._work(dict(numbers), state.algorithm, learner, more)

    def shown(self, learner: PyTree) -> Array:
        """The learners' multipliers so far, [S, ..., M]."""
        assert self.adjustment is not None
        return self.adjustment.shown(learner)

    def finish(
        self,
        state: State,
        learner: PyTree,
        supported: Bool[ArrayLike, " S"],
        asked: Bool[ArrayLike, " S"] | None = None,
        numbers: Numbers = NONE,
    ) -> tuple[State, PyTree]:
        """The state, adjusted for the seeds whose data support it, and the estimates that it was adjusted to.

        `asked` selects the seeds (None: all). The states of other seeds do not change.
        """
        supported = jnp.asarray(supported)
        asked = jnp.ones_like(supported) if asked is None else jnp.asarray(asked)
        algorithm, found = self._finish(dict(numbers), state.algorithm, learner, supported, asked)
        return dataclasses.replace(state, algorithm=algorithm), found


def _own(training: Training, function: Callable[..., PyTree], numbers: Numbers, *each: PyTree) -> PyTree:
    """The results of a function (config, problem, ...) for each seed, with the seed's own numbers."""

    def one(numbers: Numbers, *rest: PyTree) -> PyTree:
        own = arguments.put(training, numbers)
        return function(own.config, own.problem, *rest)

    return over_seeds(training, one, (numbers, *each))


def _finish(
    finish: Callable[..., tuple[PyTree, PyTree]],
    config: OwnConfig,
    problem: Problem,
    state: PyTree,
    learner: PyTree,
    supported: Bool[Array, ""],
    asked: Bool[Array, ""],
) -> tuple[PyTree, PyTree]:
    after, found = finish(config, problem, state, learner, supported & asked)
    return jax.tree.map(lambda new, old: jnp.where(asked, new, old), after, state), found


def _finite(batch: Transition, metrics: dict[str, Array], after: PyTree) -> dict[str, Bool[Array, ""]]:
    """Whether each quantity is finite. Its name begins with the stage of the epoch that it belongs to."""
    quantities = {
        "sampled observation": (batch.observation, batch.next_observation),
        "sampled action": batch.action,
        "sampled reward": batch.reward,
        "sampled cost": batch.cost,
    }
    quantities |= {f"measured {name}": value for name, value in metrics.items()}
    quantities |= {f"new {name}": value for name, value in _parts(after).items()}
    return {name: _is_finite(value) for name, value in quantities.items()}


def _parts(state: PyTree) -> dict[str, PyTree]:
    """A state's fields by name, without buffers, whose contents are checked when they are inserted."""
    fields = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    inner = _parts(fields.pop("inner")) if isinstance(state, scaled.State) else {}
    return inner | {name: value for name, value in fields.items() if not isinstance(value, replay.Replay)}


def _is_finite(tree: PyTree) -> Bool[Array, ""]:
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.asarray(True), *(jnp.all(jnp.isfinite(leaf)) for leaf in leaves)]))


def all_finite(flags: dict[str, Bool[Array, " S"]]) -> Bool[Array, ""]:
    """Whether every quantity of every seed was finite."""
    return jnp.all(jnp.stack([jnp.all(flag) for flag in flags.values()]))


def keep(sound: Bool[Array, ""], after: State, before: State) -> State:
    """`after` if `sound`, otherwise `before`. Of a buffer only the count is restored, because it is large."""

    def is_buffer(part: PyTree) -> bool:
        return isinstance(part, replay.Replay)

    rest, buffers = eqx.partition(after, lambda part: not is_buffer(part), is_leaf=is_buffer)
    old_rest, old_buffers = eqx.partition(before, lambda part: not is_buffer(part), is_leaf=is_buffer)
    # A single branch, because with a choice for each array the compiler would compute `sound` again for each.
    rest = jax.lax.cond(sound, lambda: rest, lambda: old_rest)
    buffers = jax.tree.map(partial(replay.roll_back, sound), buffers, old_buffers, is_leaf=is_buffer)
    return eqx.combine(rest, buffers, is_leaf=is_buffer)


def _strongly_typed(tree: PyTree) -> PyTree:
    """The same values with strong dtypes, which no later promotion changes, so that one compilation is enough."""
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), tree)
