"""The paper's experiments as one resumable batch: both figures, the study of step sizes, and the optimal multiplier.

A study is a list of arms. An arm is an algorithm with its options, and may be part of several studies. Each arm runs
its seeds in one program, as a block (`blocks`): a finished block is never run again, an interrupted block continues,
and additional seeds become an additional block. Blocks that differ only in numbers may run in one program (`together`),
as one job. Jobs run here one after the other, or in other processes (`sweeps.studies`). `OUT/study.json` says what the
folder holds.
"""

import contextlib
import dataclasses
import datetime
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import jax

from apdo.errors import InvalidInput, NumericalFailure, unknown
from apdo.experiment import blocks, opening, runner, settings, together
from apdo.experiment.settings import Experiment
from apdo.report import claims, comparison, page, plot, runs
from apdo.report.comparison import OptimalMultiplier, Target
from apdo.report.runs import Run

Option = float | int | str
Train = Callable[[Experiment, Path], object]
"""Runs an experiment in a run folder, or continues the run that is there."""
Say = Callable[[str], None]
"""Shows the user a message."""

ENVIRONMENT = "point-gather"
TARGET = Target()
_MANY = 7
"""How many arms can be distinguished by colour alone."""


@dataclasses.dataclass(frozen=True)
class Scale:
    """The size of the studies."""

    name: str
    seeds: int
    batch: int
    epochs: int
    iterations: int
    """Primal-dual DDPG iterations of an adjustment."""
    grid: tuple[float, ...]
    """The fixed multipliers with which λ* is found."""
    fixed_epochs: int
    """Epochs of each run with a fixed multiplier."""
    settled: int
    """How many of the last epochs count for λ*."""
    options: Mapping[str, Mapping[str, Option]] = dataclasses.field(default_factory=dict)
    """Further changes to the paper's settings, by algorithm."""
    note: str = ""
    """Printed on every picture and on the page."""


# Fewer epochs and iterations need wider steps and higher rates; the curves keep their shape.
_WIDER: dict[str, Option] = {"primal.radius": 0.02}
_QUICKER: dict[str, Option] = {
    "off_policy.learner.critic_rate": 3e-3,
    "off_policy.learner.actor_rate": 3e-3,
    "off_policy.learner.target_rate": 0.01,
    "off_policy.learner.dual_rate": 0.05,
}

SCALES = {
    "full": Scale(
        name="full",
        seeds=10,
        batch=50_000,
        epochs=150,
        iterations=500_000,
        grid=(8.0, 9.0, 9.5, 10.0, 10.5, 11.0, 12.0),
        fixed_epochs=300,
        settled=50,
    ),
    "small": Scale(
        name="small",
        seeds=3,
        batch=5_000,
        epochs=50,
        iterations=8_000,
        grid=(4.0, 6.0, 8.0, 10.0, 12.0),
        fixed_epochs=80,
        settled=20,
        options={"pdo": _WIDER, "apdo": _WIDER | _QUICKER, "cpo": {"search.radius": 0.02}},
        note="MINIATURE: 50 epochs of 5,000 samples with trust regions twice as wide, and 8,000 off-policy iterations "
        "at 3 to 10 times the rates, where the paper has 150 epochs of 50,000 and 500,000 iterations. It shows that "
        "everything works; it is no evidence about the paper.",
    ),
}


@dataclasses.dataclass(frozen=True)
class Arm:
    """An algorithm with its options."""

    name: str
    """The name of its folder."""
    title: str
    algorithm: str
    options: Mapping[str, Option]


@dataclasses.dataclass(frozen=True)
class Study:
    """Arms that are shown in one figure."""

    name: str
    title: str
    text: str
    arms: tuple[Arm, ...]
    colours: int = _MANY
    """After how many arms the colours repeat, with another line style."""


@dataclasses.dataclass(frozen=True)
class Block:
    """Consecutive seeds of an arm, which run in one program."""

    arm: Arm
    experiment: Experiment
    folder: Path

    @property
    def name(self) -> str:
        """The arm's name and the seeds."""
        return f"{self.arm.name}/{self.folder.name}"

    @property
    def seeds(self) -> range:
        """The block's seeds."""
        first, count = self.experiment.settings.seed, self.experiment.settings.seeds
        return range(first, first + count)


