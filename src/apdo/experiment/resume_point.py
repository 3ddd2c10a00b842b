"""Finds where an interrupted run can continue: the newest whole checkpoint for which all metrics are there.

The metrics record what the run has reported, the checkpoints what it has computed. A run can continue from a checkpoint
after k epochs if the first k epochs of the metrics are whole. Everything after them is computed again, and gives the
same results. If there is no such checkpoint, the run starts again from its description.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from apdo import loop
from apdo.errors import InvalidInput
from apdo.experiment import checkpoint
from apdo.report import runs

Say = Callable[[str], None]
PARTS = ("run.json", "metrics.jsonl", "remarks.jsonl", "lock", "checkpoints")


@dataclasses.dataclass(frozen=True)
class ResumePoint:
    """The point from which an interrupted run can continue."""

    state: loop.State | None
    """The state after `epoch` epochs; None for the beginning."""
    rows: list[list[dict[str, Any]]]
    """The metrics of those epochs, by epoch and seed."""
    end: int
    """The size of these metrics in their file, in bytes."""
    discarded: bool
    """Whether the file had metrics after these, which are dropped."""

    @property
    def epoch(self) -> int:
        """The number of epochs that need not be computed again."""
        return len(self.rows)


def find(folder: Path, description: dict[str, Any], training: loop.Training, say: Say) -> ResumePoint:
    """The resume point of the run in a folder. Files that cannot be used are reported, and renamed."""
    prefix = runs.read_prefix(folder, description)
    reached = len(prefix.rows)
    if prefix.complaint:
        say(f"{prefix.complaint} The metrics are whole for the first {reached} epochs.")
    like = jax.eval_shape(lambda: loop.start(training, description["seeds"]))
    there = checkpoint.found(folder)
    for epoch, path in there:
        if epoch > reached:
            # Not damaged: the adjustment after it failed, or its metrics were damaged. It will be written again.
            say(f"{path} is ahead of the metrics, and not used.")
            checkpoint.set_aside(path)
            continue
        try:
            state = checkpoint.load(path, like)
            if int(state.epoch) != epoch:
                raise InvalidInput(f"{path} holds the state after {int(state.epoch)} epochs, which its name denies.")
        except checkpoint.Earlier:
            raise
        except InvalidInput as error:
            say(f"{error} The checkpoint before it is used.")
            checkpoint.set_aside(path)
            continue
        end = prefix.ends[epoch - 1] if epoch else 0
        return ResumePoint(state, prefix.rows[:epoch], end, discarded=end < prefix.size)
    if there:
        say("no checkpoint can be used: the run begins again from its first epoch.")
    return ResumePoint(None, [], 0, discarded=prefix.size > 0)


def check_own(folder: Path) -> None:
    """Refuse a folder with links in it: a resumed run writes to these files, and a link could lead anywhere."""
    for name in PARTS:
        if (folder / name).is_symlink():
            raise InvalidInput(f"{folder / name} is a link; a run goes on only in files of its own folder.")
