"""Bytes of checkpoint, metrics and description files flipped, cut off or zeroed; nothing of it may be believed.

Each damage is made to a copy of a run, once finished and once interrupted. It counts as detected if what reads the file
says so, or if going on would begin before it. Whatever is used in spite of it, a state, rows, a policy, must be that of
the run left alone; some of the runs are taken to their end to make sure.
"""

import contextlib
import io
import json
import random
import shutil
import sys
from pathlib import Path

from benchmarks.torture import common

FULLY = 0.02
"""Share of the damaged runs that are taken to their end."""


def torture(count: int, jobs: int, work: Path, report: common.Report, seed: int) -> None:
    common.spread("damages", count, jobs, work, report, seed)


def work_off(work: Path, job: int, count: int, seed: int) -> None:
    rng = random.Random(f"{seed} {job}")
    sources = [Source(work, algorithm) for algorithm in common.ALGORITHMS]
    place = work / "damages" / str(job)
    for i in range(count):
        source = sources[i % len(sources)]
        shutil.rmtree(place, ignore_errors=True)
        finished = rng.random() < 0.5
        source.copy(place, finished)
        target = rng.choice(sorted(path for path in place.rglob("*") if path.suffix in (".npz", ".jsonl", ".json")))
        what = f"{source.algorithm}, {'finished' if finished else 'interrupted'}, {damage(target, rng)}"
        try:
            detected, problems = source.judge(place, target, fully=rng.random() < FULLY)
            problems += [] if detected else [f"{what}: not detected"]
        except Exception as error:
            problems = [f"{what}: {type(error).__name__}: {error}"]
        kind = {".npz": "checkpoints", ".jsonl": "metrics", ".json": "descriptions"}[target.suffix]
        print(json.dumps({"done": 1, "problems": problems, kind: 1}), flush=True)


def damage(path: Path, rng) -> str:
    """Change a file, for certain."""
    before = path.read_bytes()
    while True:
        data, kind = bytearray(before), rng.choice(["flip", "truncate", "zero"])
        at = rng.randrange(len(data))
        if kind == "flip":
            for place in {at, *(rng.randrange(len(data)) for _ in range(rng.choice([0, 0, 3, 7])))}:
                data[place] ^= rng.randrange(1, 256)
        elif kind == "truncate":
            del data[at:]
        else:
            end = min(len(data), at + rng.choice([1, 16, 512]))
            data[at:end] = bytes(end - at)
        if bytes(data) != before:
            path.write_bytes(data)
            return f"{kind} at {at} of {path.name}"


class Source:
    """An algorithm's run left alone, with all its checkpoints, and what is known of it."""

    def __init__(self, work: Path, algorithm: str) -> None:
        import jax

        from apdo import loop
        from apdo.experiment import checkpoint, opening, settings
        from apdo.report import runs

        self.algorithm, self.folder = algorithm, work / "reference" / algorithm
        self.description = runs.read_description(self.folder)
        self.training = opening.training_of(settings.Experiment.restore(self.description["config"]))
        self.like = jax.eval_shape(lambda: loop.start(self.training, self.description["seeds"]))
        self.rows = common.rows(self.folder)
        self.states = {epoch: common.arrays(path) for epoch, path in checkpoint.found(self.folder)}

    def copy(self, place: Path, finished: bool) -> None:
        """The run as it looks at its end, or in the middle: three checkpoints, rows a little ahead of them."""
        from apdo import files

        (place / "checkpoints").mkdir(parents=True)
        last = common.EPOCHS if finished else 20
        for epoch in (last - 7, last - 3, last):
            name = f"checkpoints/epoch-{epoch:06d}.npz"
            shutil.copy(self.folder / name, place / name)
        lines = (self.folder / "metrics.jsonl").read_text().splitlines(keepends=True)
        (place / "metrics.jsonl").write_text("".join(lines if finished else lines[: 2 * (last + 2)]))
        status = "finished" if finished else "interrupted"
        (place / "run.json").write_text(files.seal_page(self.description | {"status": status}))

    def judge(self, place: Path, target: Path, fully: bool):
        """Whether the damage was noticed, and what went wrong."""
        from apdo.errors import InvalidInput
        from apdo.experiment import checkpoint, evaluation, resume_point, runner
        from apdo.report import runs

        problems, said = [], []
        with contextlib.suppress(InvalidInput):  # a report shows right numbers, or none
            run = runs.read(place)
            for row in self.rows[: 2 * len(run.epochs)]:
                s = run.seeds.index(row["seed"])
                if run.metrics["return"][s, row["epoch"]] != row["return"]:
                    problems.append("a report used wrong numbers")
        with contextlib.suppress(InvalidInput):
            _, _, state = evaluation.load_run(place)
            problems += self._wrong(state, "an evaluation")
        try:
            description = runs.read_description(place)
        except InvalidInput:
            return True, problems
        detected = False
        if target.suffix == ".npz":
            try:
                checkpoint.load(target, self.like)
            except InvalidInput:
                detected = True
        size = target.stat().st_size
        point = resume_point.find(place, description, self.training, said.append)
        if point.state is not None:
            problems += self._wrong(point.state, "going on")
        kept = [row for epoch in point.rows for row in epoch]
        strip = [{name: value for name, value in row.items() if name != "seconds"} for row in kept]
        if strip != self.rows[: len(strip)]:
            problems.append("going on used wrong rows")
        detected = detected or bool(said)
        # Rows cut off between two lines look like rows that were never written; going on writes them.
        whole = (self.folder / "metrics.jsonl").stat().st_size
        detected = detected or (target.suffix == ".jsonl" and size < whole and point.epoch < common.EPOCHS)
        if fully:
            with contextlib.redirect_stderr(io.StringIO()):
                runner.resume(place, quiet=True)
            if differs := common.difference(place, self.folder):
                problems.append(f"taken to its end: {differs}")
        return detected, problems

    def _wrong(self, state, who: str):
        from apdo.experiment import checkpoint

        known = self.states[int(state.epoch)]
        same = all(checkpoint.to_numpy(leaf).tobytes() == known[name] for name, leaf in checkpoint.named(state))
        return [] if same else [f"{who} used a wrong state"]


if __name__ == "__main__":
    work_off(Path(sys.argv[1]), *(int(word) for word in sys.argv[2:5]))
