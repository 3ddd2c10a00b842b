"""The buffer of a training as a dataset of whole episodes.

A buffer is a ring of rows without an episode's number. But batches go in whole, step by step over N environments, so
that a row's place says to which environment of which epoch it belongs, and its step where an episode begins. What the
ring has overwritten the beginning of is left out.
"""

import jax
import jax.numpy as jnp
import numpy as np

from apdo import loop
from apdo.core import replay
from apdo.datasets import Dataset
from apdo.errors import InvalidInput


def dataset_of(buffer: replay.Replay, training: loop.Training) -> Dataset:
    """What one seed's buffer holds, as the task gave it: raw observations, everything in the task's own units."""
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
