"""The command line.

    apdo train ALGORITHM ENVIRONMENT [options]
    apdo resume RUN
    apdo rerun RUN
    apdo evaluate RUN
    apdo export RUN FILE
    apdo plot RUN...
    apdo report RUN...
    apdo reproduce [STUDY]
    apdo sweep FILE
    apdo watch RUN_OR_SWEEP
    apdo solve FILE
    apdo dual RUN_OR_FILE
    apdo list

Options and their help come from the configurations themselves (`apdo.options`). JAX is imported only by commands that
compute, so that `--help` and mistakes in a name answer at once.
"""

import dataclasses
import errno
import os
import shlex
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apdo import __version__, own
from apdo import algorithms as naming
from apdo.algorithms import ALGORITHMS, stands_for
from apdo.envs import ENVIRONMENTS, check_name, is_gymnasium_id
from apdo.errors import EnvironmentFailure, Interrupted, InvalidInput, NumericalFailure, StorageFailure, unknown
from apdo.options import TRUTH

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from apdo.experiment.evaluation import Estimate, Evaluation
    from apdo.experiment.mirrors import Watch
    from apdo.experiment.runner import Result
    from apdo.policy import Policy

USAGE = """\
apdo: constrained reinforcement learning in JAX

  apdo train ALGORITHM ENVIRONMENT [options]   train, with a live display, into a run folder
  apdo resume RUN [options]                    go on with a run that was interrupted
  apdo rerun RUN [options]                     run a run's experiment again, and compare
  apdo evaluate RUN [options]                  play fresh episodes with the policies of a run
  apdo export RUN FILE [options]               the policy of a run as a plain .npz or as ONNX
  apdo plot RUN... [options]                   return, cost and multiplier as a picture
  apdo report RUN... [options]                 the same and its statistics, as a page for the browser
  apdo reproduce [STUDY] [options]             the paper's experiments with statistics, as a resumable batch
  apdo sweep FILE [options]                    many runs as one: grids, random draws, seeds; resumable
  apdo watch RUN_OR_SWEEP [options]            follow running runs, on the terminal or on a page
  apdo solve FILE [options]                    the exact optimum of a finite CMDP, with multipliers and proof
  apdo dual RUN_OR_FILE [options]              what each limit costs, estimated from logged data alone
  apdo list                                    algorithms, environments, presets
  apdo --version

  apdo COMMAND --help says what a command takes, with every default and where it comes from.

  for instance: apdo train apdo point-gather --seeds 8 --k-adj 5
"""

TRAIN_USAGE = """\
apdo train ALGORITHM ENVIRONMENT [options]

  Trains and writes a run folder: run.json, metrics.jsonl (a line per epoch and seed), checkpoints/, curves.png,
  curves.svg.

  --preset NAME            options by the set: {presets}
  --out DIR                the run folder (default: runs/ALGORITHM-ENVIRONMENT-TIME); must not exist
  --resume                 go on with the run that is in DIR, if there is one of the same configuration
  --tensorboard            also write event files for TensorBoard (pip install 'apdo[tensorboard]')
  --wandb PROJECT          also log to Weights & Biases (pip install 'apdo[wandb]')
  --stop-within N          stop when every cost has been within its limit for N epochs
  --quiet                  no display

  ENVIRONMENT is one of `apdo list`, or a Gymnasium id (pip install 'apdo[gymnasium]'), with a cost where it reports
  none: apdo train apdo Pendulum-v1 --cost 'abs(obs[2]) > 4' --limit 25. --cost may be repeated.

  Either may be your own: mine.py, or mine.py:name for what the file calls name (docs/own-algorithm.md).

  SIGTERM and Ctrl-C finish the epoch, save, and say how to go on; a second Ctrl-C stops at once.
"""

RESUME_USAGE = """\
apdo resume RUN [options]

  Goes on with a run that was interrupted, killed or damaged, from its newest whole checkpoint. On the same machine with
  the same versions the result is, bit for bit, that of the run that was never interrupted.

  --epochs N               train for longer than was planned
  --quiet                  no display
"""

RERUN_USAGE = """\
apdo rerun RUN [options]

  Runs the experiment that run.json describes again, into another folder, and says whether every metric of every epoch
  came out the same. Exit status 1 if not.

  --out DIR                the other folder (default: RUN-again); must not exist
  --quiet                  no display
"""

