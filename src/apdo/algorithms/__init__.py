"""The algorithms: one module each, with `Config`, `State`, `init`, `memory`, `act`, `step` and `learned_policy`."""

import importlib
from types import ModuleType

from apdo.errors import unknown

ALGORITHMS = {
    "trpo": ("trpo", "unconstrained TRPO: the return alone, costs only measured"),
    "pdo": ("pdo", "primal-dual optimisation: policy and multipliers in turn"),
    "cpo": ("cpo", "constrained policy optimisation: multipliers solved for in every step"),
    "pd-ddpg": ("pd_ddpg", "primal-dual DDPG: off-policy, actor, critics and multipliers together"),
    "sac-lag": ("sac_lag", "SAC-Lagrangian: off-policy, cautious cost critics, multipliers by the episodes' cost"),
    "apdo": ("apdo", "accelerated primal-dual optimisation: PDO with one jump to an off-policy multiplier"),
}
"""Name ↦ (module, what it is). The modules are imported when asked for, since they bring JAX along."""


def find(name: str) -> ModuleType:
    """The algorithm's module, a `contract.Algorithm`."""
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, ALGORITHMS)
    return importlib.import_module(f"apdo.algorithms.{ALGORITHMS[name][0]}")
