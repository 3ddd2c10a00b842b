"""The description of a run: an algorithm with its options, an environment with its options, and the run's settings."""

import dataclasses
import math
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from apdo import algorithms, envs, options, own
from apdo.envs import budget
from apdo.errors import InvalidInput, unknown
from apdo.experiment.presets import PRESETS
from apdo.options import OURS, PAPER, one_of, option
from apdo.problem import Asked, Problem

TASK = "the environment"
BOOKKEEPING = ("checkpoint_every", "keep")
"""Settings that do not affect any result."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a run: how long it is, how many seeds it has, which limits hold."""

    samples: int = option(
        250_000, "environment steps to train for, if epochs are not given", OURS, above=0, most=2 * 10**18
    )
    epochs: int = option(0, "epochs to train for; 0: as many as the samples fill", OURS, within=(0, 10**9))
    batch: int = option(
        0,
        "environment steps of one epoch, rounded up to whole episodes; 0: 10 episodes, but at least 5,000 and at most "
        "20,000 steps (sac-lag: 2 episodes, at least 2,000 steps)",
        OURS,
        within=(0, 10**9),
    )
    seeds: int = option(1, "independent repetitions, run side by side in one program", OURS, above=0, most=10_000)
    seed: int = option(0, "the first seed; the others are the numbers after it", OURS, within=(0, 2**31))
    limits: tuple[float, ...] = option((), "one limit for each cost, with commas; empty: the task's own limits", TASK)
    constrain: str = option(
        "discounted",
        "what the limits apply to: an episode's discounted cost (discounted like the reward), or its plain total "
        "(which the published code constrains)",
        PAPER,
        choices=one_of("discounted", "total"),
    )
    environments: int = option(
        0,
        "environments side by side; 0: one for each episode of a batch, or about as many as suit the task, chosen so "
        "that the batch has the size asked for",
        OURS,
        within=(0, 10**7),
    )
    checkpoint_every: int = option(
        50,
        "epochs between checkpoints; there is one at the end too, around an adjustment, and about every half minute",
        OURS,
        above=0,
    )
    normalise: bool = option(
        False, "normalise observations by their running mean and variance (Gymnasium environments: true)", OURS
    )
    torso: str = option(
        "auto",
        "what processes an observation that is an image (bytes, H x W x C): auto puts convolutions over its pixels, "
        "instead of normalise; none treats the pixels as plain numbers",
        OURS,
        choices=one_of("auto", "none"),
    )
    wrap: str = option(
        "none",
        "what shows the agent its remaining budgets: saute replaces the reward after an episode has used up its limit, "
        "early-termination ends the episode",
        OURS,
        choices=one_of("none", budget.SAUTE, budget.EARLY),
    )
    unsafe_reward: float = option(-1.0, "with --wrap: the reward of a step whose budget is used up", OURS)
    start_from: str = option(
        "",
        "the folder of an earlier run: training starts from its best policy instead of a random one, with its "
        "normalisation of observations and, if they fit, its value functions",
        OURS,
    )
    keep: int = option(3, "checkpoints kept, the newest ones", OURS, within=(1, 10**9))

    def __new__(cls, *values: object, **given: object) -> "Settings":
        """Record which fields the user wrote, so that a written default overrides what suits the task."""
        made = super().__new__(cls)
        names = [field.name for field in dataclasses.fields(cls)]
        object.__setattr__(made, "_written", frozenset([*names[: len(values)], *given]))
        return made


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The complete description of a run."""

    algorithm: str
    environment: str
    settings: Settings
    algorithm_config: Any
    environment_config: Any
    note: str = ""

    def describe(self) -> dict[str, Any]:
        """Everything that is needed to repeat the run, as plain values."""
        return {
            "algorithm": self.algorithm,
            "environment": self.environment,
            "note": self.note,
            "settings": options.flatten(self.settings),
            "algorithm_config": options.flatten(self.algorithm_config),
            "environment_config": options.flatten(self.environment_config),
        }

    def essence(self) -> dict[str, Any]:
        """The description without settings that affect no result. Runs with equal essences give equal results."""
        described = self.describe()
        for name in BOOKKEEPING:
            described["settings"].pop(name)
        for name in getattr(self.environment_config, "bookkeeping", ()):
            described["environment_config"].pop(name)
        return described

    @staticmethod
    def restore(description: Mapping[str, Any], task: type[Any] | None = None) -> "Experiment":
        """The experiment that `describe` described. Every part of the description is checked.

        `task` is the environment's class, if the name alone cannot find it.
        """
        names = [description.get(name) for name in ("algorithm", "environment", "note")]
        parts = [description.get(name) for name in ("settings", "algorithm_config", "environment_config")]
        if not all(isinstance(name, str) for name in names) or not all(isinstance(part, dict) for part in parts):
            raise InvalidInput("the run's configuration is not one that apdo wrote.")
        algorithm, environment, note = (str(name) for name in names)
        settings, algorithm_config, environment_config = (part or {} for part in parts)
        played = options.override((task or envs.find(environment))(), environment_config)
        if "torso" not in settings and _image(played) is not None:
            settings = settings | {"torso": "none"}  # the run is from before the library had convolutions
        experiment = Experiment(
            algorithm=algorithm,
            environment=environment,
            settings=options.override(Settings(), settings),
            algorithm_config=options.override(algorithms.find(algorithm).Config(), _completed(algorithm_config)),
            environment_config=played,
            note=note,
        )
        experiment.check()
        return experiment

    def check(self) -> None:
        """Raise InvalidInput if the parts do not fit together."""
        self.problem()
        k_adj, epochs = getattr(self.algorithm_config, "k_adj", 0), self.settings.epochs
        if k_adj >= epochs:
            raise InvalidInput(
                f"k_adj must come before the run's end: with {epochs} epochs at most {epochs - 1}, not {k_adj}."
            )

    def task(self) -> Any:  # noqa: ANN401
        """The environment that the agent interacts with: the configured one, with the `wrap` setting applied."""
        settings, plain = self.settings, self.environment_config
        if settings.wrap == "none":
            return plain
        return budget.wrap(plain, settings.wrap, self._limits(), self._cost_discount(), settings.unsafe_reward)

    def _cost_discount(self) -> float:
        return self.environment_config.discount if self.settings.constrain == "discounted" else 1.0

    def _limits(self) -> tuple[float, ...]:
        """One limit for each cost, checked."""
        task = self.environment_config
        costs, limits = len(task.cost_names), self.settings.limits or task.limits
        for limit in limits:
            if not math.isfinite(limit):
                raise InvalidInput(f"a limit must be a finite number, not {limit}.")
        if len(limits) != costs:
            raise InvalidInput(
                f"{self.environment} has {costs} cost{'s' * (costs > 1)} ({', '.join(task.cost_names)}) and needs "
                f"as many limits, not {len(limits)}; give them with --limits."
            )
        return tuple(float(limit) for limit in limits)

    def problem(self) -> Problem:
        """The constrained problem that the algorithm solves."""
        limits, task, settings = self._limits(), self.task(), self.settings
        if settings.batch < task.horizon:
            raise InvalidInput(
                f"a batch of {settings.batch} is smaller than one episode of {self.environment}, {task.horizon} steps."
            )
        steps, environments = self.shape()
        image = _image(task) if settings.torso == "auto" else None
        return Problem(
            observation_size=task.observation_size,
            action_size=task.action_size,
            batch=steps * environments,
            limits=limits,
            discount=task.discount,
            cost_discount=self._cost_discount(),
            horizon=task.horizon,
            truncates=not task.horizon_terminates,
            discrete_actions=task.discrete_actions,
            normalise=settings.normalise and image is None,
            image=image,
        )

    def shape(self) -> tuple[int, int]:
        """(T, N): steps of each environment in an epoch, a multiple of the horizon, and environments side by side."""
        return shape(self.settings, self.environment_config)


def _completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """A run's options, with those that its version did not have yet as it had them.

    Critics of costs used to have the activation of the reward's.
    """
    one, other = "critic_activation", "cost_activation"
    return {name.replace(one, other): value for name, value in config.items() if name.endswith(one)} | dict(config)


def _image(task: Any) -> tuple[int, int, int] | None:  # noqa: ANN401
    """Height, width and channels of a task's observations; None if they are not images."""
    return getattr(task, "image_shape", None)


