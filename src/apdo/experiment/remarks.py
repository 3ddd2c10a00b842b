"""Remarks on what the metrics of a run show to be wrong with it: one line each, made once.

Every remark is a pure function of the metrics so far, so a run that was interrupted makes the same remarks as one that
was not. No remark depends on units: costs are compared with their limits and their own errors, multipliers with
themselves. A remark is made if it holds in at least half of the seeds, and if the algorithm has the metrics for it. The
axes are E epochs, S seeds and M constraints.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_HEED = {"multiplier", "recovering", "penalised"}
"""The metrics of how an algorithm answers to an excess: each algorithm that obeys limits has one of them."""
History = Mapping[str, np.ndarray]
"""Metrics by name, [E, S] or [E, S, M]."""
Flags = NDArray[np.bool_]

CONFIDENCE = 1.645
"""How many standard errors lie between a mean and its one-sided bound of 95 %."""
SHARE = 0.5
"""The share of the seeds in which a remark must hold."""
IN_A_ROW = 10
"""For how many epochs a cost may exceed its limit with a multiplier of 0."""
WINDOW = 20
"""The number of epochs over which a multiplier is checked for growth, and a cost for a decrease."""
GROWTH = 1.2
"""A multiplier grows if it increases by this factor from one half of the window to the other."""
FALL = 0.25
"""A cost decreases if it loses this part of its excess over the window."""
LATE = 0.75
"""A limit that no epoch has kept is remarked on after this part of the run, and at the end of the run."""
PRECISION = 0.1
"""A batch should know its cost within two standard errors to this part of the limit."""
NEAR = 0.5
"""A cost is near its limit if the distance is at most this part of the limit."""
ABOUT_ZERO = 0.01
"""A multiplier is about zero if it is below this part of its largest value."""
LOST = 0.5
"""Policies earn far less than earlier ones if they have lost this part of what those had gained over the first."""
MOSTLY = 0.9
"""A limit does not bind if it leaves room in this part of the second half of the run."""


@dataclasses.dataclass(frozen=True)
class About:
    """The properties of a run that do not change."""

    limits: tuple[float, ...]
    names: tuple[str, ...]
    """The names of the costs."""
    epochs: int
    """How many epochs are planned."""
    batch: int
    returned: str = "return"
    """The metric of the return that is maximised."""


@dataclasses.dataclass(frozen=True)
class Remark:
    """One line for the user."""

    kind: str
    """Each kind is remarked on once. It is the function's name with the constraint's number, or the text itself."""
    text: str


def of(history: History, about: About, since: int = 0) -> list[Remark]:
    """All remarks that hold after these epochs.

    `since` is the first epoch of the current multipliers. An adjustment starts them anew; while an adjustment is still
    to come, they say nothing.
    """
    if not {"cost", "cost_error"} <= history.keys() or not len(history["cost"]):
        return []
    checks = (idle, in_vain, out_of_reach, too_few_samples, slack)
    found = []
    for check in checks:
        for i in range(len(about.limits)):
            if text := check(history, about, i, since):
                found.append(Remark(f"{check.__name__} {i}", text))
    for whole in (never_adopted, forgotten):
        if text := whole(history, about):
            found.append(Remark(whole.__name__, text))
    return found


def idle(history: History, about: About, i: int, since: int) -> str:
    """The multiplier is 0 while the cost exceeds the limit."""
    if "multiplier" not in history or len(history["cost"]) - since < IN_A_ROW:
        return ""
    last = _last(history, i, IN_A_ROW)
    quiet = (last.multiplier == 0.0) & (last.low > about.limits[i])
    if "recovering" in history:
        # A step that only lowers costs needs no multiplier.
        quiet &= history["recovering"][-IN_A_ROW:] == 0.0
    if not (holds := quiet.all(axis=0)).mean() >= SHARE:
        return ""
    cost = _short(last.cost[:, holds].mean())
    return (
        f"{about.names[i]} costs {cost}, over its limit {about.limits[i]:g}, and its multiplier has been 0 for "
        f"{IN_A_ROW} epochs{_seeds(holds)}: nothing holds it back. A larger --dual-step or --initial-multiplier would."
    )


def in_vain(history: History, about: About, i: int, since: int) -> str:
    """The multiplier grows while the cost does not decrease."""
    if "multiplier" not in history or len(history["cost"]) - since < WINDOW:
        return ""
    last, half = _last(history, i, WINDOW), WINDOW // 2
    before, after = last.cost[:half].mean(axis=0), last.cost[half:].mean(axis=0)
    excess = before - about.limits[i]
    spread = np.sqrt(np.square(last.error).sum(axis=0)) / half
    lost = before - after + CONFIDENCE * spread
    small, large = last.multiplier[:half].mean(axis=0), last.multiplier[half:].mean(axis=0)
    holds = (large > GROWTH * small) & (excess > CONFIDENCE * spread) & (lost < FALL * excess)
    if not holds.mean() >= SHARE:
        return ""
    ends = [_short(last.multiplier[place][holds].mean()) for place in (0, -1)]
    costs = [_short(part[holds].mean()) for part in (before, after)]
    return (
        f"the multiplier of {about.names[i]} went from {ends[0]} to {ends[1]} in {WINDOW} epochs{_seeds(holds)} and "
        f"the cost from {costs[0]} to {costs[1]}, over its limit {about.limits[i]:g}: the multiplier is too small, "
        "or no policy within reach costs less. A larger --dual-step shows which."
    )


def out_of_reach(history: History, about: About, i: int, since: int) -> str:  # noqa: ARG001
    """The limit is below every cost seen, late in the run."""
    seen = len(history["cost"])
    # An algorithm with none of these only measures costs.
    if not _HEED & history.keys() or seen not in (math.ceil(LATE * about.epochs), about.epochs):
        return ""
    every = _last(history, i, seen)
    holds = np.asarray((every.low > about.limits[i]).all(axis=0))
    if not holds.mean() >= SHARE:
        return ""
    return (
        f"the limit {about.limits[i]:g} of {about.names[i]} is below anything seen in {seen} epochs{_seeds(holds)}: "
        f"the least cost was {_short(every.cost[:, holds].min())}. Either no policy keeps it, or "
        f"{'the multiplier has not grown enough for it' if 'multiplier' in history else 'training has not come to it'}"
        " yet."
    )


def too_few_samples(history: History, about: About, i: int, since: int) -> str:  # noqa: ARG001
    """The batch is too small to compare its own cost with the limit, and the comparison matters."""
    if len(history["cost"]) < IN_A_ROW:
        return ""
    last = _last(history, i, IN_A_ROW)
    error, cost = np.median(last.error, axis=0), last.cost.mean(axis=0)
    size, of = _size(history, i, abs(about.limits[i]))
    gap = np.abs(cost - about.limits[i])
    matters = (gap <= NEAR * size) | (gap <= 2.0 * error) | (np.median(last.multiplier, axis=0) > 0.0)
    holds = matters & (size > 0.0) & (2.0 * error > PRECISION * size)
    if not holds.mean() >= SHARE:
        return ""
    typical = float(np.median(error[holds]))
    enough = _rounded_up(about.batch * float(np.median((2.0 * error / (PRECISION * size))[holds])) ** 2)
    affordable = IN_A_ROW * enough <= about.epochs * about.batch
    help_is = f"--batch {enough} would know it to a tenth{of}."
    if not affordable:
        help_is = (
            f"A tenth{of} would take batches of {enough:,}, too many for this run; each fourfold --batch halves it."
        )
    return (
        f"a batch of {about.batch:,} samples knows {about.names[i]} to ±{_short(2.0 * typical)} only, and "
        f"the limit is {about.limits[i]:g}: the rest is noise. {help_is}"
    )


def slack(history: History, about: About, i: int, since: int) -> str:
    """The limit does not bind at the end of the run."""
    seen = len(history["cost"])
    if "multiplier" not in history or seen < about.epochs or seen < 2 * IN_A_ROW or since > seen // 2:
        return ""
    half = _last(history, i, seen - seen // 2)
    largest = history["multiplier"][..., i].max(axis=0, keepdims=True)
    room = ((half.high < about.limits[i]) & (half.multiplier <= ABOUT_ZERO * largest)).mean(axis=0)
    holds = room >= MOSTLY
    if not holds.mean() >= SHARE:
        return ""
    return (
        f"the limit {about.limits[i]:g} of {about.names[i]} did not bind in the second half of the run{_seeds(holds)}: "
        f"the cost was {_short(half.cost[:, holds].mean())} with a multiplier of 0. A lower limit might cost no return."
    )


def never_adopted(history: History, about: About) -> str:
    """None of the actors that were tried beside PDO was adopted, at the end of the run."""
    if not {"actor_on_trial", "actor_taken", about.returned} <= history.keys() or len(history["cost"]) < about.epochs:
        return ""
    tried = history["actor_on_trial"] > 0.0
    holds = np.asarray(tried[1:].any(axis=0) & ~(history["actor_taken"] > 0.0).any(axis=0))
    if not holds.mean() >= SHARE:
        return ""
    chosen = tried & holds
    chosen[0] = False  # No policy was there before it to compare with.
    shown, before = (_outcome(history, about, where) for where in (chosen, np.roll(chosen, -1, axis=0)))
    return (
        f"none of the {int(chosen.sum())} actors of the off-policy learner that were tried was adopted{_seeds(holds)}, "
        f"so this is PDO's policy: on average their epochs showed {shown}, and the epochs before them {before}."
    )


def forgotten(history: History, about: About) -> str:
    """The latest policies earn far less than earlier ones, at no lower cost; late in the run."""
    seen = len(history["cost"])
    if not {about.returned, "return_error"} <= history.keys() or seen < 3 * IN_A_ROW:
        return ""
    if seen not in (math.ceil(LATE * about.epochs), about.epochs):
        return ""
    returned, cost = (_windows(history[name]) for name in (about.returned, "cost"))
    noise, cost_noise = (_windows(np.square(history[name])) / IN_A_ROW for name in ("return_error", "cost_error"))
    earlier = slice(0, len(returned) - IN_A_ROW)  # They share no epoch with the latest window.
    fall, doubt = returned[earlier] - returned[-1], np.sqrt(noise[earlier] + noise[-1])
    far = (fall > CONFIDENCE * doubt) & (fall >= LOST * (returned[earlier] - history[about.returned][0]))
    dearer = cost[earlier] - cost[-1] > CONFIDENCE * np.sqrt(cost_noise[earlier] + cost_noise[-1])
    within = cost[earlier] <= np.asarray(about.limits)
    better = far & (fall > 0.0) & (~dearer | within).all(axis=-1)
    holds = np.asarray(better.any(axis=0))
    if not holds.mean() >= SHARE:
        return ""
    best = np.argmax(np.where(better, returned[earlier], -np.inf), axis=0)
    then, now = np.zeros((seen, len(holds)), dtype=bool), np.zeros((seen, len(holds)), dtype=bool)
    for s in np.flatnonzero(holds):
        then[best[s] : best[s] + IN_A_ROW, s] = now[-IN_A_ROW:, s] = True
    actors = "actor_taken" in history and bool((history["actor_taken"] > 0.0)[:, holds].any())
    return (
        f"the latest policies earn far less than earlier ones, at no lower cost{_seeds(holds)}: ten epochs showed "
        f"{_outcome(history, about, then)}, and the latest ten {_outcome(history, about, now)}. "
        + ("Off-policy actors that were adopted may be why: --no-companion trains without them." if actors else "")
        + ("" if actors else "Larger batches or shorter steps may keep what was learned.")
    )


def _windows(values: np.ndarray) -> np.ndarray:
    """The means over ten epochs in a row, by the first of them."""
    sums = np.cumsum(np.concatenate([np.zeros_like(values[:1], dtype=np.float64), values], dtype=np.float64), axis=0)
    return (sums[IN_A_ROW:] - sums[:-IN_A_ROW]) / IN_A_ROW


def refused(history: History, about: About, tried: Flags, seeds: Sequence[int]) -> list[str]:
    """A line for each seed whose off-policy actor played the last epoch on trial, and was refused.

    `tried` says in which seeds an actor was on trial.
    """
    epochs = len(history["cost"]) if "cost" in history else 0
    if epochs < 2 or not {"actor_taken", about.returned} <= history.keys():
        return []
    every, found = np.zeros((epochs, len(seeds)), dtype=bool), []
    for s in np.flatnonzero(tried & (history["actor_taken"][-1] == 0.0)).tolist():
        last, before = every.copy(), every.copy()
        last[-1, s] = before[-2, s] = True
        shown, earlier = (_outcome(history, about, where) for where in (last, before))
        found.append(
            f"seed {seeds[s]}: the off-policy actor of the adjustment after {epochs - 1} epochs was refused: its epoch "
            f"showed {shown}, and the epoch before it {earlier}."
        )
    return found


class Book:
    """The remarks of a run. Each is written down and shown once."""

    def __init__(
        self,
        said: Iterable[Mapping[str, Any]],
        write: Callable[[dict[str, Any]], None],
        tell: Callable[[str], None],
    ) -> None:
        """`said` are the remarks that the run made before it was interrupted."""
        self._said = {one["kind"] for one in said}
        self._write, self._tell = write, tell

    def note(self, remark: Remark, epoch: int) -> None:
        """Make a remark after so many epochs, unless it was made before."""
        if remark.kind not in self._said:
            self._said.add(remark.kind)
            self._write({"epoch": epoch, "kind": remark.kind, "text": remark.text})
            self._tell(f"remark: {remark.text}")

    def say(self, text: str, epoch: int) -> None:
        """Make a remark of a sentence from elsewhere, such as an adjustment's; nothing if it is empty."""
        if line := " ".join(text.split()):
            self.note(Remark(line, line), epoch)


