"""Environments: the dynamics of single instances."""

import importlib
from typing import Any

from apdo.errors import unknown

ENVIRONMENTS = {
    "point-gather": ("point_gather", "PointGather", "a point robot gathers apples (reward) and avoids bombs (cost)"),
    "two-state": ("tabular", "TwoState", "a machine that may work while hot; two states, solved in closed form"),
    "gridworld": ("tabular", "Gridworld", "a prize across hazardous ground; finite, solved exactly"),
    "garnet": ("tabular", "Garnet", "random sparse CMDPs with any number of constraints; finite, solved exactly"),
    "queueing": ("queueing", "QueueingNetwork", "admit and serve traffic; finite with small buffers, or large"),
    "wind-turbine": ("wind_turbine", "WindTurbine", "a 5 MW turbine: energy under limits on fatigue and over-speed"),
}
"""Name ↦ (module, class, what it is)."""


def find(name: str) -> type[Any]:
    """The environment's class, a frozen dataclass of options."""
    if name not in ENVIRONMENTS:
        raise unknown("environment", name, ENVIRONMENTS)
    module, kind, _ = ENVIRONMENTS[name]
    return getattr(importlib.import_module(f"apdo.envs.{module}"), kind)
