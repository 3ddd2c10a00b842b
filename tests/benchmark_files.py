"""Made-up files of the benchmark's results, and readers of its documents, for tests."""

import re

from benchmarks import safety


def seed(earned, cost, samples=10_000_000, **more):
    """The filed result of a seed whose return and cost are the same from beginning to end."""
    end = {"return": earned, "cost": cost, "multiplier": 0.5}
    curve = {"samples": [samples // 2, samples], **{name: [value] * 2 for name, value in end.items()}}
    marks = [mark for mark in (1_000_000, 10_000_000) if mark <= samples]
    told = {"samples": samples, "seconds": 600, "cores": 1, "device": "cpu: cpu", "differs": {}, "curve": curve}
    return told | {"ends": {str(mark): end for mark in marks}} | more


def file(out, task, algorithm, *seeds):
    for i, one in enumerate(seeds):
        safety.add(safety.Job(task, algorithm, i, 10_000_000), one, out)


def cells(text, first):
    [line] = [line for line in text.splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def between(document, names):
    """The text between each name's marks in a document."""
    text = document.read_text(encoding="utf-8")
    return {name: re.findall(f"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", text, re.DOTALL)[0] for name in names}
