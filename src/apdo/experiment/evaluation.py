"""Measures a learned policy on fresh episodes that it was not trained on."""

import dataclasses
import html
import math
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, PRNGKeyArray, PyTree
from scipy import stats

from apdo import envs, hosted, loop, objective, rollout
from apdo.core.advantage import episode_totals
from apdo.envs.environment import Environment
from apdo.errors import InvalidInput
from apdo.experiment import checkpoint, chosen
from apdo.experiment.opening import training_of
from apdo.experiment.settings import Experiment
from apdo.policy import Policy
from apdo.report import runs

EVALUATION_STREAM = 2**30
"""Folded into the seed, so that evaluation never uses an episode of the training."""

MOST_EPISODES = 1_000_000


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over episodes with its 95 % confidence interval (Student's t)."""

    mean: float
    low: float
    high: float
    deviation: float
    """The standard deviation of one episode."""
    episodes: int

    @staticmethod
    def of(values: np.ndarray) -> "Estimate":
        """The estimate from independent values."""
        mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
        half = float(stats.t.ppf(0.975, len(values) - 1)) * deviation / math.sqrt(len(values))
        return Estimate(mean=mean, low=mean - half, high=mean + half, deviation=deviation, episodes=len(values))

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def verdict(self, limit: float) -> "Verdict":
        """Whether the mean is within a limit, by the 95 % interval."""
        gap = limit - self.mean
        if self.deviation == 0.0:
            return Verdict("no" if gap < 0.0 else "yes", float(gap >= 0.0), None)
        score = gap * math.sqrt(self.episodes) / self.deviation
        probability = float(stats.t.cdf(score, self.episodes - 1))
        if self.high <= limit or self.low > limit:
            return Verdict("yes" if self.high <= limit else "no", probability, None)
        wanted = (float(stats.norm.ppf(0.975)) * self.deviation / gap) ** 2 if gap else math.inf
        # An undecided result is also undecided after slightly fewer episodes; the normal quantile is the smaller one.
        return Verdict("undecided", probability, max(math.ceil(wanted), self.episodes + 1) if wanted < 1e15 else None)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a mean cost is within its limit."""

    holds: str
    """yes or no, each with 95 % confidence, or undecided."""
    probability: float
    """The probability that the mean cost is within the limit, by Student's t with a flat prior."""
    deciding: int | None
    """About how many episodes would decide, judged by this mean and deviation; None if none would, or need."""

    def __str__(self) -> str:
        needed = f", about {self.deciding:,} episodes would decide" if self.deciding else ""
        return f"{self.holds} (p = {self.probability:.3f}{needed})"


@dataclasses.dataclass(frozen=True, repr=False)
class Evaluation:
    """The results of one policy on fresh episodes."""

    deterministic: bool
    episodes: int
    undiscounted_return: Estimate
    constrained_cost: tuple[Estimate, ...]
    """The cost that the limits apply to."""
    undiscounted_cost: tuple[Estimate, ...]
    limits: tuple[float, ...] = ()
    cost_names: tuple[str, ...] = ()

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """For each limit, whether the mean cost is within it."""
        return tuple(cost.verdict(limit) for cost, limit in zip(self.constrained_cost, self.limits, strict=True))

    def rows(self) -> list[tuple[str, str]]:
        """Return, costs and verdicts by name, as text."""
        found = [("return", str(self.undiscounted_return))]
        for name, limit, cost, verdict in zip(
            self.cost_names, self.limits, self.constrained_cost, self.verdicts, strict=True
        ):
            found += [(f"{name} (limit {limit:g})", str(cost)), ("  under the limit?", str(verdict))]
        return found

    def heading(self) -> str:
        """How many episodes were played, and how."""
        return f"{self.episodes:,} fresh episodes, {'deterministic' if self.deterministic else 'stochastic'}"

    def __repr__(self) -> str:
        lines = [f"  {name}: {value}" for name, value in self.rows()]
        return "\n".join([f"<Evaluation: {self.heading()}, 95 % intervals", *lines]) + ">"

    def _repr_html_(self) -> str:
        """The same as a table for notebooks. Names are escaped."""
        rows = "".join(f"<tr><td>{html.escape(name)}</td><td>{value}</td></tr>" for name, value in self.rows())
        return f"<div><strong>{self.heading()}</strong><table>{rows}</table><small>95 % intervals</small></div>"


def restore(
    folder: Path, *, without_environment: bool = False, task: type[Any] | None = None
) -> tuple[Experiment, loop.Training, loop.State]:
    """A run's experiment, its training, and the shapes of its state for all seeds.

    With `without_environment`, an environment that runs outside JAX need not be installed. `task` is the class of an
    environment that was given as a Python object.
    """
    description = runs.read_description(folder)
    config = description.get("config", {})
    if without_environment and isinstance(config, dict) and isinstance(config.get("environment"), str):
        task = envs.remembered(config["environment"], _own_problem(description))
    experiment = Experiment.restore(config, task)
    training = training_of(experiment)
    seeds = list(range(experiment.settings.seeds))
    return experiment, training, jax.eval_shape(lambda: loop.start(training, seeds))


def _own_problem(description: dict[str, Any]) -> dict[str, Any]:
    """The problem of the environment itself, without the budgets that a wrapper adds to the observation."""
    problem, settings = dict(description["problem"]), description["config"].get("settings")
    wrapped = isinstance(settings, dict) and settings.get("wrap", "none") != "none"
    if wrapped and isinstance(problem.get("observation_size"), int) and isinstance(problem.get("cost_names"), list):
        problem["observation_size"] -= len(problem["cost_names"])
    return problem


def load_run(
    folder: str | Path, *, without_environment: bool = False, task: type[Any] | None = None
) -> tuple[Experiment, loop.Training, loop.State]:
    """A run's experiment, its training, and its latest state for all seeds; see `restore`."""
    folder = Path(folder)
    experiment, training, like = restore(folder, without_environment=without_environment, task=task)
    return experiment, training, checkpoint.load(checkpoint.latest(folder), like)


def place_of(folder: str | Path, experiment: Experiment, seed: int | None) -> int:
    """The index of a seed among a run's seeds; 0 if no seed is named."""
    first, count = experiment.settings.seed, experiment.settings.seeds
    if seed is not None and not first <= seed < first + count:
        raise InvalidInput(f"{folder} has the seeds {first} to {first + count - 1}, not {seed}.")
    return 0 if seed is None else seed - first


def load_to_play(
    folder: str | Path, seed: int | None = None, *, newest: bool = False, task: type[Any] | None = None
) -> tuple[Policy, loop.Training]:
    """A policy of a run, chosen as by `load`, with the environment that it was trained in."""
    experiment, training, state = load_run(folder, task=task)
    policies = chosen.policies(training, seeds_of(experiment), state, newest)
    return policies[place_of(folder, experiment, seed)], training


def seeds_of(experiment: Experiment) -> list[int]:
    """A run's seeds, in the order of its state."""
    return [experiment.settings.seed + i for i in range(experiment.settings.seeds)]


def load(folder: str | Path, seed: int | None = None, *, newest: bool = False) -> Policy:
    """The best policy of a run, or the newest, for one seed of the run (default: its first)."""
    experiment, training, state = load_run(folder, without_environment=True)
    policies = chosen.policies(training, seeds_of(experiment), state, newest)
    return policies[place_of(folder, experiment, seed)]


def evaluate(
    policy: Policy, training: loop.Training, episodes: int = 1000, deterministic: bool = False, seed: int = 0
) -> Evaluation:
    """Play whole episodes with a fixed policy, and estimate return and costs."""
    if episodes < 2:
        raise InvalidInput(f"an evaluation needs at least 2 episodes, not {episodes}.")
    if episodes > MOST_EPISODES:
        raise InvalidInput(f"an evaluation plays its episodes side by side, at most {MOST_EPISODES:,}, not {episodes}.")
    problem, m = training.problem, training.problem.constraints
    factors = jnp.asarray([1.0, *objective.sum_discounts(problem)[1:]] + [1.0] * m)
    stream = random.fold_in(random.key(seed), EVALUATION_STREAM)

    def play(network: PyTree, key: PRNGKeyArray) -> Array:
        def act(memory: tuple[()], observation: Array, key: PRNGKeyArray) -> tuple[Array, tuple[()]]:
            distribution = network(observation)
            return distribution.mode() if deterministic else distribution.sample(key), memory

        environment = cast(Environment, training.environment)
        batch = rollout.collect(environment, act, (), key, steps=environment.horizon, environments=episodes)
        signal = jnp.concatenate([batch.reward[..., None], batch.cost, batch.cost], axis=-1)
        return episode_totals(signal, batch.ended, factors)[0]

    if hosted.is_hosted(training):
        totals = hosted.play(training, policy.network, stream, episodes, np.asarray(factors), deterministic)
    else:
        totals = np.asarray(jax.jit(play)(policy.network, stream))
    estimates = [Estimate.of(totals[:, i]) for i in range(1 + 2 * m)]
    return Evaluation(
        deterministic=deterministic,
        episodes=episodes,
        undiscounted_return=estimates[0],
        constrained_cost=tuple(estimates[1 : 1 + m]),
        undiscounted_cost=tuple(estimates[1 + m :]),
        limits=tuple(problem.limits),
        cost_names=tuple(training.environment.cost_names),
    )
