"""`apdo evaluate`: play fresh episodes with the policies of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from apdo.cli import completing, values
from apdo.cli.declaring import Command, Given, option, place, switch

if TYPE_CHECKING:
    from apdo.policy import Policy

_EPISODES = 1000


def evaluate(given: Given) -> None:
    """Print means with intervals and, for each limit, whether the mean cost is within it."""
    changes, run = given.changes, given.names[0]
    episodes, seed = values.count(changes, "episodes", _EPISODES) or 0, values.count(changes, "seed", 0) or 0
    both = ["stochastic", "deterministic"]
    modes = [mode for mode in both if changes.get(mode)] or both
    from apdo.report import runs

    runs.read_description(Path(run))
    from apdo.experiment import chosen, evaluation, film

    experiment, training, state = evaluation.load_run(run)
    video = values.path(changes, "video")
    if video is not None:
        film.check(video, training.environment)
    seeds, newest = evaluation.seeds_of(experiment), bool(changes.get("newest"))
    policies = chosen.policies(training, seeds, state, newest)
    print(f"{experiment.algorithm} on {experiment.environment}, {episodes} fresh episodes each, 95 % intervals")
    best = [] if newest else chosen.best_policies(training, seeds, state)
    for i, policy in enumerate(policies):
        print(f"seed {seeds[i]}: {which(policy)}")
        if best:
            print(f"  training saw: {best[i].figures()}")
        found = [evaluation.evaluate(policy, training, episodes, mode == "deterministic", seed) for mode in modes]
        rows = zip(*(one.rows() for one in found), strict=True)
        print(_columns([("", modes), *((row[0][0], [value for _, value in row]) for row in rows)]))
    if video is not None:
        count = film.film(policies[0], training, video, modes[0] == "deterministic", seed)
        print(f"video: {video} ({count} episode{'s' * (count > 1)} of seed {seeds[0]}, {modes[0]})")


def which(policy: "Policy") -> str:
    """Which policy of its run it is, and how to get the newest one."""
    return policy.about + ("" if policy.about.startswith("the newest") else "; --newest takes the last one")


def _columns(rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Names on the left, and the entries of each row below each other."""
    first = max(len(name) for name, _ in rows) + 3
    widths = [max(len(entry) for entry in column) for column in zip(*(entries for _, entries in rows), strict=True)]
    lines = []
    for name, entries in rows:
        shown = "   ".join(entry.ljust(width) for entry, width in zip(entries, widths, strict=True))
        lines.append(f"  {name:<{first}}{shown}".rstrip())
    return "\n".join(lines)


COMMAND = Command(
    "evaluate",
    evaluate,
    usage="evaluate RUN",
    what="play fresh episodes with the policies of a run",
    about="Plays fresh episodes with the policies of a run, with and without their exploration side by side. Prints "
    "means with 95 % confidence intervals and, for each limit, whether the mean cost is under it: yes or no with 95 % "
    "confidence, or undecided, and then about how many episodes would decide. p is the probability that it is, by "
    "Student's t. A seed's policy is the best that training has found: of those whose costs its own samples show to be "
    "within the limits (95 %), the one with the highest return.",
    places=[place("run", completing.folders)],
    options=[
        switch("--newest", "the policies after the last epoch instead"),
        option("--episodes", "N", f"episodes for each policy and mode (default: {_EPISODES})"),
        option("--seed", "N", "the number of the set of fresh episodes (default: 0)"),
        switch("--deterministic", "only without exploration"),
        switch("--stochastic", "only with exploration"),
        option(
            "--video",
            "FILE",
            "a .gif, or an .mp4 where ffmpeg is there, of a few episodes of the first policy; with exploration unless "
            "--deterministic",
            completing.files,
        ),
    ],
    needs="evaluate needs a run folder, as in: apdo evaluate runs/demo.",
    fewest=1,
)