EVALUATE_USAGE = """\
apdo evaluate RUN [options]

  Plays fresh episodes with the policies of a run, with and without their exploration side by side. Prints means with
  95 % confidence intervals and, for each limit, whether the mean cost is under it: yes or no with 95 % confidence, or
  undecided, and then about how many episodes would decide. p is the probability that it is, by Student's t. A seed's
  policy is the best that training has met: of those whose costs its own samples show to be within the limits (95 %),
  the one with the highest return.

  --newest                 the policies after the last epoch instead
  --episodes N             episodes for each policy and mode (default: 1000)
  --seed N                 which fresh episodes (default: 0)
  --deterministic          only without exploration
  --stochastic             only with exploration
  --video FILE             a .gif, or an .mp4 where ffmpeg is there, of a few episodes of the first policy; with
                           exploration unless --deterministic
"""

EXPORT_USAGE = """\
apdo export RUN FILE [options]

  Writes the policy of a run to FILE: a plain .npz, which numpy alone can use, or .onnx, which needs the extra
  apdo[onnx] to write. docs/policies.md shows how to read both. It is the best policy that training has met: of those
  that are known to keep the limits, the one with the highest return.

  --newest                 the policy after the last epoch instead
  --seed N                 whose policy (default: the run's first seed)
"""

PLOT_USAGE = """\
apdo plot RUN... [options]

  Draws return, cost with its limit and multiplier of one run or several: the interquartile mean over seeds, its 95 %
  bootstrap interval, and every seed faintly.

  --out FILE               a .png, .svg or .pdf file, or a name without ending for .png and .svg (default: curves)
  --title TEXT             printed above
"""

REPORT_USAGE = """\
apdo report RUN... [options]

  Writes one self-contained HTML page about runs, grouped by environment and algorithm: curves to look into, what the
  seeds came to, every setting. A folder that holds run folders stands for all of them; runs that differ only in their
  seeds are taken together.

  --out FILE               the page (default: report.html)
"""

REPRODUCE_USAGE = """\
apdo reproduce [fig1|fig2|step-size|lambda-star|all] [options]

  Runs the paper's experiments on point-gather and writes pictures (PNG, SVG), results.json and report.html:
  APDO against PDO and CPO (fig1), when to adjust (fig2), the step of dual ascent (step-size), the optimal multiplier by
  holding it fixed (lambda-star), or all of them (the default). What is finished in the folder is not run again; more
  seeds are added to those that are there.

  --seeds N                independent repetitions (default: 10; small: 3)
  --scale full|small       the paper's sizes, or a miniature for two cores that ends within ten minutes (default: full)
  --together true|false    whether arms that differ in numbers only (the step of dual ascent, the multiplier that is
                           held fixed) run in one program (default: on an accelerator)
  --out DIR                where runs and results go (default: runs/reproduce-SCALE)
"""

SWEEP_USAGE = """\
apdo sweep FILE [options]
apdo sweep ALGORITHMS ENVIRONMENTS --out DIR [options]

  Runs algorithms × environments × options × seeds, as a TOML file or the command line says, and writes run folders,
  results.csv (and .parquet with pyarrow), pictures and report.html. docs/sweeps.md describes the file. What is finished
  in the folder is not run again: a sweep that was stopped goes on, and settings and seeds can be added.

  --grid NAME=V,V,...      values of an option, every combination; with spaces between values that hold commas:
                           --grid 'policy.hidden=64,32 32,16'. May be repeated
  --draw NAME=LOW:HIGH     random values of an option; NAME=log:LOW:HIGH on a logarithmic scale. May be repeated
  --draws N                how many random settings for each point of the grid
  --seeds N                independent repetitions of every setting, in one program
  --seed N                 the first seed
  --block N                the most seeds of one run; the others become runs of their own (default: all in one)
  --preset NAME            as for apdo train
  --NAME VALUE             any other option of apdo train, the same for all
  --out DIR                where everything goes (default: the file's `out`, or runs/FILE)
  --jobs N                 runs at once, each in a process of its own (default: what suits the machine)
  --together true|false    whether runs that differ in numbers only (limits, rates, …) share one program (default: on
                           an accelerator)
  --on local|ray|slurm     who does it: processes of this machine, Ray (pip install 'apdo[ray]'), or Slurm
                           (pip install 'apdo[slurm]')
  --address HOST:PORT      of a Ray cluster that is there already (default: one on this machine, for this sweep)
  --cpus N, --gpus N       what Ray or Slurm sets apart for each job (default: 1 CPU; with Ray, a GPU where there are
                           any, and none with Slurm)
  --partition NAME, --minutes N    Slurm's partition, and the time limit of a job (default: a day)
  --retry                  also go on with runs that failed
  --dry-run                only say what would be done, and about how long it takes
  --tensorboard, --wandb PROJECT, --stop-within N    for every run, as for apdo train
  --quiet                  no display

  SIGTERM and Ctrl-C save every run and say how to go on. Exit status 1 if a run has failed; the others go on.
"""

