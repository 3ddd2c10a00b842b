"""The buffer of a run folder as a dataset of whole episodes."""

from pathlib import Path

import jax

from apdo import loop
from apdo.core import replay
from apdo.datasets import Dataset
from apdo.errors import InvalidInput
from apdo.experiment import buffers, checkpoint, evaluation


def of_run(folder: str | Path, seed: int | None = None) -> Dataset:
    """The content of the buffer in a run's newest whole checkpoint, for one seed of the run (default: the first).

    Observations are raw, and rewards and costs are in the task's own units.
    """
    folder = Path(folder)
    experiment, training, like = evaluation.restore(folder, without_environment=True)
    which = evaluation.place_of(folder, experiment, seed)
    if _buffer(like) is None:
        raise InvalidInput(
            f"{folder} is a run of {experiment.algorithm}, which keeps no buffer of transitions; "
            "apdo, pd-ddpg and sac-lag do."
        )
    buffer = _buffer(_newest_whole(folder, like))
    assert buffer is not None  # it has the structure of `like`
    try:
        return buffers.dataset_of(jax.tree.map(lambda leaf: leaf[which], buffer), training)
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
