"""A training's buffer as a dataset of whole episodes.

A buffer is a ring of rows that does not store the number of an episode. But batches are inserted whole, step by step
over N environments. So a row's position gives its environment and epoch, and its `step` shows where an episode begins.
Episodes whose beginning the ring has overwritten are left out.
"""

import jax
import jax.numpy as jnp
import numpy as np

from apdo import loop
from apdo.core import replay
from apdo.datasets import Dataset
from apdo.errors import InvalidInput


def dataset_of(buffer: replay.Replay, training: loop.Training) -> Dataset:
    """The content of one seed's buffer: raw observations, and rewards and costs in the task's own units."""
    problem = training.problem
    inserted = int(buffer.inserted)
    if inserted == 0:
        raise InvalidInput("it is empty; train for an epoch first.")
    # From the oldest row to the newest.
    place = np.arange(inserted - int(buffer.filled), inserted)
    trajectory = place // problem.batch * training.environments + place % training.environments
    order = np.lexsort((place, trajectory))
    trajectory = trajectory[order]
    rows = jax.tree.map(np.asarray, replay.take(buffer, jnp.asarray(place[order] % buffer.capacity)))
    begins = (rows.step == 0) | np.append(True, trajectory[1:] != trajectory[:-1])
    episode = np.cumsum(begins) - 1
    whole = (rows.step[begins] == 0)[episode]
    # An episode that ends without `terminated` was truncated, unless only its batch or the ring ended there.
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
