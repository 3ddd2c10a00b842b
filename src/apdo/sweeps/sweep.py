"""Runs a sweep from its plan to its results: an executor does what is missing, watched through the run folders.

    OUT/sweep.json      every setting's configuration
    OUT/runs/SETTING/seeds-000-003/     run folders (`experiment.blocks`)
    OUT/results.csv, .parquet, curves-*.png, options-*.png, report.html
    OUT/logs/           the output of the processes that ran

The folder is all that is kept. Started again, a sweep does only what is missing. Finished runs are not run again, and
seeds and settings can be added. Runs that failed are left as they are, unless `retry` is asked for.
"""

import dataclasses
import html
import math
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from apdo.errors import InvalidInput, unknown
from apdo.experiment import blocks, together
from apdo.experiment.mirrors import Watch
from apdo.experiment.progress import duration
from apdo.experiment.reproduce import SPEEDS
from apdo.experiment.settings import Experiment
from apdo.report import page, results, runs
from apdo.report.results import Entry
from apdo.sweeps import driving, local
from apdo.sweeps.local import Executor
from apdo.sweeps.plan import Setting, Sweep, expand, short_names

PAGE = "sweep.json"
ENDED = ("finished", "stopped")
_MOST_ON_PAGE = 200
_MOST_SHOWN = 60
"""The most rows of the table in a notebook."""
_LISTED = 12
_MOST_TOGETHER = 256
"""The most runs of one job."""
_HOST_STEPS = 5_000
"""The steps per second that an estimate of the time assumes for an environment outside JAX."""
Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Block:
    """Consecutive seeds of a setting: one run."""

    setting: Setting
    experiment: Experiment
    folder: Path

    @property
    def name(self) -> str:
        """The setting's name and the seeds."""
        return f"{self.setting.name}/{self.folder.name}"


@dataclasses.dataclass(frozen=True)
class Options:
    """How a sweep is carried out; no result depends on it."""

    out: Path
    jobs: int | None = None
    """Processes at once; None: what suits the machine."""
    together: bool | None = None
    """Whether settings that differ only in numbers share a program; None: only on an accelerator."""
    retry: bool = False
    quiet: bool = False
    command: str = "apdo sweep"
    """What the user can type to continue the sweep."""
    watch: Watch = dataclasses.field(default_factory=Watch)


@dataclasses.dataclass(frozen=True, repr=False)
class SweepResult:
    """The results of a sweep: its table, its failures and its files."""

    path: Path
    rows: list[dict[str, Any]]
    """The table of results, with a row for each setting and seed."""
    failures: dict[str, str]
    """The reason of each run that failed, by the run's name."""
    files: list[Path]

    def __repr__(self) -> str:
        settings = len({row["setting"] for row in self.rows})
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"<Sweep: {len(self.rows)} runs of {settings} settings{failed}, in {self.path}>"

    def _repr_html_(self) -> str:
        """The table for notebooks. Names are escaped."""
        columns = list(dict.fromkeys(name for row in self.rows for name in row if name != "error"))
        head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
        lines = ["".join(f"<td>{_cell(row.get(name))}</td>" for name in columns) for row in self.rows[:_MOST_SHOWN]]
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<div><strong>{html.escape(repr(self)[1:-1])}</strong><table><tr>{head}</tr>{body}</table></div>"


def _cell(value: object) -> str:
    shown = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return html.escape(shown)


# What is there, and what is missing.


@dataclasses.dataclass(frozen=True)
class SweepState:
    """The state of a sweep's folder."""

    missing: list[Block]
    ended: int
    """How many runs are over."""
    failed: dict[str, str]
    """The reasons of the runs that failed and are not run again, by name."""


def sweep_state(
    sweep: Sweep, settings: Sequence[Setting], options: Options, say: Say, remove: bool = True
) -> SweepState:
    """Find what the folder has and what is missing. Runs that are neither finished nor able to continue are deleted."""
    missing: list[Block] = []
    ended, failed = 0, {}
    for setting in settings:
        have: set[int] = set()
        parent = options.out / "runs" / setting.name
        for folder in blocks.folders(parent):
            seeds = blocks.seeds_of(folder)
            block = Block(setting, setting.with_seeds(seeds.start, len(seeds)), folder)
            reason = blocks.unfinished(folder, block.experiment)
            if reason == "failed" and not options.retry:
                failed[block.name] = str(runs.read_description(folder).get("error") or "it failed.")
            elif reason in ("failed", *blocks.GOING_ON):
                missing.append(block)
            elif reason not in ("", "stopped"):
                say(f"{folder}: {reason}; it is removed and run again.")
                if remove:
                    shutil.rmtree(folder)
                continue
            else:
                ended += 1
            have |= set(seeds)
        wanted = [seed for seed in range(sweep.seed, sweep.seed + sweep.seeds) if seed not in have]
        for first, size in _cut(blocks.gaps(wanted), sweep.block):
            missing.append(Block(setting, setting.with_seeds(first, size), blocks.folder_of(parent, first, size)))
    return SweepState(missing, ended, failed)


