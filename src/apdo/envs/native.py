"""The JAX environments as `gymnasium.Env`s, registered as `apdo/PointGather-v0` and so on.

A step returns the costs in `info["costs"]` (a vector), and their sum in `info["cost"]`. At the horizon the episode is
truncated or terminated, as the task says. Importing this module registers the ids:

    gymnasium.make("apdo.envs.native:apdo/PointGather-v0")      imports it automatically
"""

import importlib
from typing import Any

import numpy as np

from apdo import envs
from apdo.errors import InvalidInput
from apdo.options import override

try:
    import gymnasium
except ImportError:
    raise InvalidInput("this needs Gymnasium, which is not installed: pip install 'apdo[gymnasium]'") from None

REGISTERED = {
    "PointGather": "point-gather",
    "TwoState": "two-state",
    "Gridworld": "gridworld",
    "Garnet": "garnet",
    "Queueing": "queueing",
    "PointGoal0": "point-goal-0",
    "PointGoal1": "point-goal-1",
    "PointCircle0": "point-circle-0",
    "PointCircle1": "point-circle-1",
    "PointCircle2": "point-circle-2",
    "WindTurbine": "wind-turbine",
    "Navigation": "navigation",
}
"""The name in Gymnasium, within `apdo/` ↦ the name in this library."""


def register() -> None:
    """Register the ids with Gymnasium, unless that has been done. Importing this module calls it."""
    for name, task in REGISTERED.items():
        if f"apdo/{name}-v0" not in gymnasium.registry:
            gymnasium.register(id=f"apdo/{name}-v0", entry_point="apdo.envs.native:NativeEnv", kwargs={"name": task})


class NativeEnv(gymnasium.Env[np.ndarray, Any]):
    """One JAX environment behind Gymnasium's interface; keyword arguments are the environment's options."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(self, name: str, render_mode: str | None = None, **changes: object) -> None:
        if render_mode not in (None, "rgb_array"):
            raise InvalidInput(f"render_mode must be 'rgb_array' or None, not {render_mode!r}.")
        import jax

        self.task = override(envs.find(name)(), changes)
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (self.task.observation_size,), np.float32)
        if self.task.discrete_actions:
            self.action_space = gymnasium.spaces.Discrete(self.task.action_size)
        else:
            # Actions are not clipped, unless by the task; nominal actions lie within ±1.
            self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (self.task.action_size,), np.float32)
        self._reset = jax.jit(lambda key: (state := self.task.reset(key), self.task.observe(state)))
        self._step = jax.jit(self.task.step)
        self._key: Any = None
        self._state: Any = None
        self._steps = 0
        self.total_reward, self.total_cost = 0.0, np.zeros(len(self.task.cost_names))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:  # noqa: ARG002
        """Begin an episode."""
        super().reset(seed=seed)
        import jax

        episode, self._key = jax.random.split(jax.random.key(int(self.np_random.integers(2**31))))
        self._state, observation = self._reset(episode)
        self._steps = 0
        self.total_reward, self.total_cost = 0.0, np.zeros(len(self.task.cost_names))
        return np.asarray(observation), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:  # noqa: ANN401
        """Take one step."""
        if self._key is None:
            raise gymnasium.error.ResetNeeded("reset comes before the first step")
        import jax

        if self.task.discrete_actions:
            if not self.action_space.contains(action):
                raise InvalidInput(
                    f"an action is a whole number from 0 to {self.task.action_size - 1}, not {action!r}."
                )
            given = np.eye(self.task.action_size, dtype=np.float32)[int(action)]
        else:
            given = np.asarray(action, dtype=np.float32).reshape(self.task.action_size)
        outcome = self._step(self._state, given, jax.random.fold_in(self._key, self._steps))
        self._state = outcome.state
        self._steps += 1
        at_horizon = self._steps >= self.task.horizon
        terminated = bool(outcome.terminated) or (at_horizon and self.task.horizon_terminates)
        costs = np.asarray(outcome.cost, dtype=np.float64)
        self.total_reward, self.total_cost = self.total_reward + float(outcome.reward), self.total_cost + costs
        info = {"cost": float(costs.sum()), "costs": costs}
        return np.asarray(outcome.observation), float(outcome.reward), terminated, at_horizon and not terminated, info

    def render(self) -> np.ndarray | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The state as a picture, [height, width, 3]; None without a render mode."""
        if self.render_mode is None or self._state is None:
            return None
        # Imported by name: the tasks build on this package, not the other way round.
        drawing = importlib.import_module("apdo.tasks.drawing")
        return drawing.draw(self.task, self._state, self._caption())

    def _caption(self) -> list[str]:
        costs = ", ".join(
            f"{name} {value:g}" for name, value in zip(self.task.cost_names, self.total_cost.round(3), strict=True)
        )
        return [f"step {self._steps}, return {self.total_reward:.3g}", costs]


register()