WATCH_USAGE = """\
apdo watch RUN_OR_SWEEP [options]

  Follows a run, or all runs of a folder, until they are over. It only reads, and may be called from anywhere that the
  folder is to be seen from.

  --page PORT              also show curves on http://127.0.0.1:PORT/; 0 takes a free port
  --once                   say how things stand, and end
"""

SOLVE_USAGE = """\
apdo solve FILE [options]

  Solves a finite CMDP exactly. FILE is an .npz of named arrays (docs/ground-truth.md says which). Prints the optimal
  return, costs, multipliers, policy and the certificate of optimality; writes all of it to PREFIX.npz and the optimal
  return against each limit to PREFIX.png and PREFIX.svg. Limits that no policy keeps are an error (exit status 2) that
  says what the least costs are; a certificate that does not hold is one too (exit status 3).

  --limits D,D,...         other limits than the file's, one for each constraint
  --out PREFIX             where the results go (default: FILE without its ending, and -optimum)
"""

DUAL_USAGE = """\
apdo dual RUN_OR_FILE [options]

  Estimates the optimal multipliers, what one more unit of each limit is worth in return, from logged transitions alone:
  the buffer in a run's newest checkpoint (apdo, pd-ddpg, sac-lag), or a .npz or .parquet file of your own, of which
  docs/dual-estimation.md says what is in it. Prints the estimate, a 90 % interval, and checks: critics against logged
  episodes, the learners against each other, actors against logged actions. Where the data cannot support an answer it
  says "unsupported", and why; the exit status is 0 then too.

  --out PREFIX             also write PREFIX.json, PREFIX.png and PREFIX.svg
  --export FILE            write the data to FILE, .npz or .parquet, and estimate nothing
  --run-seed N             whose buffer, where a run has several seeds (default: the first)
  --quiet                  no display while it works
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point.

    Exit status 0 also for a run that was asked to stop and has saved itself; 1 for a file that could not be written, an
    environment that broke its contract in the middle of a run and a rerun that came out differently, 2 for what cannot
    be done, 3 for a numerical failure, 130 for an interruption.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    # So that an environment in a module beside the user is found; behind everything else, so that it replaces nothing.
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    try:
        _dispatch(given)
    except InvalidInput as error:
        _stop(f"apdo: {error}", 2)
    except NumericalFailure as error:
        _stop(f"apdo: {error}", 3)
    except EnvironmentFailure as error:
        sys.stderr.write(error.trace)
        _stop(f"apdo: {error}", 1)
    except StorageFailure as error:
        _stop(f"apdo: {error}", 1)
    except Interrupted as stopped:
        _stop(f"apdo: {stopped}", 0)
    except KeyboardInterrupt:
        _stop("apdo: interrupted.", 130)
    except BrokenPipeError:
        sys.stderr.close()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _stop(f"apdo: {where}{(error.strerror or str(error)).lower()}.", 1 if error.errno in _FULL_DISK else 2)


_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _stop(message: str, status: int) -> None:
    # One line, whatever a name may hold.
    print(" ".join(message.split()), file=sys.stderr)
    sys.exit(status)


def _dispatch(given: list[str]) -> None:
    if not given or given[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return
    if given[0] == "--version":
        print(f"apdo {__version__}")
        return
    command, rest = given[0], given[1:]
    if command not in COMMANDS:
        raise unknown("command", command, COMMANDS)
    COMMANDS[command](rest)


def _train(given: list[str]) -> None:
    given = [own.whole(word) for word in given[:2]] + given[2:]
    names = [word for word in given if not word.startswith("-")][:2]
    wants_help = any(word in ("-h", "--help") for word in given)
    if wants_help and (not given or given[0].startswith("-")):
        print(_train_usage() + "\n  Give an algorithm (and an environment) before --help to see all options:")
        print(_table(_algorithm_rows()))
        return
    if given and not given[0].startswith("-"):
        naming.check_name(given[0])
    if wants_help:
        environment = names[1] if len(names) > 1 and _is_environment(names[1]) else next(iter(ENVIRONMENTS))
        print(_train_usage() + _options_help(given[0], environment), end="")
        return
    if len(given) < 2 or given[0].startswith("-") or given[1].startswith("-"):
        raise InvalidInput("train needs an algorithm and an environment first, as in: apdo train apdo point-gather.")
    algorithm, environment, rest = given[0], given[1], given[2:]
    check_name(environment)
    from apdo import envs
    from apdo.experiment import settings

    switches = [
        name
        for config in (settings.Settings(), settings.defaults(algorithm), envs.find(environment)())
        for name, option in _switches(config)
    ]
    changes = _pairs(rest, flags={"quiet", "resume", "tensorboard", *switches})
    callbacks = _watch(changes).callbacks()
    preset, out, quiet = changes.pop("preset", None), changes.pop("out", None), changes.pop("quiet", False)
    goes_on = changes.pop("resume", False)
    experiment = settings.specify(algorithm, environment, changes, preset)
    folder = Path(out) if out else None
    if goes_on and folder is None:
        raise InvalidInput("--resume needs --out, the folder of the run to go on with.")
    if not goes_on:
        _check_new(folder)
    from apdo.experiment import runner

    if experiment.note and not quiet:
        print(experiment.note)
    if goes_on and folder is not None:
        result = runner.train(experiment, folder, bool(quiet), callbacks)
    else:
        result = runner.run(experiment, folder, bool(quiet), callbacks)
    _tell(result, bool(quiet))


def _watch(changes: dict[str, Any]) -> "Watch":
    """How runs are to be watched; taken out of the options."""
    from apdo.experiment.mirrors import Watch

    wandb = changes.pop("wandb", "")
    if wandb is None:
        raise InvalidInput("--wandb needs the name of a project.")
    stop = {"stop-within": changes.pop("stop_within", 0)}
    return Watch(bool(changes.pop("tensorboard", False)), str(wandb), _count(stop, "stop-within", 0))


def _is_environment(name: str) -> bool:
    return name in ENVIRONMENTS or is_gymnasium_id(name) or own.is_file(name)


def _tell(result: "Result", quiet: bool) -> None:
    """Draw the picture of a run, and say where everything is."""
    pictures = _draw([result.path], result.path / "curves", None)
    if not quiet:
        print(f"results: {result.path} (run.json, metrics.jsonl, checkpoints)")
        print(f"picture: {', '.join(str(picture) for picture in pictures)}")
        for one in result.best:
            print(f"best:    seed {one.seed}, {one.words()}: {one.figures()}")
        print(f"next:    apdo evaluate {result.path}")


def _resume(given: list[str]) -> None:
    if any(word in ("-h", "--help") for word in given):
        print(RESUME_USAGE, end="")
        return
    if not given or given[0].startswith("-"):
        raise InvalidInput("resume needs a run folder, as in: apdo resume runs/demo.")
    changes = _pairs(given[1:], flags={"quiet"}, known=("epochs", "quiet"))
    epochs = _count(changes, "epochs", 0) if "epochs" in changes else None
    quiet = bool(changes.get("quiet", False))
    from apdo.report import runs

    runs.read_description(Path(given[0]))
    from apdo.experiment import runner

    _tell(runner.resume(Path(given[0]), quiet, epochs), quiet)


def _rerun(given: list[str]) -> None:
    if any(word in ("-h", "--help") for word in given):
        print(RERUN_USAGE, end="")
        return
    if not given or given[0].startswith("-"):
        raise InvalidInput("rerun needs a run folder, as in: apdo rerun runs/demo.")
    changes = _pairs(given[1:], flags={"quiet"}, known=("out", "quiet"))
    folder = Path(given[0])
    out = Path(changes["out"]) if "out" in changes else folder.resolve().parent / f"{folder.resolve().name}-again"
    from apdo.report import runs

    runs.read_description(folder)
    _check_new(out)
    from apdo.experiment import rerun

    matched, said = rerun.rerun(folder, out, quiet=bool(changes.get("quiet", False)))
    print(said)
    if not matched:
        sys.exit(1)


def _check_new(folder: Path | None) -> None:
    try:
        taken = folder is not None and folder.exists()
    except (OSError, ValueError) as error:
        raise InvalidInput(f"--out {str(folder)!r} cannot be a folder: {error}.") from None
    if taken:
        raise InvalidInput(f"the run folder {folder} exists already; choose another with --out or remove it.")


def _evaluate(given: list[str]) -> None:
    if any(word in ("-h", "--help") for word in given):
        print(EVALUATE_USAGE, end="")
        return
    if not given or given[0].startswith("-"):
        raise InvalidInput("evaluate needs a run folder, as in: apdo evaluate runs/demo.")
    flags = ("deterministic", "newest", "stochastic")
    changes = _pairs(given[1:], flags=set(flags), known=("episodes", "seed", "video", *flags))
    episodes, seed = _count(changes, "episodes", 1000), _count(changes, "seed", 0)
    both = ["stochastic", "deterministic"]
    modes = [mode for mode in both if changes.get(mode)] or both
    from apdo.report import runs

    runs.read_description(Path(given[0]))
    from apdo.experiment import chosen, evaluation, film

    experiment, training, state = evaluation.load_run(given[0])
    video = Path(changes["video"]) if "video" in changes else None
    if video is not None:
        film.check(video, training.environment)
    seeds, newest = evaluation.seeds_of(experiment), bool(changes.get("newest"))
    policies = chosen.policies(training, seeds, state, newest)
    print(f"{experiment.algorithm} on {experiment.environment}, {episodes} fresh episodes each, 95 % intervals")
    best = [] if newest else chosen.found(training, seeds, state)
    for i, policy in enumerate(policies):
        print(f"seed {seeds[i]}: {_which(policy)}")
        if best:
            print(f"  training saw: {best[i].figures()}")
        found = [evaluation.evaluate(policy, training, episodes, mode == "deterministic", seed) for mode in modes]
        limits = zip(training.environment.cost_names, training.problem.limits, strict=True)
        print(_columns([("", modes), *_findings(found, list(limits))]))
    if video is not None:
        count = film.film(policies[0], training, video, modes[0] == "deterministic", seed)
        print(f"video: {video} ({count} episode{'s' * (count > 1)} of seed {seeds[0]}, {modes[0]})")


def _findings(found: "Sequence[Evaluation]", limits: Sequence[tuple[str, float]]) -> list[tuple[str, list[str]]]:
    """Return, costs and verdicts of evaluations side by side."""
    rows = [("return", [_interval(one.undiscounted_return) for one in found])]
    for j, (name, limit) in enumerate(limits):
        costs = [one.constrained_cost[j] for one in found]
        rows.append((f"{name} (limit {limit:g})", [_interval(cost) for cost in costs]))
        rows.append(("  under the limit?", [_verdict(cost, limit) for cost in costs]))
    return rows


def _which(policy: "Policy") -> str:
    """Which policy of its run it is, and how to get the other one."""
    return policy.about + ("" if policy.about.startswith("the newest") else "; --newest takes the last one")


def _interval(estimate: "Estimate") -> str:
    return f"{estimate.mean:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def _verdict(cost: "Estimate", limit: float) -> str:
    verdict = cost.verdict(limit)
    needed = f", about {verdict.deciding:,} episodes would decide" if verdict.deciding else ""
    return f"{verdict.holds} (p = {verdict.probability:.3f}{needed})"


def _columns(rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Names on the left, and the entries of each row below each other."""
    first = max(len(name) for name, _ in rows) + 3
    widths = [max(len(entry) for entry in column) for column in zip(*(entries for _, entries in rows), strict=True)]
    lines = []
    for name, entries in rows:
        shown = "   ".join(entry.ljust(width) for entry, width in zip(entries, widths, strict=True))
        lines.append(f"  {name:<{first}}{shown}".rstrip())
    return "\n".join(lines)


