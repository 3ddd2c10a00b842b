"""Opens runs: makes a new folder, or continues an existing one from where its files say that the run is."""

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp

from apdo import algorithms, loop, options
from apdo.algorithms import checks, scaled
from apdo.algorithms.contract import Algorithm
from apdo.errors import InvalidInput
from apdo.experiment import memory, records, result, resume_point, warm_start
from apdo.experiment.difference import describe_differences
from apdo.experiment.history import history_of
from apdo.experiment.result import Result
from apdo.experiment.resume_point import ResumePoint
from apdo.experiment.settings import BOOKKEEPING, Experiment, sized
from apdo.report import runs

_ENDINGS = ("error", "stopped")
"""Entries of `run.json` about how a run ended, which are removed when it continues."""


def training_of(experiment: Experiment) -> loop.Training:
    """The experiment in the form that the loop needs."""
    steps, environments = experiment.shape()
    return loop.Training(
        algorithm=algorithm_of(experiment),
        config=experiment.algorithm_config,
        problem=experiment.problem(),
        environment=experiment.task(),
        steps=steps,
        environments=environments,
        side_by_side=loop.suits_side_by_side(),
    )


def algorithm_of(experiment: Experiment) -> Algorithm:
    """The algorithm, wrapped in the mapping of its actions if the environment has one."""
    plain = cast(Algorithm, algorithms.find(experiment.algorithm))
    task = experiment.environment_config
    meaning = getattr(task, "action_meaning", None)
    if meaning is None:
        return plain
    own = None if task.discrete_actions else scaled.ActionMeaning(*(jnp.asarray(part, jnp.float32) for part in meaning))
    return cast(Algorithm, scaled.Scaled(plain, own))


@dataclasses.dataclass(frozen=True)
class Opened:
    """A run whose folder is locked and which is ready to be trained from its resume point."""

    experiment: Experiment
    training: loop.Training
    seeds: list[int]
    record: records.Records
    resume_point: ResumePoint


def begin(experiment: Experiment, folder: Path) -> Opened:
    """Make a new run folder."""
    training = training_of(experiment)
    if experiment.algorithm not in algorithms.ALGORITHMS:
        steps, environments = experiment.shape()
        plain = algorithms.find(experiment.algorithm)
        checks.try_out(experiment.algorithm, plain, training.config, training.problem, steps, environments)
    seeds = _seeds(experiment)
    memory.check(training, seeds)
    warm = warm_start.of(experiment, training, seeds)
    description = describe(experiment, training, seeds) | ({} if warm is None else {warm_start.RECORD: warm.about})
    record = records.Records(folder, description)
    state = None if warm is None else warm.state
    return Opened(experiment, training, seeds, record, ResumePoint(state, [], 0, discarded=False))


def reopen(
    folder: Path,
    say: resume_point.Say,
    epochs: int | None = None,
    bookkeeping: Mapping[str, Any] | None = None,
    task: type[Any] | None = None,
) -> Opened | Result:
    """Open an existing run folder to continue the run, or return its result if it is finished; see `runner.resume`."""
    runs.read_description(folder)
    resume_point.check_own(folder)
    with contextlib.ExitStack() as holding:
        held = holding.enter_context(records.lock(folder))
        description = runs.read_description(folder)
        experiment = Experiment.restore(description.get("config", {}), task)
        if epochs is not None and epochs < experiment.settings.epochs:
            raise InvalidInput(f"the run has {experiment.settings.epochs} epochs, and cannot be shortened to {epochs}.")
        experiment = _change(experiment, dict(bookkeeping or {}) | ({} if epochs is None else {"epochs": epochs}))
        training, seeds = training_of(experiment), _seeds(experiment)
        fresh = describe(experiment, training, seeds)
        if any(description.get(name) != fresh[name] for name in ("algorithm", "environment", "seeds", "batch")):
            raise InvalidInput(f"{folder / 'run.json'} contradicts itself: its configuration makes another run.")
        for name in ("versions", "device"):
            if changed := describe_differences(description.get(name), fresh[name], name):
                say(f"{changed}: the run goes on, but its bits may differ from those of a run without interruption.")
        memory.check(training, seeds)
        point = resume_point.find(folder, description, training, say)
        if point.state is None:
            warm = warm_start.of(experiment, training, seeds, description.get(warm_start.RECORD))
            point = dataclasses.replace(point, state=None if warm is None else warm.state)
        if description.get("status") == "finished" and point.epoch == experiment.settings.epochs:
            if not point.discarded:
                say(f"{folder} is finished already, and whole.")
                return result.of(
                    folder, experiment, training, seeds, history_of(point), started(training, seeds, point)
                )
        else:
            say(f"going on after {point.epoch} of {experiment.settings.epochs} epochs")
        note = {"epoch": point.epoch, "at": fresh["started"]}
        note |= {name: fresh[name] for name in ("versions", "device", "commit")}
        earlier = description["resumed"] if isinstance(description.get("resumed"), list) else []
        description |= {"config": fresh["config"], "epochs": fresh["epochs"], "resumed": [*earlier, note]}
        description = {name: value for name, value in description.items() if name not in _ENDINGS}
        record = records.Records.resume(folder, held, description, point.end)
        holding.pop_all()
    return Opened(experiment, training, seeds, record, point)


