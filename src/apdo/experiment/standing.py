"""Where an interrupted run stands: the newest checkpoint that is whole and whose metrics are all there.

The metrics are the run's memory of what it has reported, the checkpoints of what it has computed. A run can go on from
a checkpoint after k epochs if the first k epochs of the metrics are whole; everything after them is computed again, and
comes out the same. Where there is no such checkpoint the run begins again: it is a function of its description.
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
class Standing:
    """What an interrupted run can build upon."""

    state: loop.State | None
    """The state after `epoch` epochs; None for the beginning."""
    rows: list[list[dict[str, Any]]]
    """The metrics of those epochs, by epoch and seed."""
    end: int
    """Bytes of the metrics file that hold them."""
    discarded: bool
    """Whether the metrics held more than that."""

    @property
    def epoch(self) -> int:
        """Epochs that need not be computed again."""
        return len(self.rows)


def find(folder: Path, description: dict[str, Any], training: loop.Training, say: Say) -> Standing:
    """Where the run in a folder stands; whatever cannot be used is named, and set aside."""
    prefix = runs.read_prefix(folder, description)
    reached = len(prefix.rows)
    if prefix.complaint:
        say(f"{prefix.complaint} The metrics are whole for the first {reached} epochs.")
    like = jax.eval_shape(lambda: loop.start(training, description["seeds"]))
    there = checkpoint.found(folder)
    for epoch, path in there:
        if epoch > reached:
            # Not damaged: a failed adjustment's state, or one whose metrics were. It will be written again.
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
        return Standing(state, prefix.rows[:epoch], end, discarded=end < prefix.size)
    if there:
        say("no checkpoint can be used: the run begins again from its first epoch.")
    return Standing(None, [], 0, discarded=prefix.size > 0)


def check_own(folder: Path) -> None:
    """Refuse a folder whose parts are links: going on writes to them, and they could lead anywhere."""
    for name in PARTS:
        if (folder / name).is_symlink():
            raise InvalidInput(f"{folder / name} is a link; a run goes on only in files of its own folder.")