def _export(given: list[str]) -> None:
    if any(word in ("-h", "--help") for word in given):
        print(EXPORT_USAGE, end="")
        return
    if len(given) < 2 or given[0].startswith("-") or given[1].startswith("-"):
        raise InvalidInput("export needs a run folder and a file, as in: apdo export runs/demo policy.npz.")
    changes = _pairs(given[2:], flags={"newest"}, known=("seed", "newest"))
    seed = _count(changes, "seed", 0) if "seed" in changes else None
    from apdo.report import runs

    runs.read_description(Path(given[0]))
    import apdo

    policy = apdo.load(given[0], seed, newest=bool(changes.get("newest")))
    policy.save(given[1])
    print(f"{given[1]}: {_which(policy)}")


def _plot(given: list[str]) -> None:
    if any(word in ("-h", "--help") for word in given):
        print(PLOT_USAGE, end="")
        return
    first_option = next((i for i, word in enumerate(given) if word.startswith("-")), len(given))
    folders, changes = given[:first_option], _pairs(given[first_option:], known=("out", "title"))
    if not folders:
        raise InvalidInput("plot needs at least one run folder, as in: apdo plot runs/demo.")
    for picture in _draw(
        [Path(folder) for folder in folders], Path(changes.get("out", "curves")), changes.get("title")
    ):
        print(picture)