def _cut(stretches: Sequence[tuple[int, int]], most: int) -> Iterator[tuple[int, int]]:
    for first, size in stretches:
        for start in range(0, size, most or size):
            yield first + start, min(most or size, size - start)


def announce(
    settings: Sequence[Setting], state: SweepState, options: Options, backend: str, at_once: int, say: Say
) -> None:
    """Say what will be done, and about how long it takes."""
    total = len(state.missing) + state.ended + len(state.failed)
    plural = "s" * (len(settings) != 1)
    say(f"{len(settings)} setting{plural}, {total} runs: {state.ended} done, {len(state.missing)} to do.")
    for name, why in state.failed.items():
        say(f"  failed before, and left so without --retry: {name}: {why}")
    for block in state.missing[:_LISTED]:
        own = block.experiment.settings
        seeds = f"seed {own.seed}" if own.seeds == 1 else f"seeds {own.seed} to {own.seed + own.seeds - 1}"
        say(f"  {block.setting.name}  {seeds}, {own.epochs} epochs of {own.batch:,}")
    if len(state.missing) > _LISTED:
        say(f"  and {len(state.missing) - _LISTED} more")
    if state.missing:
        kind = SPEEDS.get(backend, SPEEDS["gpu"]).what
        jobs = jobs_of(state.missing, options, backend, at_once)
        say(f"about {duration(seconds_for(jobs, backend, at_once))} on {kind}, {at_once} at once.")


def seconds_for(jobs: Sequence[Sequence[Block]], backend: str, at_once: int) -> float:
    """A rough estimate of the time that jobs take, before any of them has begun."""
    speed = SPEEDS.get(backend, SPEEDS["gpu"])
    total, compiled = 0.0, set()
    for job in jobs:
        first = job[0]
        hosted = hasattr(type(first.experiment.environment_config), "action_meaning")
        total += sum(driving.samples(block) for block in job) / (_HOST_STEPS if hosted else speed.steps)
        work = getattr(first.experiment.algorithm_config, "off_policy", None)
        rows = 1 if speed.together else sum(block.experiment.settings.seeds for block in job)
        total += getattr(work, "iterations", 0) * rows * speed.iteration
        total += speed.compilation * (0.2 if first.setting.name in compiled else 1.0)
        compiled.add(first.setting.name)
    return total / max(1, min(at_once, len(jobs)))


# Running.


def run(sweep: Sweep, options: Options, begin: Callable[[], Executor] | None = None) -> SweepResult:
    """Do what is missing, and write the results. `begin` makes an executor; without it, processes of this machine."""
    settings = expand(sweep)
    with blocks.alone(options.out / PAGE, "sweep's folder", "apdo sweep"):
        say = _sayer(options)
        blocks.remember(options.out / PAGE, {}, {setting.name: setting.experiment for setting in settings})
        state = sweep_state(sweep, settings, options, say)
        failed = dict(state.failed)
        if state.missing:
            pool = begin() if begin else local.Pool(options.out / "logs", options.jobs)
            try:
                backend, count = getattr(pool, "backend", "cpu"), getattr(pool, "count", 1)
                announce(settings, state, options, backend, count, say)
                failed |= _driver(state, options, pool, backend, count).drive()
            finally:
                pool.close()
        else:
            say(f"all {state.ended + len(state.failed)} runs are over already.")
        return report(settings, options, failed, say)


PLACES = ("local", "ray", "slurm")
_MEANT_FOR = {"address": ("ray",), "cpus": ("ray", "slurm"), "gpus": ("ray", "slurm")}
_MEANT_FOR |= {"partition": ("slurm",), "minutes": ("slurm",)}


