"""Random command lines and run descriptions: each runs, or gives one sentence and exit status 2; never a traceback."""

import contextlib
import io
import json
import os
import random
import shutil
import signal
import sys
from pathlib import Path

from benchmarks.torture import common

JUNK = ["", " ", "-", "--", "nan", "NaN", "inf", "-inf", "1e400", "-1", "0", "1e-400", "٣", "0x10", "1_0", "true", "no"]
JUNK += ["None", "[]", "{}", "1,2,,3", ",", "1;2", "é", "\u202e", "../..", "/dev/null", "a\nb", "9" * 400, "x" * 3000]
LARGE = ["2147483647", "2147483648", "1e12", "99999999999999999999", "1e30", "1e38"]
SMALL = ["1", "2", "3", "0.5", "0.01", "1.0", "1,2", "8", "4,4", "ppo", "natural", "reinforce", "combined", "starts"]
SMALL += ["total", "gaussian", "paper", "demo", "0.2"]
COSTLY = ("epochs", "batch", "seeds", "passes", "minibatches", "iterations", "trials", "updates", "environments")
COSTLY += ("hidden", "minibatch", "preset", "capacity", "checkpoint-every")
"""Options that decide how much work a run is: no values between a little and too much."""
PATIENCE = 120


def torture(count: int, jobs: int, work: Path, report: common.Report, seed: int) -> None:
    common.spread("commands", count, jobs, work, report, seed)


def work_off(work: Path, job: int, count: int, seed: int) -> None:
    rng = random.Random(f"{seed} {job}")
    place = work / "commands" / str(job)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    reference = work / "reference"
    names = option_names()
    results, sys.stdout = sys.stdout, io.StringIO()
    os.chdir(place)
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("no answer")))
    for i in range(count):
        is_file = rng.random() < 0.3
        arguments = described(rng, reference, place / str(i)) if is_file else line(rng, names, place / str(i))
        status, said, problem = call(arguments)
        kind = "descriptions" if is_file else "lines"
        told = {"done": 1, "problems": problem, kind: 1, f"exit status {status}": 1}
        if said and status == 2 and i % 50 == 0:
            told["example"] = f"{' '.join(map(repr, arguments))[:200]} -> {said.strip()[:200]}"
        print(json.dumps(told), file=results, flush=True)
        for left in place.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def call(arguments):
    from apdo import cli

    out, error, problem, status = io.StringIO(), io.StringIO(), [], 0
    signal.alarm(PATIENCE)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            cli.main(list(arguments))
    except SystemExit as stop:
        status = stop.code
    except BaseException as fault:
        status, problem = "traceback", [f"{type(fault).__name__}: {fault}"[:300]]
    finally:
        signal.alarm(0)
    said = error.getvalue()
    sentence = status == 0 or (said.startswith("apdo: ") and said.count("\n") == 1) or status == 1
    if status not in (0, 1, 2, 3) or not sentence:
        problem.append(f"status {status}, said {said[-300:]!r}")
    return status, said, [f"{' '.join(map(repr, arguments))[:600]}: {text}" for text in problem]


def option_names():
    from apdo import algorithms, envs, options
    from apdo.experiment import settings

    names = {}
    for name in algorithms.ALGORITHMS:
        parts = (settings.Settings(), algorithms.find(name).Config(), envs.find("point-gather")())
        names[name] = [option.replace("_", "-") for part in parts for option in options.flatten(part)]
    return names


def value(rng, name: str) -> str:
    costly = any(word in name for word in COSTLY)
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(JUNK)
    if kind < 0.5:
        return rng.choice(LARGE)
    return rng.choice(["0", "-3", "1", "2"]) if costly else rng.choice(SMALL)


def line(rng, names, out: Path):
    """Words that look like a command line, most of them train; one that can run is a run of a moment."""
    command = rng.choices(
        ["train", "evaluate", "resume", "rerun", "plot", "report", "reproduce", "list", "junk"],
        [70, 5, 5, 5, 4, 4, 3, 2, 2],
    )[0]
    if command == "junk":
        return [rng.choice([*JUNK, "trian", "help", "-h", "--version", "train"]) for _ in range(rng.randrange(4))]
    if command == "reproduce":  # never one that is whole: it would run for hours
        return ["reproduce", "--scale", rng.choice([*JUNK, "smal"])]
    if command != "train":
        known = ["--episodes", "--seed", "--out", "--title", "--epochs", "--quiet", "--seeds"]
        words = [rng.choice([rng.choice(known), rng.choice(JUNK), rng.choice(LARGE)]) for _ in range(rng.randrange(4))]
        return [command, *words]
    algorithm = rng.choice([*names, *names, *names, rng.choice(JUNK)])
    words = ["train", algorithm, rng.choice(["point-gather"] * 9 + ["point-gahter", *JUNK[:3]])]
    words += [*common.ALGORITHMS.get(algorithm, []), "--epochs", "1", "--batch", "30", "--quiet", "--out", str(out)]
    if algorithm == "apdo":
        words += ["--k-adj", "0", "--off-policy.iterations", "100"]
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        option = rng.choice(names.get(algorithm, ["epochs"]))
        spelt = f"--{option}" if rng.random() < 0.9 else rng.choice(["-", "--no-", "---", "--settings."]) + option[1:]
        chosen = value(rng, option)
        words += rng.choice([[f"{spelt}={chosen}"], [spelt, chosen], [spelt, chosen], [spelt]])
    return words


def described(rng, reference: Path, folder: Path):
    """A command on a run folder whose description a stranger has written; its checksum is right."""
    from apdo import files

    algorithm = rng.choice(list(common.ALGORITHMS))
    shutil.copytree(reference / algorithm, folder, ignore=shutil.ignore_patterns("epoch-0000[012]*"))
    content = json.loads((folder / "run.json").read_text())
    for _ in range(rng.choice([1, 1, 2])):
        mutate(rng, content)
    text = files.seal_page(content) if rng.random() < 0.8 else json.dumps(content)
    (folder / "run.json").write_text(text)
    more = {"evaluate": ["--episodes", "2"], "resume": ["--quiet"], "report": ["--out", f"{folder}.html"]}
    more |= {"plot": ["--out", f"{folder}.svg"]}
    command = rng.choices(["evaluate", "resume", "report", "plot"], [5, 3, 1, 1])[0]
    return [command, str(folder), *more[command]]


def mutate(rng, content) -> None:
    """Change one entry somewhere, or drop it; nothing that makes an honest run longer."""
    while True:
        name = rng.choice(list(content))
        if isinstance(content[name], dict) and content[name] and rng.random() < 0.8:
            content = content[name]
            continue
        break
    strange = [None, True, -1, 0, 2**31, 2**64, 10**400, 1e308, "", "../../x", [], {}, [[]], [0] * 100, "x" * 5000]
    strange += [float("nan"), float("inf"), [1, "a"], {"a": {"b": {}}}, -0.5]
    if rng.random() < 0.15:
        del content[name]
    else:
        content[name] = rng.choice(strange)


if __name__ == "__main__":
    work_off(Path(sys.argv[1]), *(int(word) for word in sys.argv[2:5]))
