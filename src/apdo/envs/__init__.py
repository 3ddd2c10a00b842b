"""Environments: the dynamics of single instances."""

import importlib
from typing import Any

from apdo.errors import unknown

ENVIRONMENTS = {
    "point-gather": ("point_gather", "PointGather", "a point robot gathers apples (reward) and avoids bombs (cost)"),
}
"""Name ↦ (module, class, what it is)."""


def find(name: str) -> type[Any]:
    """The environment's class, a frozen dataclass of options."""
    if name not in ENVIRONMENTS:
        raise unknown("environment", name, ENVIRONMENTS)
    module, kind, _ = ENVIRONMENTS[name]
    return getattr(importlib.import_module(f"apdo.envs.{module}"), kind)