def _draw(folders: list[Path], out: Path, title: str | None) -> list[Path]:
    from apdo.report import plot, runs

    return plot.plot([runs.read(folder) for folder in folders], out, title)


def _report(given: list[str]) -> None:
    if any(word in ("-h", "--help") for word in given):
        print(REPORT_USAGE, end="")
        return
    first_option = next((i for i, word in enumerate(given) if word.startswith("-")), len(given))
    folders, changes = given[:first_option], _pairs(given[first_option:], known=("out",))
    from apdo.report import page

    document = page.of_runs([Path(folder) for folder in folders], shlex.join(["apdo", "report", *given]))
    print(page.write(document, Path(changes.get("out", "report.html"))))


def _reproduce(given: list[str]) -> None:
    if any(word in ("-h", "--help") for word in given):
        print(REPRODUCE_USAGE, end="")
        return
    named = bool(given) and not given[0].startswith("-")
    changes = _pairs(given[named:], known=("seeds", "scale", "together", "out"))
    together = _truth(changes, "together")
    seeds = _count(changes, "seeds", 0) if "seeds" in changes else None
    out = Path(changes["out"]) if "out" in changes else None
    from apdo.experiment import reproduce

    wanted = reproduce.plan(given[0] if named else "all", seeds, changes.get("scale", "full"), out)
    command = shlex.join(["apdo", "reproduce", *given])
    try:
        reproduce.reproduce(wanted, command, together)
    except Interrupted as stopped:
        before, _, _ = str(stopped).partition(" Go on with:")
        raise Interrupted(f"{before} Go on with: {command}") from None