Elsewhere = Callable[[Sequence[Sequence[Block]]], Mapping[str, str]]
"""Runs jobs in other processes, started in this order. Returns the reasons of the blocks that failed, by name."""

STEPS = (0.01, 0.05, 0.1, 0.5)
EPOCHS = (1, 5, 10)
STUDIES = ("fig1", "fig2", "step-size", "lambda-star")


def studies(scale: Scale) -> dict[str, Study]:
    """The paper's experiments, by name."""
    run: dict[str, Option] = {"batch": scale.batch, "epochs": scale.epochs}
    adjusting = run | {"off_policy.iterations": scale.iterations}

    def pdo(step: float) -> Arm:
        return Arm(f"pdo-{step:g}", f"PDO, step {step:g}", "pdo", run | {"dual_step": step})

    def apdo(step: float, k_adj: int = 5) -> Arm:
        name = f"apdo-k{k_adj}" if step == 0.1 else f"apdo-{step:g}"
        title = f"APDO, K_adj {k_adj}" + ("" if step == 0.1 else f", step {step:g}")
        return Arm(name, title, "apdo", adjusting | {"dual_step": step, "k_adj": k_adj})

    def fixed(value: float) -> Arm:
        held = {"dual_step": 0.0, "initial_multiplier": value, "epochs": scale.fixed_epochs}
        return Arm(f"fixed-{value:g}", f"λ = {value:g}", "pdo", run | held)

    found = (
        Study(
            "fig1",
            "Figure 1: APDO, PDO and CPO",
            "The paper's comparison: one adjustment after epoch 5, against plain dual ascent and CPO. CPO's multiplier "
            "is that of its own subproblem, solved anew in every epoch; the paper does not show it.",
            (apdo(0.1), pdo(0.1), Arm("cpo", "CPO", "cpo", run)),
        ),
        Study(
            "fig2",
            "Figure 2: when to adjust",
            "APDO with its adjustment after epoch 1, 5 or 10.",
            tuple(apdo(0.1, k_adj) for k_adj in EPOCHS),
        ),
        Study(
            "step-size",
            "The step of dual ascent",
            "PDO and APDO (K_adj 5) with the steps that the paper tried. A colour is a step, a line style an "
            "algorithm; APDO without a step in its name has 0.1.",
            (*(pdo(step) for step in STEPS), *(apdo(step) for step in STEPS)),
            colours=len(STEPS),
        ),
        Study(
            "lambda-star",
            "The optimal multiplier",
            "PDO with its multiplier held fixed. The larger it is, the smaller the cost once it has settled; where "
            "that crosses the limit lies λ*.",
            tuple(fixed(value) for value in scale.grid),
        ),
    )
    return {study.name: study for study in found}


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the user asked for."""

    scale: Scale
    seeds: int
    out: Path
    arms: tuple[Arm, ...]


def plan(what: str, seeds: int | None, scale: str, out: Path | None) -> Plan:
    """The plan of a study, or of all of them, on so many seeds. Everything is checked before a folder is made."""
    if what not in (*STUDIES, "all"):
        raise unknown("figure", what, (*STUDIES, "all"))
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    size = SCALES[scale]
    count = size.seeds if seeds is None else seeds
    if count < 1:
        raise InvalidInput(f"--seeds must be at least 1, not {count}.")
    every = studies(size)
    chosen = list(every.values()) if what == "all" else [every[what]]
    return Plan(size, count, out or Path("runs") / f"reproduce-{scale}", tuple(distinct(chosen)))


def reproduce(
    wanted: Plan, command: str, shared: bool | None = None, at_once: int = 1, elsewhere: Elsewhere | None = None
) -> None:
    """Run what is missing, and write the figures and the page. The other arguments are those of `fill`."""
    failures = fill(wanted, shared=shared, at_once=at_once, elsewhere=elsewhere)
    report(wanted, command)
    if failures:
        raise NumericalFailure(f"not everything could be run: {'; '.join(failures)}")


def fill(
    wanted: Plan,
    train: Train = runner.train,
    say: Say = print,
    shared: bool | None = None,
    at_once: int = 1,
    elsewhere: Elsewhere | None = None,
) -> list[str]:
    """Run what is missing, and return the failures. If a block fails, the others continue.

    `shared` says whether blocks that differ only in numbers run in one program (None: only on an accelerator). If there
    are several jobs and `elsewhere` is given, it runs `at_once` of them at a time.
    """
    with _alone(wanted):
        missing = [block for arm in wanted.arms for block in missing_blocks(wanted, arm, say)]
        backend = jax.default_backend()
        jobs = together.alike(missing, backend != "cpu" if shared is None else shared)
        apart = elsewhere is not None and len(jobs) > 1
        _announce(wanted, missing, jobs, at_once if apart else 1, say)
        if elsewhere is not None and apart:
            return [f"{name}: {why}" for name, why in elsewhere(longest_first(jobs, backend)).items()]
        return _one_after_the_other(jobs, len(missing), train, say)


def longest_first(jobs: Sequence[list[Block]], backend: str) -> list[list[Block]]:
    """Jobs in the order in which several processes finish soonest."""
    return sorted(jobs, key=lambda job: sum(_parts([job], backend)[0]), reverse=True)


def _one_after_the_other(jobs: Sequence[Sequence[Block]], count: int, train: Train, say: Say) -> list[str]:
    failures: list[str] = []
    begun = 0
    for job in jobs:
        for block in job:
            begun += 1
            seeds = f"seeds {block.seeds.start} to {block.seeds.stop - 1}"
            say(f"[{begun} of {count}] {block.arm.title}, {seeds}")
        for block, error in _do(job, train, say):
            say(f"{block.folder} failed: {error}")
            failures.append(f"{block.arm.name}: {error}")
    return failures


def _do(job: Sequence[Block], train: Train, say: Say) -> list[tuple[Block, NumericalFailure]]:
    """Run blocks, in one program if there are several, and return those that failed."""
    if len(job) == 1:
        try:
            train(job[0].experiment, job[0].folder)
        except NumericalFailure as error:
            return [(job[0], error)]
        return []
    held: dict[Path, Block] = {}
    opened: list[opening.Opened] = []
    try:
        for block in job:
            entered = opening.enter(block.experiment, block.folder, say)
            if isinstance(entered, opening.Opened):
                opened.append(entered)
                held[entered.record.folder] = block
    except BaseException:
        for one in opened:
            one.record.close("interrupted")
        raise
    failed: list[tuple[Block, NumericalFailure]] = []
    title = f"{len(job)} arms in one program; shown: {job[0].arm.title}"
    for folder, error in together.train(opened, title=title).items():
        if isinstance(error, NumericalFailure):
            failed.append((held[folder], error))
        elif error is not None:
            raise error
    return failed


def distinct(chosen: Sequence[Study]) -> list[Arm]:
    """The arms of the studies, without repetitions."""
    return list({arm.name: arm for study in chosen for arm in study.arms}.values())


# What is there, and what is missing.


def experiment_of(arm: Arm, scale: Scale, first: int, count: int) -> Experiment:
    """The run of an arm on consecutive seeds. It keeps only its newest checkpoint."""
    epochs = int(arm.options["epochs"])
    changes = {
        **scale.options.get(arm.algorithm, {}),
        **arm.options,
        "seed": first,
        "seeds": count,
        "checkpoint_every": epochs,
        "keep": 1,
    }
    found = settings.make_experiment(arm.algorithm, ENVIRONMENT, changes, "paper")
    return dataclasses.replace(found, note=scale.note)


def missing_blocks(wanted: Plan, arm: Arm, say: Say = print) -> list[Block]:
    """The blocks that an arm still needs: unfinished ones, which continue, and new ones.

    Folders that are neither finished nor able to continue are deleted.
    """
    have: set[int] = set()
    found = []
    for folder in _block_folders(wanted.out, arm):
        seeds = blocks.seeds_of(folder)
        experiment = experiment_of(arm, wanted.scale, seeds.start, len(seeds))
        reason = blocks.unfinished(folder, experiment)
        if reason in blocks.GOING_ON:
            say(f"{folder}: {reason}; it goes on where it was.")
            found.append(Block(arm, experiment, folder))
        elif reason:
            say(f"{folder}: {reason}; it is removed and run again.")
            shutil.rmtree(folder)
            continue
        have |= set(seeds)
    for first, size in blocks.gaps([seed for seed in range(wanted.seeds) if seed not in have]):
        folder = blocks.folder_of(_folder(wanted.out, arm), first, size)
        found.append(Block(arm, experiment_of(arm, wanted.scale, first, size), folder))
    return found


def finished_run(out: Path, arm: Arm, count: int) -> Run | None:
    """The finished seeds of an arm below `count`, as one run; None if there are none."""
    ended = [folder for folder in _block_folders(out, arm) if blocks.ended(folder)]
    parts = [comparison.take(runs.read(folder), range(count)) for folder in ended]
    parts = [part for part in parts if part.seeds]
    return comparison.join(parts) if parts else None


def _folder(out: Path, arm: Arm) -> Path:
    return out / "runs" / arm.name


def _block_folders(out: Path, arm: Arm) -> list[Path]:
    return blocks.folders(_folder(out, arm))


@contextlib.contextmanager
def _alone(wanted: Plan) -> Iterator[None]:
    """Lock the folder against other processes, and check that it has this configuration."""
    page = wanted.out / "study.json"
    with blocks.alone(page, "study's folder", "apdo reproduce"):
        every = {arm.name: experiment_of(arm, wanted.scale, 0, 1) for arm in wanted.arms}
        blocks.remember(page, {"scale": wanted.scale.name}, every)
        yield


# Running.


@dataclasses.dataclass(frozen=True)
class Speed:
    """The speed of a kind of machine, for an estimate of the time."""

    what: str
    steps: float
    """Environment steps per second, of all seeds together."""
    iteration: float
    """Seconds of one primal-dual DDPG iteration."""
    together: bool
    """Whether the iterations of several seeds run at the same time."""
    compilation: float
    """Seconds to compile a program."""


SPEEDS = {
    "cpu": Speed("a CPU with two cores", steps=100_000, iteration=4e-4, together=False, compilation=12),
    "gpu": Speed("a GPU (H200)", steps=14e6, iteration=1.4e-4, together=True, compilation=14),
}


def seconds_for(jobs: Sequence[Sequence[Block]], backend: str, at_once: int = 1) -> float:
    """About how long jobs take if `at_once` of them run at a time, the longest first.

    Learners and the compiler leave most of a machine free for other jobs; sampling does not.
    """
    parts = _parts(jobs, backend)
    ends = [0.0] * at_once
    for seconds in sorted((sum(part) for part in parts), reverse=True):
        ends[ends.index(min(ends))] += seconds
    return max(*ends, sum(filling for filling, _ in parts))


def _parts(jobs: Sequence[Sequence[Block]], backend: str) -> list[tuple[float, float]]:
    """About how long each job takes: the seconds that fill the machine, and the seconds that do not."""
    speed = SPEEDS.get(backend, SPEEDS["gpu"])
    found, compiled = [], set()
    for job in jobs:
        arms, seeds = [block.arm for block in job], [len(block.seeds) for block in job]
        sampled = [n * int(a.options["epochs"]) * int(a.options["batch"]) for a, n in zip(arms, seeds, strict=True)]
        iterations = int(arms[0].options.get("off_policy.iterations", 0))
        # Runs with fixed multipliers share a program. Everything else is compiled again, an adjustment separately.
        first, programs = arms[0], len({arm.options.get("k_adj") for arm in arms})
        program = (first.name.split("-")[0] if first.options.get("dual_step") == 0.0 else first.name, *seeds)
        other = speed.compilation * (0.2 if program in compiled else programs) * (1.6 if iterations else 1.0)
        other += iterations * speed.iteration * (1 if speed.together else sum(seeds))
        found.append((sum(sampled) / speed.steps, other))
        compiled.add(program)
    return found


def _announce(wanted: Plan, missing: Sequence[Block], jobs: Sequence[Sequence[Block]], at_once: int, say: Say) -> None:
    if wanted.scale.note:
        say(wanted.scale.note)
    done = len(wanted.arms) - len({block.arm.name for block in missing})
    seeds = f"{wanted.seeds} seed{'s' * (wanted.seeds > 1)} each"
    say(f"{len(wanted.arms)} arms with {seeds}, into {wanted.out}; {done} of them are finished already.")
    if not missing:
        return
    for block in missing:
        sizes = f"{block.arm.options['epochs']} epochs of {block.arm.options['batch']:,}"
        say(f"  {block.arm.name:12}  seeds {block.seeds.start} to {block.seeds.stop - 1}, {sizes}")
    backend = jax.default_backend()
    speed = SPEEDS.get(backend, SPEEDS["gpu"])
    if wanted.scale.name == "full" and backend == "cpu":
        say("JAX sees no GPU here, so this runs on the CPU. `--scale small` is a miniature for that.")
    time, how = _duration(seconds_for(jobs, backend, at_once)), f", {at_once} jobs at once" if at_once > 1 else ""
    say(f"about {time} on {speed.what}{how}; an interrupted batch goes on where it was.")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


# What comes out.


def report(wanted: Plan, command: str, say: Say = print) -> None:
    """Write figures, `results.json` and the page, for every study whose arms are all finished in the folder."""
    out, scale = wanted.out, wanted.scale
    every = studies(scale)
    found = {arm.name: finished_run(out, arm, wanted.seeds) for arm in distinct(list(every.values()))}
    known = {name: run for name, run in found.items() if run is not None}
    complete = [study for study in every.values() if all(arm.name in known for arm in study.arms)]
    if not complete:
        say(f"{out} has no finished study yet, so that there is nothing to report.")
        return
    used = {arm.name: arm for arm in distinct(complete)}
    optimal = _optimal(every["lambda-star"], complete, known, scale)
    band = None if optimal is None else (optimal.estimate.low, optimal.estimate.high)
    for study in complete:
        members = [known[arm.name] for arm in study.arms]
        names = [arm.title for arm in study.arms]
        title = f"{study.title} (miniature)" if scale.note else study.title
        files = plot.plot(members, out / study.name, title, band=band, names=names)
        say(f"picture: {', '.join(str(file) for file in files)}")
    arms = {
        name: page.Arm(arm.title, known[name], comparison.summarise(known[name], TARGET, optimal))
        for name, arm in used.items()
    }
    tried = every["step-size"].arms
    steps = {
        algorithm: {float(arm.options["dual_step"]): arm.name for arm in tried if arm.algorithm == algorithm}
        for algorithm in ("pdo", "apdo")
    }
    document = page.Document(
        title="Accelerated primal-dual policy optimisation, reproduced",
        note=scale.note,
        arms=arms,
        figures=tuple(
            page.Figure(s.name, s.title, s.text, tuple(arm.name for arm in s.arms), s.colours, s.name == "lambda-star")
            for s in complete
        ),
        target=TARGET,
        optimal=optimal,
        claims=tuple(claims.claims({name: known[name] for name in used}, TARGET, optimal, steps)),
        facts=_facts(out, used.values(), command),
    )
    page.write_results(document, out / "results.json")
    written = page.write(document, out / "report.html")
    say(f"numbers: {out / 'results.json'}")
    say(f"page:    {written}")


def _optimal(
    study: Study, complete: Sequence[Study], known: Mapping[str, Run], scale: Scale
) -> OptimalMultiplier | None:
    if study not in complete:
        return None
    fixed = {float(arm.options["initial_multiplier"]): known[arm.name] for arm in study.arms}
    return comparison.optimal_multiplier(fixed, scale.settled)


def _facts(out: Path, arms: Iterable[Arm], command: str) -> tuple[tuple[str, str], ...]:
    """The origin of the numbers."""
    descriptions = [
        runs.read_description(folder) for arm in arms for folder in _block_folders(out, arm) if blocks.ended(folder)
    ]
    wall = sum(page.wall_seconds(description) for description in descriptions)
    return (
        ("command", command),
        ("wall time of all blocks", _duration(wall)),
        ("made", datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")),
        *page.provenance(descriptions),
    )
