"""Recorded steps of Safety-Gymnasium's own Velocity-v1 tasks; `python tests/velocity_steps.py` records them again.

This needs Safety-Gymnasium 1.0.0 (gymnasium 0.28.1, mujoco 2.3.3): see `make test-safety-gymnasium`.
"""

import gzip
import json
from pathlib import Path

import numpy as np

FILE = Path(__file__).parent / "data" / "velocity_steps.json.gz"
ROBOTS = {"halfcheetah": "HalfCheetah", "ant": "Ant", "hopper": "Hopper", "walker2d": "Walker2d"}
ROBOTS |= {"swimmer": "Swimmer", "humanoid": "Humanoid"}
SEED, STEPS = 7, 40
SHOWN = 10
"""The interval between recorded observations; everything else is recorded in every step."""


def recorded():
    """By robot: actions [T, A], observations by step, rewards, costs and terminations [T]."""
    with gzip.open(FILE, "rt") as file:
        return json.load(file)


def record(robot):
    """Record the steps of one robot until it falls."""
    from apdo.envs import safety

    env = safety.make(safety.SAFETY_GYMNASIUM, f"Safety{ROBOTS[robot]}Velocity-v1")
    observation, _ = env.reset(seed=SEED)
    rng = np.random.default_rng(SEED)
    low, high = env.action_space.low, env.action_space.high
    found = {"action": [], "observation": {}, "reward": [], "cost": [], "terminated": []}
    for t in range(STEPS):
        action = (0.6 * rng.uniform(low, high)).astype(np.float32)
        observation, reward, cost, terminated, _, _ = env.step(action)
        found["action"].append(action.tolist())
        if t % SHOWN == 0:
            found["observation"][str(t)] = [float(f"{value:.12g}") for value in observation]
        found["reward"].append(float(reward))
        found["cost"].append(float(cost))
        found["terminated"].append(bool(terminated))
        if terminated:
            break
    env.close()
    return found


if __name__ == "__main__":
    with gzip.GzipFile(FILE, "wb", mtime=0) as file:
        file.write(json.dumps({robot: record(robot) for robot in ROBOTS}).encode())