def _sweep(given: list[str]) -> None:
    if any(word in ("-h", "--help") for word in given):
        print(SWEEP_USAGE, end="")
        return
    first_option = next((i for i, word in enumerate(given) if word.startswith("-")), len(given))
    names, flags = given[:first_option], {"dry_run", "quiet", "retry", "tensorboard"}
    if len(names) not in (1, 2):
        raise InvalidInput("sweep needs a TOML file, or algorithms and environments, as in: apdo sweep study.toml.")
    changes = _pairs(given[first_option:], flags=flags)
    for name, value in changes.items():
        if value is None:
            raise InvalidInput(f"--{name} needs a value.")
    dry, quiet, retry = (bool(changes.pop(flag, False)) for flag in ("dry_run", "quiet", "retry"))
    jobs = _count(changes, "jobs", 0) or None
    changes.pop("jobs", None)
    together, watched = _truth(changes, "together"), _watch(changes)
    watched.callbacks()  # an extra that is missing is told of now
    from apdo.sweeps import plan, sweep

    file = Path(names[0]) if len(names) == 1 else None
    on = {name: changes.pop(name, None) for name in ("on", "address", "cpus", "gpus", "partition", "minutes")}
    wanted = plan.amended(plan.read(file) if file else plan.of_names(*names), changes)
    out = Path(wanted.out) if wanted.out else sweep.default_out(file)
    chosen = sweep.Options(out, jobs, together, retry, quiet, sweep.command(given), watched)
    if dry:
        sweep.dry_run(wanted, chosen)
        return
    if sweep.run(wanted, chosen, sweep.executor(out, **on)).failures:
        sys.exit(1)


def _watch_runs(given: list[str]) -> None:
    if any(word in ("-h", "--help") for word in given):
        print(WATCH_USAGE, end="")
        return
    if not given or given[0].startswith("-"):
        raise InvalidInput("watch needs a folder of a run or of a sweep, as in: apdo watch runs/demo.")
    changes = _pairs(given[1:], flags={"once"}, known=("page", "once"))
    from apdo.sweeps import watching

    port = _count(changes, "page", 0) if "page" in changes else None
    watching.watch(Path(given[0]), port, once=bool(changes.get("once")))


