"""Gymnasium environments for tests: one that is easy to compute, and one that breaks its contract on demand."""

import os
import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Counting(gymnasium.Env):
    """Observes (seed modulo 1000, steps taken). Terminates after `length` steps, and is truncated after `cut` steps."""

    def __init__(self, length=3, cut=10**6):
        self.observation_space = spaces.Box(-1e6, 1e6, (2,), np.float64)
        self.action_space = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, np.inf], np.float32))
        self.length, self.cut = length, cut

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed_seen, self.steps = (seed or 0) % 1000, 0
        return self._look(), {}

    def step(self, action):
        self.steps += 1
        self.action = action
        info = {"cost": 0.5 * self.steps}
        return self._look(), float(self.steps), self.steps >= self.length, self.steps >= self.cut, info

    def _look(self):
        return np.array([self.seed_seen, self.steps], np.float64)


def _wait():
    time.sleep(30.0)


def _burn():
    raise RuntimeError("the motor\nis on fire")


FAULTS = {
    "nan observation": {"observation": np.array([0.0, np.nan], np.float32)},
    "huge observation": {"observation": np.array([0.0, 1e300])},
    "shape": {"observation": np.zeros(3, np.float32)},
    "dtype": {"observation": np.array(["a", "b"])},
    "nan reward": {"reward": float("nan")},
    "reward text": {"reward": "much"},
    "terminated": {"terminated": "yes"},
    "infinite cost": {"info": {"cost": float("inf")}},
    "no cost": {"info": {}},
    "two costs": {"info": {"cost": [1.0, 2.0]}},
    "raises": {"does": _burn},
    "hangs": {"does": _wait},
    "exits": {"does": lambda: os._exit(7)},
}
"""What a step returns or does instead."""


class Broken:
    """Behaves well until its `after`-th step, or second reset, and then does `what`. It derives from no class."""

    def __init__(self, what="", after=4):
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.what, self.after, self.steps, self.resets = what, after, 0, 0

    def reset(self, *, seed):
        self.resets += 1
        self.inside = 0
        again = self.resets > 1
        if self.what == "space" and again:
            self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        seen = np.full(2, np.nan if self.what == "reset nan" and again else 0.0, np.float32)
        return seen if self.what == "reset bare" and again else (seen, {})

    def step(self, action):
        self.steps += 1
        self.inside += 1
        outcome = {"observation": np.zeros(2, np.float32), "reward": 1.0, "terminated": False}
        outcome |= {"truncated": self.inside >= 5, "info": {"cost": 0.0}}
        if self.steps >= self.after:
            instead = FAULTS.get(self.what, {})
            outcome |= {name: value for name, value in instead.items() if name != "does"}
            instead.get("does", lambda: None)()
            if self.what == "four":
                outcome.pop("truncated")
        return tuple(outcome.values())

    def close(self):
        pass


class Panel(gymnasium.Env):
    """A dial with three and a dial with two positions, numbered from 5. (2, 6) pays, and the second dial costs."""

    def __init__(self):
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = spaces.MultiDiscrete([3, 2], start=[0, 5])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.steps += 1
        reward = float(action[0] == 2) + 0.5 * float(action[1] == 6)
        return np.zeros(1, np.float32), reward, False, self.steps >= 8, {"cost": float(action[1] == 6)}


class Mixed(gymnasium.Env):
    """An observation with parts of several kinds, drawn at random; moving costs."""

    def __init__(self):
        spaces = gymnasium.spaces
        place = spaces.Tuple((spaces.Box(-1, 1, (2, 2)), spaces.MultiDiscrete([2, 3])))
        self.observation_space = spaces.Dict(place=place, mode=spaces.Discrete(3, start=1))
        self.action_space = spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample(), {}

    def step(self, action):
        moved = float(abs(action[0]))
        return self.observation_space.sample(), moved, False, False, {"cost": moved}


class Line(gymnasium.Env):
    """A point that is pushed along a line. The reward is its movement, in a unit that can be chosen."""

    def __init__(self, reward_unit=1.0):
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.reward_unit = reward_unit

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = np.array([0.1 * self.np_random.normal(), 0.0])
        return self.state.copy(), {}

    def step(self, action):
        self.state = np.array([0.8 * self.state[0] + float(action[0]), self.state[1] + 1.0])
        reward = float(action[0]) - 0.25 * float(action[0]) ** 2
        return self.state.copy(), self.reward_unit * reward, bool(self.state[0] < -3.0), False, {}


class Spending(gymnasium.Env):
    """A point that is pushed along a line. A push costs its size, and the distance from the middle costs its square."""

    def __init__(self):
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = np.array([0.1 * self.np_random.normal(), 0.0])
        return self.state.copy(), {}

    def step(self, action):
        push = 0.3 * float(action[0])
        self.state = np.array([0.5 * self.state[0] + push, self.state[1] + 1.0])
        return self.state.copy(), push, bool(push > 0.4), False, {"cost": [abs(push), self.state[0] ** 2]}


class StopsItself(Spending):
    """The same, but it ends with an unsafe reward once a budget is used up, and observes the remaining budgets."""

    def __init__(self, limits, discount, unsafe_reward):
        super().__init__()
        self.observation_space = spaces.Box(-np.inf, np.inf, (2 + len(limits),), np.float64)
        self.limits, self.discount, self.unsafe_reward = np.asarray(limits), discount, unsafe_reward

    def reset(self, *, seed=None, options=None):
        self.paid = []
        observation, info = super().reset(seed=seed)
        return np.concatenate([observation, self.left()]), info

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        self.paid.append(info["cost"])
        left = self.left()
        if (left < -1e-5).any():
            reward, terminated = self.unsafe_reward, True
        return np.concatenate([observation, left]), reward, terminated, truncated, info

    def left(self):
        """(1 - Σ_k γ^k c_k / d) / γ^t, from all costs of the episode."""
        total = sum((self.discount**k * np.asarray(cost) / self.limits for k, cost in enumerate(self.paid)), 0.0)
        return np.maximum((1.0 - total * np.ones(len(self.limits))) / self.discount ** len(self.paid), -1.0)
