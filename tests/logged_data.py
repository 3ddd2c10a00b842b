"""Logs of transitions for tests, as arrays with the names of a dataset file."""

from typing import Any

import numpy as np

from apdo.tasks.tabular import TwoState


def random_log(seed=0, *, episodes=5, length=4, costs=2, choices=0) -> dict[str, Any]:
    """A random log that passes all checks; every other episode is truncated one step before the horizon."""
    rng = np.random.default_rng(seed)
    lengths = [length - i % 2 for i in range(episodes)]
    count = sum(lengths)
    seen = [rng.normal(size=(n + 1, 3)).astype(np.float32) for n in lengths]
    last = np.cumsum(lengths) - 1
    terminated, truncated = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    terminated[last[::2]], truncated[last[1::2]] = True, True
    action = rng.integers(0, choices, count) if choices else rng.normal(size=(count, 2)).astype(np.float32)
    log = {
        "observation": np.concatenate([part[:-1] for part in seen]),
        "action": action,
        "reward": rng.normal(size=count).astype(np.float32),
        "cost": rng.uniform(size=(count, costs)).astype(np.float32),
        "next_observation": np.concatenate([part[1:] for part in seen]),
        "terminated": terminated,
        "truncated": truncated,
        "episode": np.repeat(np.arange(episodes) * 7, lengths),
        "step": np.concatenate([np.arange(n) for n in lengths]),
        "discount": 0.9,
        "cost_discount": 0.8,
        "limits": np.linspace(0.5, 1.0, costs),
        "horizon": length,
        "horizon_terminates": True,
    }
    return log | ({"choices": choices} if choices else {})


def two_state_log(seed=0, *, episodes=300, length=60, works=0.6) -> dict[str, Any]:
    """A log of the machine in `TwoState`, which works with a fixed probability whether hot or not; λ* is 0.291."""
    task = TwoState()
    rng = np.random.default_rng(seed)
    state = np.zeros((episodes, length + 1), dtype=int)
    choice = (rng.uniform(size=(episodes, length)) < works).astype(int)
    for t in range(length):
        heats = rng.uniform(size=episodes) < task.heating
        state[:, t + 1] = choice[:, t] * np.where(state[:, t] == 1, 1, heats)
    seen = np.eye(2, dtype=np.float32)[state]
    hot = (state[:, :-1] == 1) & (choice == 1)
    step = np.broadcast_to(np.arange(length), (episodes, length))
    return {
        "observation": seen[:, :-1].reshape(-1, 2),
        "action": choice.reshape(-1),
        "reward": choice.reshape(-1).astype(np.float32),
        "cost": hot.reshape(-1, 1).astype(np.float32),
        "next_observation": seen[:, 1:].reshape(-1, 2),
        "terminated": np.zeros(episodes * length, dtype=bool),
        "truncated": (step == length - 1).reshape(-1),
        "episode": np.repeat(np.arange(episodes), length),
        "step": step.reshape(-1),
        "discount": task.discount,
        "cost_discount": task.discount,
        "limits": np.asarray([task.limit]),
        "horizon": length,
        "horizon_terminates": False,
        "choices": 2,
        "cost_names": ["hot hours"],
    }