def _solve(given: list[str]) -> None:
    if any(word in ("-h", "--help") for word in given):
        print(SOLVE_USAGE, end="")
        return
    if not given or given[0].startswith("-"):
        raise InvalidInput("solve needs a file with a finite CMDP, as in: apdo solve problem.npz.")
    file = Path(given[0])
    changes = _pairs(given[1:], known=("limits", "out"))
    out = Path(changes.get("out", file.parent / f"{file.stem}-optimum"))
    if not out.name:
        raise InvalidInput(f"--out {changes.get('out')!r} is no name for the results; try --out optimum.")
    results = out.with_name(f"{out.name}.npz")
    if results.resolve() == file.resolve():
        raise InvalidInput(f"the results would replace the problem {file}; choose another --out.")
    from apdo import exact

    cmdp = exact.load(file)
    if "limits" in changes:
        cmdp = cmdp.with_limits(_numbers(changes, "limits"))
    optimum = exact.solve(cmdp)
    print("\n".join(exact.describe(cmdp, optimum)))
    exact.save_solution(optimum, results)
    print(f"\nresults: {results}")
    if cmdp.constraints:
        from apdo.report import trade_off

        curves = [
            trade_off.Curve(
                name=cmdp.cost_names[i],
                limits=curve.limits,
                values=curve.values,
                multipliers=curve.multipliers[:, i],
                limit=float(cmdp.limits[i]),
                value=optimum.value,
                multiplier=float(optimum.multiplier_low[i]),
            )
            for i, curve in enumerate(exact.trade_offs(cmdp, gap=1e-5))
        ]
        pictures = trade_off.plot(curves, out, f"{file.stem}: the price of each limit")
        print(f"picture: {', '.join(str(picture) for picture in pictures)}")
    if not optimum.certificate.holds:
        raise NumericalFailure("the certificate does not hold, so that the optimum is not proved to the tolerance.")


def _dual(given: list[str]) -> None:
    wants_help = any(word in ("-h", "--help") for word in given)
    if not wants_help and (not given or given[0].startswith("-")):
        raise InvalidInput("dual needs a run folder or a file of logged data first, as in: apdo dual runs/demo.")
    from apdo.experiment import multipliers

    if wants_help:
        print(f"{DUAL_USAGE}\n{_table(_rows(multipliers.Config()))}")
        return
    switches = [name for name, _ in _switches(multipliers.Config())]
    changes = _pairs(given[1:], flags={"quiet", *switches})
    quiet, out, export = bool(changes.pop("quiet", False)), changes.pop("out", ""), changes.pop("export", "")
    for name, value in {"out": out, "export": export}.items():
        if value is None:
            raise InvalidInput(f"--{name} needs a value.")
    run_seed = _count({"run-seed": changes.pop("run_seed")}, "run-seed", 0) if "run_seed" in changes else None
    multipliers.configure(changes)
    if export:
        from apdo import datasets

        data, _ = multipliers.open_source(given[0], run_seed)
        datasets.save(data, export)
        print(f"{export}: {data.samples:,} transitions of {data.episodes:,} episodes")
        return
    prefix = Path(out) if out else None
    if prefix is not None and not prefix.parent.is_dir():
        raise InvalidInput(f"the folder {prefix.parent} for {prefix.name} does not exist.")
    found = multipliers.estimate(given[0], changes, run_seed=run_seed, quiet=quiet)
    print("\n".join(found.describe()))
    if prefix is not None:
        from apdo.report import multipliers as drawing

        results = drawing.save(found.plain(), prefix)
        pictures = drawing.plot(found.plain(), prefix, f"{Path(given[0]).name}: what each limit costs")
        print(f"\nresults: {results}\npicture: {', '.join(str(picture) for picture in pictures)}")


def _list(given: list[str]) -> None:
    if given and given[0] not in ("-h", "--help"):
        raise InvalidInput(f"list takes no arguments, and was given {given[0]!r}.")
    from apdo.experiment.presets import PRESETS

    print("algorithms\n" + _table(_algorithm_rows()))
    print("environments\n" + _table([(name, what) for name, (_, _, what) in ENVIRONMENTS.items()]))
    print("presets\n" + _table([(name, preset.what) for name, preset in PRESETS.items()]))


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "train": _train,
    "resume": _resume,
    "rerun": _rerun,
    "evaluate": _evaluate,
    "export": _export,
    "plot": _plot,
    "report": _report,
    "reproduce": _reproduce,
    "sweep": _sweep,
    "watch": _watch_runs,
    "solve": _solve,
    "dual": _dual,
    "list": _list,
}


_REPEATED = ("cost", "grid", "draw")
"""Options that may be given several times, and then hold all that was given."""


