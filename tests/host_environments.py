"""Gymnasium environments for tests: one that can be counted by hand, and one that breaks its contract on demand."""

import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Counting(gymnasium.Env):
    """Observes (seed modulo 1000, steps taken); terminates after `length` steps, cuts itself off after `cut`."""

    def __init__(self, length=3, cut=10**6):
        self.observation_space = spaces.Box(-1e6, 1e6, (2,), np.float64)
        self.action_space = spaces.Box(np.float32([-2.0, 0.0]), np.float32([2.0, np.inf]))
        self.length, self.cut = length, cut

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed_seen, self.steps = seed % 1000, 0
        return self._look(), {}

    def step(self, action):
        self.steps += 1
        self.action = action
        info = {"cost": 0.5 * self.steps}
        return self._look(), float(self.steps), self.steps >= self.length, self.steps >= self.cut, info

    def _look(self):
        return np.array([self.seed_seen, self.steps], np.float64)


class Broken(gymnasium.Env):
    """Behaves until its `after`-th step, or reset, and then does `what`."""

    def __init__(self, what="", after=4):
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.what, self.after, self.steps, self.resets = what, after, 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        self.inside = 0
        if self.what == "space" and self.resets > 1:
            self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        if self.what == "reset nan" and self.resets > 1:
            return np.full(2, np.nan, np.float32), {}
        if self.what == "reset bare" and self.resets > 1:
            return np.zeros(2, np.float32)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        self.inside += 1
        seen, reward, terminated, info = np.zeros(2, np.float32), 1.0, False, {"cost": 0.0}
        if self.steps >= self.after:
            match self.what:
                case "nan observation":
                    seen = np.array([0.0, np.nan], np.float32)
                case "nan reward":
                    reward = float("nan")
                case "infinite cost":
                    info = {"cost": float("inf")}
                case "huge observation":
                    seen = np.array([0.0, 1e300])
                case "shape":
                    seen = np.zeros(3, np.float32)
                case "dtype":
                    seen = np.array(["a", "b"])
                case "reward text":
                    reward = "much"
                case "terminated":
                    terminated = "yes"
                case "four":
                    return seen, reward, terminated, info
                case "no cost":
                    info = {}
                case "two costs":
                    info = {"cost": [1.0, 2.0]}
                case "raises":
                    raise RuntimeError("the motor\nis on fire")
                case "hangs":
                    time.sleep(30.0)
                case "exits":
                    import os

                    os._exit(7)
        return seen, reward, terminated, self.inside >= 5, info
