"""The buffer of a run as a dataset of whole episodes.

A buffer is a ring of rows without an episode's number. But batches go in whole, step by step over N environments, so
that a row's place says to which environment of which epoch it belongs, and its step where an episode begins. What the
ring has overwritten the beginning of is left out.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from apdo import loop
from apdo.core import replay
from apdo.datasets import Dataset
from apdo.errors import InvalidInput
from apdo.experiment import checkpoint, evaluation


def of_run(folder: str | Path, seed: int | None = None) -> Dataset:
    """What the newest whole checkpoint of a run has in its buffer; of the run's first seed unless another is named.

    Everything is as the task gave it: raw observations, rewards and costs in the task's own units.
    """
    folder = Path(folder)
    experiment, training, like = evaluation.restore(folder, without_environment=True)
    which = evaluation.place_of(folder, experiment, seed)
    if _buffer(like) is None:
        raise InvalidInput(
            f"{folder} is a run of {experiment.algorithm}, which keeps no buffer of transitions; apdo and pd-ddpg do."
        )
    buffer = _buffer(_newest_whole(folder, like))
    assert buffer is not None  # it has the structure of `like`
    try:
        return _dataset(jax.tree.map(lambda leaf: leaf[which], buffer), training)
    except InvalidInput as error:
        raise InvalidInput(f"the buffer of {folder}: {error}") from error


def _newest_whole(folder: Path, like: loop.State) -> loop.State:
    """The newest checkpoint that can be read."""
    problem = InvalidInput(f"{folder} has no checkpoint yet.")
    for _, path in checkpoint.found(folder):
        try:
            return checkpoint.load(path, like)
        except InvalidInput as error:
            problem = error
    raise problem


def _buffer(state: loop.State) -> replay.Replay | None:
    leaves = jax.tree.leaves(state.algorithm, is_leaf=lambda leaf: isinstance(leaf, replay.Replay))
    return next((leaf for leaf in leaves if isinstance(leaf, replay.Replay)), None)


def _dataset(buffer: replay.Replay, training: loop.Training) -> Dataset:
    problem = training.problem
    inserted = int(buffer.inserted)
    if inserted == 0:
        raise InvalidInput("it is empty; train for an epoch first.")
    # Oldest first, by the number of the insertion.
    place = np.arange(inserted - int(buffer.filled), inserted)
    trajectory = place // problem.batch * training.environments + place % training.environments
    order = np.lexsort((place, trajectory))
    trajectory = trajectory[order]
    rows = jax.tree.map(np.asarray, replay.take(buffer, jnp.asarray(place[order] % buffer.capacity)))
    begins = (rows.step == 0) | np.append(True, trajectory[1:] != trajectory[:-1])
    episode = np.cumsum(begins) - 1
    whole = (rows.step[begins] == 0)[episode]
    # An episode that ends without being terminated was cut off, unless the end of its batch or of the ring did that.
    goes_on = np.append((trajectory[1:] == trajectory[:-1]) & begins[1:], False)
    truncated = ~rows.terminated & (goes_on | (rows.step == problem.horizon - 1))
    return Dataset.of(
        observation=rows.observation[whole],
        action=np.argmax(rows.action[whole], axis=1) if problem.discrete_actions else rows.action[whole],
        reward=rows.reward[whole],
        cost=rows.cost[whole],
        next_observation=rows.next_observation[whole],
        terminated=rows.terminated[whole],
        truncated=truncated[whole],
        episode=episode[whole],
        step=rows.step[whole],
        discount=problem.discount,
        cost_discount=problem.cost_discount,
        limits=problem.limits,
        horizon=problem.horizon,
        horizon_terminates=not problem.truncates,
        choices=problem.action_size if problem.discrete_actions else 0,
        cost_names=training.environment.cost_names,
    )
