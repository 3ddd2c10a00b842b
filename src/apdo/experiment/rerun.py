"""Repeats a run from its description alone, and compares the results."""

from pathlib import Path

import numpy as np

from apdo.errors import InvalidInput
from apdo.experiment import runner
from apdo.experiment.difference import describe_differences
from apdo.experiment.settings import Experiment
from apdo.report import runs

WALL_CLOCK = "seconds"
"""The only metric that may differ."""


def rerun(folder: Path, out: Path, quiet: bool = False) -> tuple[bool, str]:
    """Run the experiment of a run folder again, and compare every metric of every epoch that the folder has."""
    description = runs.read_description(folder)
    before = runs.read(folder)
    experiment = Experiment.restore(description.get("config", {}))
    if experiment.settings.epochs < len(before.epochs):
        raise InvalidInput(f"{folder} has more epochs than its configuration asks for.")
    runner.run(experiment, out, quiet=quiet)
    after, again = runs.read(out), runs.read_description(out)
    difference = compare(before, after)
    if not difference:
        epochs, seeds = len(before.epochs), len(before.seeds)
        kinds = len(before.metrics.keys() - {WALL_CLOCK})
        return (
            True,
            f"matched: {kinds} metrics of {epochs} epochs and {seeds} seeds are the same in {out}, bit for bit.",
        )
    elsewhere = "; ".join(
        found for name in ("versions", "device", "commit") if (found := _changed(description, again, name))
    )
    reason = f" The two runs had different means: {elsewhere}." if elsewhere else ""
    return False, f"not matched: {difference}.{reason}"


def compare(before: runs.Run, after: runs.Run) -> str:
    """The first metric, epoch and seed in which two runs differ, in words; empty if nothing differs."""
    epochs = len(before.epochs)
    names = sorted((before.metrics.keys() | after.metrics.keys()) - {WALL_CLOCK})
    count, first = 0, ""
    for name in names:
        if name not in before.metrics or name not in after.metrics:
            return f"only one of the two has {name}"
        old, new = before.metrics[name], after.metrics[name][:, :epochs]
        if old.shape != new.shape:
            return f"{name} has the shape {list(old.shape)} there and {list(new.shape)} here"
        differ = ~((old == new) | (np.isnan(old) & np.isnan(new)))
        count += int(differ.sum())
        if differ.any() and not first:
            place = tuple(np.argwhere(differ)[np.argwhere(differ)[:, 1].argmin()])
            seed, epoch = before.seeds[place[0]], int(before.epochs[place[1]])
            first = f"{name} of epoch {epoch}, seed {seed} is {old[place]:.9g} there and {new[place]:.9g} here"
    return first and f"{first}; {count} values differ in all"


def _changed(there: dict[str, object], here: dict[str, object], name: str) -> str:
    return describe_differences(there.get(name), here.get(name), name)
