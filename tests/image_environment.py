"""A tiny task with image observations: move a dot to its target, but not along a stripe."""

import gymnasium
import numpy as np
from gymnasium import spaces

SIDE = 10
MOVES = np.array([(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)])


class Dots(gymnasium.Env):
    """The dot is red, the target green. The stripe is blue, a column with an opening at its lower end.

    The reward of a step is how much closer it brings the dot; a step on the stripe costs 1. Dot and target begin on
    different sides of the stripe, so that the shortest way often crosses it.
    """

    def __init__(self, length=14):
        self.observation_space = spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
        self.action_space = spaces.Discrete(len(MOVES))
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        rows, columns = self.np_random.integers(0, SIDE, 2), self.np_random.integers(0, SIDE // 2 - 1, 2)
        self.dot = np.array([rows[0], columns[0]])
        self.target = np.array([rows[1], SIDE - 1 - columns[1]])
        self.steps = 0
        return self._look(), {}

    def step(self, action):
        before = np.abs(self.dot - self.target).sum()
        self.dot = np.clip(self.dot + MOVES[action], 0, SIDE - 1)
        self.steps += 1
        cost = float(self.dot[1] == SIDE // 2 and self.dot[0] < SIDE - 2)
        nearer = float(before - np.abs(self.dot - self.target).sum())
        return self._look(), nearer, False, self.steps >= self.length, {"cost": cost}

    def _look(self):
        image = np.zeros((SIDE, SIDE, 3), np.uint8)
        image[: SIDE - 2, SIDE // 2, 2] = 255
        image[*self.target, 1] = 255
        image[*self.dot, 0] = 255
        return image
