"""The curves on the algorithms' pages: return and cost on the comparison's tasks, and the command that made them."""

import shlex
from pathlib import Path

from apdo.algorithms import ALGORITHMS
from benchmarks import safety_report as report
from benchmarks.safety import RESULTS, Job, Study, length

FOLDER = Path("docs/algorithms")
MARK = "curves"
NOT_COMPARED = "It is not part of [the comparison](../comparison.md): APDO has it as its estimator of multipliers."


def page_of(name: str) -> str:
    """The page that describes what is compared under a name."""
    plain = name.removesuffix("-1m")
    return "wrappers" if plain not in ALGORITHMS else "aliases" if ALGORITHMS[plain].options else plain


def pages(study: Study) -> dict[str, list[str]]:
    """Every page ↦ the compared names that belong to it."""
    found: dict[str, list[str]] = {page_of(name): [] for name in ALGORITHMS}
    for name in study.algorithms:
        found.setdefault(page_of(name), []).append(name)
    return found


def picture_of(page: str, out: Path) -> Path:
    """The file of a page's picture."""
    return out / f"curves-{page}.svg"


def command(name: str) -> str:
    """The command that makes such a run, for any task and seed."""
    job = Job("point-goal-1", name, 0, length("point-goal-1", name))
    given = {key.replace("_", "-"): value for key, value in job.options.items() if key != "seed"}
    words = ["apdo", "train", job.entry.algorithm, "TASK"]
    return shlex.join([*words, *(word for key, value in given.items() for word in (f"--{key}", str(value)))])


def text(page: str, study: Study, out: Path) -> str:
    """The text about the curves on a page."""
    names = pages(study)[page]
    if not names:
        return NOT_COMPARED
    commands = "\n".join(f"{command(name)} --seed SEED" for name in names)
    told = f"```\n{commands}\n```"
    if not any(report.gather(task, out, names) for task in study.tasks):
        return f"Not run yet:\n\n{told}"
    picture = f"![return and cost of {page}](../../{picture_of(page, RESULTS).as_posix()})"
    words = "Mean over seeds, from the lowest to the highest; the dashed line is the limit. All figures are in"
    return f"{picture}\n\n{words} [the comparison](../comparison.md).\n\n{told}"


def draw(page: str, study: Study, out: Path) -> None:
    """Draw the return above and the cost below, in a column for each task that was run."""
    import matplotlib
    from matplotlib.figure import Figure

    from apdo.report import plot

    names = pages(study)[page]
    found = {task: seeds for task in study.tasks if (seeds := report.gather(task, out, names))}
    with matplotlib.rc_context(plot.LOOK):
        figure = Figure(figsize=(4.6 * len(found) + 0.6, 6.2), layout="constrained")
        panels = figure.subplots(2, len(found), squeeze=False)
        for column, (task, gathered) in zip(panels.T, found.items(), strict=True):
            for name, seeds in gathered.items():
                report.lines(column, seeds, plot.COLOURS[names.index(name)], name.removesuffix("-1m"))
            report.finish(column, task)
        if len(names) > 1:
            shown = {
                label: line
                for panel in panels[0]
                for line, label in zip(*panel.get_legend_handles_labels(), strict=True)
            }
            figure.legend(
                list(shown.values()), list(shown), loc="outside lower center", ncols=len(shown), frameon=False
            )
        plot.write(figure, picture_of(page, out))


def draw_all(study: Study, out: Path) -> None:
    """Draw a picture for each page that has runs."""
    for page, names in pages(study).items():
        if any(report.gather(task, out, names) for task in study.tasks):
            draw(page, study, out)
