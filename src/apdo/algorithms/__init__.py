"""The algorithms: one module each, with `Config`, `State`, `init`, `memory`, `act`, `step` and `learned_policy`."""

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from apdo import own
from apdo.errors import unknown


class Named(NamedTuple):
    """An entry of the table of algorithms: a module, and the options that turn it into the named algorithm."""

    module: str
    what: str
    options: Mapping[str, Any] = {}


_PLAIN = {"margin": 0.0, "overshoot": 0.0}
"""Options that switch off our own additions."""
_FIRST = {"first": "multipliers"} | _PLAIN
"""The multipliers are updated before the policy, as in the code of Ray et al. and of Stooke et al."""
_LAGRANGIAN = {"rule": "adam", "rule.most": 20.0, "dual_step": 0.05} | _FIRST
"""Ray et al.'s multiplier by Adam, with gains that are pure numbers."""
_PID = {"rule": "pid", "rule.far": 0.0, "rule.derivative": 0.1, "dual_step": 0.1} | _FIRST
"""Stooke et al.'s controller, with gains that are pure numbers."""
_RCPO = {"primal": "ppo", "rule": "ascent", "rule.most": 20.0, "dual_step": 0.02} | _PLAIN
"""Tessler et al.'s slow ascent."""
ALGORITHMS = {
    "trpo": Named("trpo", "unconstrained TRPO: the return alone, costs only measured"),
    "pdo": Named("pdo", "primal-dual optimisation: policy and multipliers in turn"),
    "cpo": Named("cpo", "constrained policy optimisation: multipliers solved for in every step"),
    "pd-ddpg": Named("pd_ddpg", "primal-dual DDPG: off-policy, actor, critics and multipliers together"),
    "sac-lag": Named("sac_lag", "SAC-Lagrangian: off-policy, cautious cost critics, multipliers by the episodes' cost"),
    "apdo": Named("apdo", "accelerated primal-dual optimisation: PDO that jumps to off-policy multipliers and actors"),
    "focops": Named(
        "focops", "first-order constrained optimisation in policy space: towards the optimum's closed form"
    ),
    "cup": Named("cup", "constrained update projection: improve the return, then project towards the limits"),
    "pcpo": Named("pcpo", "projection-based CPO: a step for the return, then onto the constraints"),
    "p3o": Named("p3o", "penalised PPO: an exact penalty in the place of multipliers"),
    "ipo": Named("ipo", "interior-point policy optimisation: a logarithmic barrier in front of each limit"),
    "crpo": Named("crpo", "constraint-rectified policy optimisation: the return, or the worst broken limit"),
    "ppo-lag": Named("pdo", "PPO with multipliers by Adam (Ray et al. 2019)", {"primal": "ppo"} | _LAGRANGIAN),
    "trpo-lag": Named(
        "pdo",
        "TRPO with multipliers by Adam (Ray et al. 2019)",
        {"primal": "trpo", "primal.radius": 0.01} | _LAGRANGIAN,
    ),
    "cppo-pid": Named("pdo", "PPO with multipliers by PID (Stooke et al. 2020)", {"primal": "ppo"} | _PID),
    "trpo-pid": Named("pdo", "TRPO with multipliers by PID (Stooke et al. 2020)", {"primal": "trpo"} | _PID),
    "rcpo": Named("pdo", "reward-constrained policy optimisation: a slow ascent (Tessler et al. 2019)", _RCPO),
}
"""Each name with its module and options. A module is imported when it is needed, because it imports JAX."""


def check_name(name: str) -> None:
    """Raise InvalidInput for a name that cannot be an algorithm's."""
    if name not in ALGORITHMS and not own.is_known(name) and not name.startswith(own.OBJECT):
        raise unknown("algorithm", name, [*ALGORITHMS, "a file of your own, such as mine.py or mine.py:name"])


def named(name: str) -> Named:
    """The module and options of a name. A user's own algorithm is its own module."""
    check_name(name)
    return ALGORITHMS.get(name, Named(name, "an algorithm of one's own"))


def find(name: str) -> Any:  # noqa: ANN401
    """The algorithm, a `contract.Algorithm`: one of our modules, or the user's own, checked against the contract."""
    check_name(name)
    if name in ALGORITHMS:
        return importlib.import_module(f"apdo.algorithms.{ALGORITHMS[name].module}")
    found = own.load(name, "algorithm")
    importlib.import_module("apdo.algorithms.checks").check(name, found)
    return found


def of_object(algorithm: object) -> str:
    """The name of an algorithm that is given in Python: as a name, or as the user's own module or class."""
    return own.whole(algorithm) if isinstance(algorithm, str) else own.name_of(algorithm)


def stands_for(name: str) -> str:
    """The algorithm and options that an alias stands for, as on the command line; empty if it is no alias."""
    found = named(name)
    if not found.options:
        return ""
    words = " ".join(f"--{option.replace('_', '-')} {value}" for option, value in found.options.items())
    original = next(other for other, entry in ALGORITHMS.items() if entry.module == found.module)
    return f"{original} {words}"
