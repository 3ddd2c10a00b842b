"""The problems of the study `make transfer`: each as a new user would pose it, with its limits and nothing else.

A case is only the problem: which environment, what costs, and how much of it is allowed. No case may have an option of
an algorithm. Cases that are marked as held out were set aside before any default was chosen, and used once, at the end.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from benchmarks.ground_truth import QUEUE

REWARDS, COSTS = 1000.0, 0.001
"""The factors of rewards and costs in the cases with other units; limits have the factor of costs."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A problem, and what is known about it."""

    title: str
    environment: str
    limits: tuple[float, ...] | None
    """None: the task's own limits."""
    horizon: int
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Options that define the problem; the command line has the same names."""
    held_out: bool = False
    finite: bool = False
    """Whether the optimum is known exactly; returns are then discounted, like the costs."""
    units_of: str | None = None
    """The case that is the same with rewards and costs in other units."""
    known: float | None = None
    """A return within the limits that was found by other means, in the case's unit."""
    by: str = ""
    """How `known` was found."""
    samples: int = 250_000
    """The number of samples of the peers, and a tenth of those of a long run."""


CASES = {
    "point-gather-0.05": Case(
        "point-gather, 0.05 bombs", "point-gather", (0.05,), 15, known=12.3, by="APDO, another seed, cost 0.030"
    ),
    "point-gather-0.2": Case(
        "point-gather, 0.2 bombs", "point-gather", (0.2,), 15, known=16.6, by="fast, adjusted again, 1,100,000 samples"
    ),
    "point-gather-0.5": Case(
        "point-gather, 0.5 bombs", "point-gather", (0.5,), 15, held_out=True, known=16.35, by="APDO, an earlier commit"
    ),
    "gridworld": Case("gridworld", "gridworld", None, 120, finite=True),
    "garnet": Case("Garnet", "garnet", None, 60, finite=True),
    "garnet-4": Case(
        "Garnet, two limits that bind",
        "garnet",
        None,
        60,
        {"instance": 4, "tightness": (0.5, 0.5)},
        held_out=True,
        finite=True,
    ),
    "garnet-7": Case(
        "a third Garnet, two limits",
        "garnet",
        None,
        60,
        {"instance": 7, "tightness": (0.5, 0.5)},
        held_out=True,
        finite=True,
    ),
    "queueing": Case("queueing network, three limits", "queueing", None, 120, QUEUE, finite=True),
    "wind-turbine": Case("wind turbine, two limits", "wind-turbine", None, 600),
    "pendulum": Case(
        "Pendulum-v1",
        "Pendulum-v1",
        (25.0,),
        200,
        {"cost": "abs(obs[2]) > 4"},
        known=-149.8,
        by="APDO, a narrower start",
    ),
    "mountain-car": Case(
        "MountainCarContinuous-v0",
        "MountainCarContinuous-v0",
        (10.0,),
        999,
        {"cost": "abs(obs[1]) > 0.03"},
        held_out=True,
        known=96.9,
        by="dynamic programming on a grid, two policies mixed",
    ),
    "cartpole": Case(
        "CartPole-v1",
        "CartPole-v1",
        (50.0,),
        500,
        {"cost": "abs(obs[0]) > 0.25"},
        known=500.0,
        by="linear feedback, cost 0",
    ),
    "acrobot": Case(
        "Acrobot-v1",
        "Acrobot-v1",
        (2.0,),
        500,
        {"cost": "abs(obs[5]) > 6"},
        held_out=True,
        known=-89.0,
        by="TRPO with a price of 20 on the cost",
    ),
    "navigation": Case("navigation", "navigation", (3.0,), 200, known=30.4, by="way points around the walls, cost 0"),
    "halfcheetah": Case(
        "halfcheetah-velocity",
        "halfcheetah-velocity",
        (25.0,),
        1000,
        held_out=True,
        known=2958.0,
        by="sac-lag, 260,000 samples",
        samples=1_000_000,
    ),
    "pendulum-units": Case(
        "Pendulum-v1, other units",
        "Pendulum-v1",
        (25.0 * COSTS,),
        200,
        {"cost": f"{COSTS} * (abs(obs[2]) > 4)"},
        units_of="pendulum",
    ),
    "point-gather-units": Case(
        "point-gather, 0.2 bombs, other units", "point-gather", (0.2 * COSTS,), 15, units_of="point-gather-0.2"
    ),
    "navigation-units": Case(
        "navigation, other units", "navigation", (3.0 * COSTS,), 200, units_of="navigation", known=30_400.0
    ),
}


def task_of(case: Case) -> tuple[str, type[Any]]:
    """The name and the class of a case's task."""
    from apdo import envs

    if case.units_of is None:
        return case.environment, envs.find(case.environment)
    if envs.is_gymnasium_id(case.environment):
        name, task, _ = envs.of_object(functools.partial(in_other_units, case.environment))
        return name, task
    return case.environment, rescaled(case.environment)


def in_other_units(name: str) -> Any:
    """A Gymnasium environment with larger rewards. Its cost is an expression, which contains its own factor."""
    import gymnasium

    return gymnasium.wrappers.TransformReward(gymnasium.make(name, disable_env_checker=True), _enlarge)


def _enlarge(reward: Any) -> float:
    return REWARDS * float(reward)


def rescaled(name: str) -> type[Any]:
    """The class of a JAX task with larger rewards and smaller costs."""
    from apdo import envs

    base = envs.find(name)

    def step(self: Any, state: Any, action: Any, key: Any) -> Any:
        outcome = base.step(self, state, action, key)
        return outcome._replace(reward=REWARDS * outcome.reward, cost=COSTS * outcome.cost)

    return type(f"Rescaled{base.__name__}", (base,), {"step": step})


def command(case: Case, algorithm: str, changes: Mapping[str, Any] | None = None) -> str:
    """The command that a user would type, with options that were changed for a trial."""
    options = case.options | dict(changes or {})
    given = {name: ",".join(map(str, value)) if isinstance(value, tuple) else value for name, value in options.items()}
    if case.limits is not None:
        given["limit"] = ",".join(f"{limit:g}" for limit in case.limits)
    words = [f"--{name} '{value}'" if " " in str(value) else f"--{name} {value}" for name, value in given.items()]
    units = f"   (rewards x {REWARDS:g}, costs x {COSTS:g})" if case.units_of else ""
    return " ".join(["apdo train", algorithm, case.environment, *words]) + units