def _pairs(words: list[str], flags: set[str] | None = None, known: Sequence[str] | None = None) -> dict[str, Any]:
    """--name value, --name=value and, for flags, --name alone or --no-name, as a dictionary with "_" for "-".

    A flag may have its value after a space too.
    """
    pairs: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            raise InvalidInput(f"an option was expected where {word!r} stands; options begin with --.")
        name, has_value, value = word[2:].partition("=")
        name = name.replace("-", "_")
        if known is not None and name not in known:
            raise unknown("option", word, [f"--{option}" for option in known])
        before = pairs.get(name) if name in _REPEATED else None
        if has_value:
            pairs[name] = TRUTH.get(value.lower(), value) if flags and name in flags else value
        elif flags and name in flags:
            pairs[name] = TRUTH[rest.pop(0).lower()] if rest and rest[0].lower() in TRUTH else True
        elif flags and name.removeprefix("no_") in flags:
            pairs[name.removeprefix("no_")] = False
        elif rest and not rest[0].startswith("--"):
            pairs[name] = rest.pop(0)
        else:
            pairs[name] = None
        if isinstance(before, str) and isinstance(pairs[name], str):
            pairs[name] = f"{before}; {pairs[name]}"
    missing = [name for name, value in pairs.items() if value is None]
    if missing and known is not None:
        raise InvalidInput(f"--{missing[0]} needs a value.")
    return pairs


def _count(changes: dict[str, Any], name: str, default: int) -> int:
    value = changes.get(name, default)
    try:
        number = int(value)
    except ValueError:
        raise InvalidInput(f"--{name} must be a whole number, not {value!r}.") from None
    if number < 0:
        raise InvalidInput(f"--{name} must not be negative, and is {number}.")
    return number


def _truth(changes: dict[str, Any], name: str) -> bool | None:
    value = changes.pop(name, None)
    if value is not None and str(value).lower() not in TRUTH:
        raise InvalidInput(f"--{name} must be true or false, not {value!r}.")
    return None if value is None else TRUTH[str(value).lower()]


def _numbers(changes: dict[str, Any], name: str) -> list[float]:
    try:
        return [float(number) for number in changes[name].split(",")]
    except ValueError:
        raise InvalidInput(f"--{name} must be numbers with commas between them, not {changes[name]!r}.") from None


def _switches(config: "DataclassInstance", prefix: str = "") -> list[tuple[str, Any]]:
    found = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            found += _switches(value, f"{prefix}{field.name}.")
        elif isinstance(value, bool):
            found.append((prefix + field.name, field))
    return found


def _train_usage() -> str:
    from apdo.experiment.presets import PRESETS

    presets = "; ".join(f"{name} ({preset.what})" for name, preset in PRESETS.items())
    return TRAIN_USAGE.format(presets=textwrap.fill(presets, 90, subsequent_indent=" " * 27))


def _options_help(algorithm: str, environment: str) -> str:
    from apdo import envs
    from apdo.experiment.settings import Settings, defaults
    from apdo.options import override

    task, alias = envs.find(environment), stands_for(algorithm)
    sections = [
        ("the run", _rows(override(Settings(), getattr(task, "defaults", {})))),
        (
            f"{algorithm}, that is: {alias}" if alias else own.short(algorithm),
            _rows(defaults(algorithm), chooser=alias and algorithm),
        ),
        (own.short(environment), _rows(task())),
    ]
    return "".join(f"\n  {title}\n{_table(rows)}\n" for title, rows in sections)


def _algorithm_rows() -> list[tuple[str, str]]:
    """Every algorithm with what it is, and what an alias stands for."""
    told = ((name, found.what, stands_for(name)) for name, found in ALGORITHMS.items())
    return [(name, f"{what}: {alias}" if alias else what) for name, what, alias in told]


def _rows(config: "DataclassInstance", chooser: str = "") -> list[tuple[str, str]]:
    """Every option with its choices, and what is to be known of it."""
    from apdo import options

    return [
        (
            f"--{row.name}{' ' * bool(row.choices)}{'|'.join(row.choices)}",
            f"{row.meaning} [{row.default}; {row.source}]"
            + "".join(f" (with --{name} {kind})" for name, kind in row.given),
        )
        for row in options.rows(config, chooser)
    ]


def _table(rows: list[tuple[str, str]]) -> str:
    width = min(40, max(len(name) for name, _ in rows)) + 2
    lines = []
    for name, text in rows:
        wrapped = textwrap.wrap(text, 118 - width - 4) or [""]
        lines.append(
            f"    {name:<{width}}{wrapped[0]}" if len(name) < width else f"    {name}\n{' ' * (width + 4)}{wrapped[0]}"
        )
        lines += [" " * (width + 4) + line for line in wrapped[1:]]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