def shape(settings: Settings, task: Any) -> tuple[int, int]:  # noqa: ANN401
    """(T, N) of a run with these settings on a task."""
    episodes = -(-settings.batch // task.horizon)
    about = getattr(task, "copies", None)
    environments = settings.environments or (episodes if about is None else copies_near(about, episodes))
    environments = min(environments, episodes)
    return task.horizon * -(-episodes // environments), environments


def copies_near(about: int, episodes: int) -> int:
    """The number of environments, between `about` / 2 and 2 `about`, that plays so many episodes with the fewest extra.

    Among equally good numbers, it is the one with the smallest ratio to `about`.
    """
    fitting = range(min(-(-about // 2), episodes), min(2 * about, episodes) + 1)
    return min(fitting, key=lambda n: (-episodes % n, max(n, about) / min(n, about)))


def defaults(algorithm: str) -> Any:  # noqa: ANN401
    """An algorithm's options by default. For an alias, its own options override those of the algorithm behind it."""
    return options.override(algorithms.find(algorithm).Config(), algorithms.named(algorithm).options)


def make_experiment(
    algorithm: str,
    environment: str,
    changes: Mapping[str, Any] | None = None,
    preset: str | None = None,
    task: type[Any] | None = None,
) -> Experiment:
    """The experiment with these defaults, a preset, and then changes; each overrides the one before.

    `changes` may have options of the run, of the algorithm and of the environment, by dotted name. `task` is the
    environment's class, if its name alone cannot find it. Under the preset lie two more layers of defaults: what suits
    the environment's family, and what suits the length of its episodes and of the run.
    """
    algorithm, environment = own.whole(algorithm), own.whole(environment)
    task = task or envs.find(environment)
    parts = {"settings": Settings(), "algorithm_config": defaults(algorithm), "environment_config": task()}
    layers, note = [getattr(task, "defaults", {})], ""
    if preset is not None:
        if preset not in PRESETS:
            raise unknown("preset", preset, PRESETS)
        note = PRESETS[preset].note
        layers.append(_preset(preset, algorithm))
    changes = dict(changes or {})
    if "samples" in changes:
        # A user who gives `samples` means them, even if the preset has `epochs`.
        changes = {"epochs": 0} | changes
    layers.append(changes)
    posed = reduce(_lay_over, layers, parts)
    planned = sized(posed["settings"], posed["environment_config"], algorithms.find(algorithm))
    given = reduce(lambda under, over: under | dict(over), layers, {})
    parts = reduce(_lay_over, [_suited(algorithm, posed["environment_config"], planned, given), *layers], parts)
    settings = dataclasses.replace(parts["settings"], start_from=_placed(parts["settings"].start_from))
    parts["settings"] = sized(settings, parts["environment_config"], algorithms.find(algorithm))
    experiment = Experiment(algorithm=algorithm, environment=environment, note=note, **parts)
    experiment.check()
    return experiment


def typed(
    algorithm: str, config: options.Configuration | None, settings: options.Configuration | None
) -> dict[str, Any]:
    """What typed options change, by name: every field that differs from its default, or that the user wrote."""
    changes = {}
    for what, given, kind in (
        ("config", config, algorithms.find(algorithm).Config),
        ("settings", settings, Settings),
    ):
        if given is None:
            continue
        if type(given) is not kind:
            of = f" of {algorithm}" if what == "config" else ""
            raise InvalidInput(f"{what}{of} must be {kind.__module__}.{kind.__name__}, not {type(given).__name__}.")
        changes |= _changed(given, kind())
    written = getattr(settings, "_written", frozenset())
    return changes | {name: getattr(settings, name) for name in written}


def _changed(given: options.Configuration, fresh: options.Configuration, prefix: str = "") -> dict[str, Any]:
    """The options in which a configuration differs from a default one, by dotted name."""
    found = {}
    for field in dataclasses.fields(given):
        value, default, name = getattr(given, field.name), getattr(fresh, field.name), prefix + field.name
        if value == default:
            continue
        nested = isinstance(value, options.Configuration) and type(value) is type(default)
        found |= _changed(value, default, f"{name}.") if nested else {name: value}
    return found


def _placed(folder: str) -> str:
    """The absolute path of a folder, so that it is found from anywhere. A Python object's name is not changed."""
    if not folder or folder.startswith(own.OBJECT):
        return folder
    try:
        return str(Path(folder).expanduser().resolve())
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"{folder!r} cannot be a run folder: {error}.") from None


EPISODES, FEWEST, MOST = 10, 5_000, 20_000
"""The default size of a batch: so many episodes, but at least `FEWEST` and at most `MOST` samples."""


def sized(settings: Settings, task: Any, algorithm: object = None) -> Settings:  # noqa: ANN401
    """The settings with batch and epochs filled in if they were left open, and `samples` set to what they amount to.

    An algorithm may define `batches`, its own defaults for the size of a batch.
    """
    horizon = task.horizon
    episodes, fewest, most = getattr(algorithm, "batches", (EPISODES, FEWEST, MOST))
    batch = settings.batch or max(horizon, min(max(episodes * horizon, fewest), most))
    settings = dataclasses.replace(settings, batch=batch)
    steps, environments = shape(settings, task)
    epochs = settings.epochs or -(-settings.samples // (steps * environments))
    return dataclasses.replace(settings, epochs=epochs, samples=epochs * steps * environments)


def _suited(algorithm: str, task: Any, planned: Settings, given: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ANN401
    """The options that the algorithm suggests for such a task and run; none for an alias: it stays as published."""
    suited = getattr(algorithms.find(algorithm), "suited", None)
    if suited is None or algorithms.named(algorithm).options:
        return {}
    return suited(Asked(task.horizon, task.discrete_actions, planned.epochs, planned.batch, given))


def _preset(name: str, algorithm: str) -> Mapping[str, Any]:
    """A preset's options for an algorithm. It is an error if there are none: the preset would have no effect."""
    found = PRESETS[name].options(algorithm)
    if not found:
        others = ", ".join(other for other in algorithms.ALGORITHMS if PRESETS[name].options(other))
        raise InvalidInput(f"the preset {name!r} has nothing for {algorithm}; it is for {others}.")
    return found


def _lay_over(parts: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    owned: dict[str, dict[str, Any]] = {part: {} for part in parts}
    for given, value in changes.items():
        name = given if given != "limit" or any("limit" in _fields(config) for config in parts.values()) else "limits"
        value = (value,) if name == "limits" and isinstance(value, int | float) else value
        root = name.split(".")[0]
        owner = next(
            (part for part, config in parts.items() if hasattr(config, root) and root in _fields(config)), None
        )
        if owner is None:
            raise unknown("option", name, [known for config in parts.values() for known in options.flatten(config)])
        owned[owner][name] = value
    return {part: options.override(config, owned[part]) for part, config in parts.items()}


def _fields(config: options.Configuration) -> set[str]:
    return {field.name for field in dataclasses.fields(config)}