def executor(out: Path, on: str | None = None, **given: str | float | None) -> Callable[[], Executor] | None:
    """A function that starts the executor when there are jobs; None for processes of this machine.

    `given` may have an address, cpus, gpus, a partition and minutes, if the place to run on knows them.
    """
    if on not in (None, *PLACES):
        raise unknown("place to run on", on, PLACES)
    for name, value in given.items():
        if value is not None and on not in _MEANT_FOR[name]:
            raise InvalidInput(f"--{name} is for {' and '.join(f'--on {place}' for place in _MEANT_FOR[name])}.")
    numbers = {name: given.get(name) for name in ("cpus", "gpus", "minutes")}
    cpus, gpus, minutes = (None if value is None else _positive(name, value) for name, value in numbers.items())
    if on == "ray":
        from apdo.sweeps.cluster import Cluster

        address = given.get("address")
        return lambda: Cluster(out / PAGE, None if address is None else str(address), cpus or 1.0, gpus)
    if on == "slurm":
        from apdo.sweeps.slurm import MINUTES, Slurm

        partition = given.get("partition")
        named = None if partition is None else str(partition)
        return lambda: Slurm(out / PAGE, cpus or 1.0, gpus, named, int(minutes or MINUTES))
    return None


def _positive(name: str, value: float | str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0.0 <= number < math.inf:
        raise InvalidInput(f"--{name} must be a number that is not negative, not {value!r}.")
    return number


def dry_run(sweep: Sweep, options: Options) -> None:
    """Say what a sweep would do, without making, changing or deleting a file."""
    settings = expand(sweep)
    state = sweep_state(sweep, settings, options, print, remove=False)
    import jax

    backend = jax.default_backend()
    at_once = options.jobs or local.fitting(backend, jax.device_count())
    announce(settings, state, options, backend, at_once, print)
    print("nothing was run (--dry-run).")


def _driver(state: SweepState, options: Options, executor: Executor, backend: str, count: int) -> driving.Driver:
    return driving.Driver(
        jobs_of(state.missing, options, backend, count),
        executor,
        title=f"sweep {options.out}",
        command=options.command,
        ended=state.ended,
        failed=len(state.failed),
        quiet=options.quiet,
        watch=options.watch,
    )


def jobs_of(missing: Sequence[Block], options: Options, backend: str, count: int) -> list[list[Block]]:
    """The runs as jobs. Runs that may share a program are divided into about `count` jobs; others are alone."""
    shared = backend != "cpu" if options.together is None else options.together
    found = []
    for group in together.alike(missing, shared):
        size = min(_MOST_TOGETHER, -(-len(group) // count))
        found += [group[i : i + size] for i in range(0, len(group), size)]
    return found


def _sayer(options: Options) -> Say:
    return lambda text: None if options.quiet else print(text, flush=True)


# What comes out.


def report(settings: Sequence[Setting], options: Options, failed: Mapping[str, str], say: Say) -> SweepResult:
    """Write the table, the pictures and the page, from all that the folder has of these settings."""
    out, files = options.out, []
    entries = [entry_of(setting, out, failed) for setting in settings]
    rows = results.rows(entries)
    with_run = [entry for entry in entries if entry.run is not None]
    if rows:
        files += results.write_table(rows, out / "results")
    if with_run:
        names = short_names(name for setting in settings for name in setting.varied)
        files += results.draw(with_run, out, names)
    if 0 < len(with_run) <= _MOST_ON_PAGE:
        folders = [f for s in settings for f in blocks.folders(out / "runs" / s.name) if blocks.ended(f, ENDED)]
        if folders:
            files.append(page.write(page.of_runs(folders, options.command), out / "report.html"))
    elif with_run:
        say(f"no page: {len(with_run)} settings are more than {_MOST_ON_PAGE}; `apdo report` takes a choice of runs.")
    for file in files:
        say(f"results: {file}")
    if failed:
        say(f"{len(failed)} runs failed:")
        for name, why in failed.items():
            say(f"  {name}: {why}")
    return SweepResult(out, rows, dict(failed), files)


def entry_of(setting: Setting, out: Path, failed: Mapping[str, str]) -> Entry:
    """The results of a setting so far."""
    parent = out / "runs" / setting.name
    reasons = {name.split("/")[-1]: why for name, why in failed.items() if name.split("/")[0] == setting.name}
    by_seed = {seed: why for name, why in reasons.items() for seed in blocks.seeds_of(Path(name))}
    return Entry(
        name=setting.name,
        algorithm=setting.experiment.algorithm,
        environment=setting.experiment.environment,
        varied=setting.varied,
        run=results.joined([folder for folder in blocks.folders(parent) if blocks.ended(folder, (*ENDED, "failed"))]),
        failed=by_seed,
    )


def default_out(file: Path | None) -> Path:
    """The default folder of a sweep."""
    if file is None:
        raise InvalidInput("a sweep without a file needs --out, the folder that it goes into.")
    return Path("runs") / file.stem


def command(words: Sequence[str]) -> str:
    """The command that continues a sweep."""
    return shlex.join(["apdo", "sweep", *words])