@dataclasses.dataclass(frozen=True)
class _Last:
    """The last epochs of one constraint, each array [E, S]."""

    cost: np.ndarray
    error: np.ndarray
    multiplier: np.ndarray
    """0 if the run has no multipliers."""

    @property
    def low(self) -> np.ndarray:
        return self.cost - CONFIDENCE * self.error

    @property
    def high(self) -> np.ndarray:
        return self.cost + CONFIDENCE * self.error


def _last(history: History, i: int, epochs: int) -> _Last:
    cost, error = (history[name][-epochs:, :, i].astype(np.float64) for name in ("cost", "cost_error"))
    own = history["multiplier"][-epochs:, :, i].astype(np.float64) if "multiplier" in history else np.zeros_like(cost)
    return _Last(cost=cost, error=error, multiplier=own)


def _size(history: History, i: int, limit: float) -> tuple[np.ndarray, str]:
    """What an error is compared with, for each seed: the limit or, if it is 0, two deviations of an episode's cost.

    The latter only of costs that can be negative: at a limit of 0 any other cost is above it.
    """
    cost = history["cost"][..., i]
    if limit > 0.0 or "cost_deviation" not in history:
        return np.full(cost.shape[1:], limit), ""
    spread = np.median(history["cost_deviation"][-IN_A_ROW:, :, i].astype(np.float64), axis=0)
    return np.where(cost.min(axis=0) < 0.0, 2.0 * spread, 0.0), " of how episodes differ"


def _outcome(history: History, about: About, where: Flags) -> str:
    """The mean return and costs of some epochs and seeds, in words."""
    costs = history["cost"][where].astype(np.float64).mean(axis=0)
    told = [
        f"{name} of {_short(cost)} (limit {limit:g})"
        for name, cost, limit in zip(about.names, costs, about.limits, strict=True)
    ]
    returned = history[about.returned][where].astype(np.float64).mean()
    return f"a return of {_short(returned)} with {' and '.join(told)}"


def _seeds(holds: Flags) -> str:
    """The number of seeds in which a remark holds; empty if it holds in all."""
    return "" if holds.all() else f" in {int(holds.sum())} of {len(holds)} seeds"


def _rounded_up(samples: float) -> int:
    """The number rounded up to two digits."""
    unit = 10 ** max(0, math.floor(math.log10(samples)) - 1)
    return math.ceil(samples / unit) * unit


def _short(value: float) -> str:
    return f"{value:.3g}"