def enter(experiment: Experiment, folder: Path, say: resume_point.Say) -> Opened | Result:
    """Open the run of this experiment in this folder, or begin it if there is none. A finished run gives its result."""
    if not folder.exists() or records.is_blank(folder):
        return begin(experiment, folder)
    task = type(experiment.environment_config)
    there = Experiment.restore(runs.read_description(folder).get("config", {}), task)
    if differ := describe_differences(there.essence(), experiment.essence()):
        raise InvalidInput(f"{folder} holds another run: {differ}; choose another folder with --out.")
    kept = {name: getattr(experiment.settings, name) for name in BOOKKEEPING}
    return reopen(folder, say, bookkeeping=kept, task=task)


def _change(experiment: Experiment, changes: dict[str, Any]) -> Experiment:
    settings = sized(options.override(experiment.settings, changes), experiment.environment_config)
    changed = dataclasses.replace(experiment, settings=settings)
    changed.check()
    return changed


def _seeds(experiment: Experiment) -> list[int]:
    return [experiment.settings.seed + i for i in range(experiment.settings.seeds)]


def describe(experiment: Experiment, training: loop.Training, seeds: list[int]) -> dict[str, Any]:
    """The content of `run.json`."""
    problem, device = training.problem, jax.devices()[0]
    choices = getattr(training.environment, "action_choices", None)
    layout = getattr(training.environment, "observation_layout", None)
    return {
        "algorithm": experiment.algorithm,
        **({"stands_for": alias} if (alias := algorithms.stands_for(experiment.algorithm)) else {}),
        "environment": experiment.environment,
        "config": experiment.describe(),
        "problem": {
            "limits": list(problem.limits),
            "cost_names": list(training.environment.cost_names),
            "discount": problem.discount,
            "cost_discount": problem.cost_discount,
            "horizon": problem.horizon,
            "observation_size": problem.observation_size,
            "action_size": problem.action_size,
            "discrete_actions": problem.discrete_actions,
            **({} if problem.image is None else {"image": list(problem.image)}),
            **({"observation_layout": layout} if layout is not None else {}),
            **({"action_choices": choices.plain()} if choices is not None else {}),
        },
        "batch": problem.batch,
        "epochs": experiment.settings.epochs,
        "seeds": seeds,
        "adjustment_epoch": _adjustment_epoch(experiment),
        "versions": records.versions(getattr(training.environment, "packages", ())),
        "device": f"{device.platform}: {device.device_kind}",
        "commit": records.commit(),
        "started": records.now(),
        "note": experiment.note,
    }


def _adjustment_epoch(experiment: Experiment) -> int | None:
    """K_adj if it is known before the run; else None."""
    k_adj = getattr(experiment.algorithm_config, "k_adj", None)
    return None if k_adj is None or k_adj < 0 else k_adj


def started(training: loop.Training, seeds: list[int], point: ResumePoint) -> loop.State:
    """The state from which a run continues."""
    return loop.start(training, seeds) if point.state is None else point.state
