"""Imports point one way; algorithms are short; the library needs no optional package; starting is quick."""

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import apdo
from apdo.algorithms import ALGORITHMS

SOURCE = Path(apdo.__file__).parent
LAYERS = {
    "errors": set(),
    "options": {"errors"},
    "files": {"errors"},
    "npz": {"errors"},
    "datasets": {"errors", "files", "npz"},
    "own": {"errors"},
    "problem": {"errors"},
    "objective": {"core", "problem"},
    "finite": {"errors"},
    "exact": {"errors", "finite", "npz"},
    "core": {"errors", "options"},
    "off_policy": {"errors", "options", "problem", "objective", "core"},
    "algorithms": {"errors", "options", "own", "problem", "objective", "core", "off_policy"},
    "envs": {"errors", "options", "own"},
    "tasks": {"errors", "options", "finite", "exact", "envs"},
    "rollout": {"core", "envs"},
    "best": {"core", "problem", "objective"},
    "arguments": set(),
    "loop": {"arguments", "problem", "core", "algorithms", "envs", "rollout", "best"},
    "hosted": {"errors", "core", "algorithms", "envs", "best", "loop"},
    "export": {"errors", "files"},
    "policy": {"errors", "core", "envs", "export"},
    "report": {"errors", "files"},
    "experiment": {
        "errors",
        "files",
        "options",
        "own",
        "problem",
        "objective",
        "core",
        "off_policy",
        "algorithms",
        "envs",
        "tasks",
        "rollout",
        "best",
        "arguments",
        "loop",
        "hosted",
        "policy",
        "report",
        "datasets",
    },
    "sweeps": {"errors", "files", "options", "envs", "experiment", "report"},
    "__init__": {"errors", "options", "algorithms", "envs", "experiment", "policy", "datasets", "sweeps"},
    "cli": {
        "policy",
        "__init__",
        "datasets",
        "errors",
        "options",
        "own",
        "finite",
        "exact",
        "algorithms",
        "envs",
        "experiment",
        "report",
        "sweeps",
    },
}
"""What each part of the package may import, besides itself."""


def part_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_parts(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "apdo":
            parts = node.module.split(".")[1:]
            for name in [parts[0]] if parts else [alias.name for alias in node.names]:
                yield name if name in LAYERS else "__init__"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "apdo":
                    yield [*alias.name.split("."), "__init__"][1]


def test_imports_point_one_way():
    for path in SOURCE.rglob("*.py"):
        part = part_of(path)
        for other in imported_parts(path):
            assert other == part or other in LAYERS[part], f"{path.relative_to(SOURCE)} imports apdo.{other}"


def test_algorithms_do_not_know_environments_or_samplers():
    for path in (SOURCE / "algorithms").glob("*.py"):
        assert not {"envs", "tasks", "rollout", "loop"} & set(imported_parts(path)), path.name


POSES = {"problem.py", "objective.py", "experiment/settings.py", "experiment/multipliers.py", "experiment/buffers.py"}
"""What defines a problem's discounts and ends, or hands them from one description of a problem to another."""
RECORDS = {"experiment/opening.py"}


def test_discounts_and_ends_of_a_problem_are_interpreted_in_one_place():
    """Whoever else looked at them would have a copy of what is optimised."""
    parts = {"core", "off_policy", "algorithms", "best", "rollout", "loop", "hosted", "experiment", "cli"}
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        if part_of(path) in parts and name not in POSES | RECORDS:
            read = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
            assert not read & {"discount", "cost_discount", "truncates"}, name


def test_no_algorithm_has_more_than_140_lines():
    """It is to be read next to its paper; what has a job of its own has a file of its own."""
    for module in {entry.module for entry in ALGORITHMS.values()}:
        lines = (SOURCE / "algorithms" / f"{module}.py").read_text().splitlines()
        assert len(lines) <= 140, f"algorithms/{module}.py has {len(lines)} lines"


READING = {"cpo": (24, 2_700), "pdo": (30, 3_300), "focops": (28, 3_250), "sac_lag": (31, 3_850), "apdo": (53, 6_300)}
"""The most files and lines of the package that one reads to understand an algorithm whole (docs/design.md)."""


def imported_files(path):
    """The files of the package that a file imports from."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "apdo":
            module = SOURCE.joinpath(*node.module.split(".")[1:])
            for name in node.names:
                inner, outer = module / f"{name.name}.py", module.with_suffix(".py")
                yield inner if inner.exists() else outer if outer.exists() else module / "__init__.py"


def reading_list(path):
    """A file, and everything that it imports, directly or not."""
    found, left = set(), [path]
    while left:
        if (one := left.pop()) not in found:
            found.add(one)
            left += imported_files(one)
    return found


def test_the_reading_lists_of_algorithms_grow_no_longer():
    for name, (files, lines) in READING.items():
        found = reading_list(SOURCE / "algorithms" / f"{name}.py")
        assert len(found) <= files, f"{name}: {sorted(path.name for path in found)}"
        assert sum(len(path.read_text().splitlines()) for path in found) <= lines, name


def test_no_two_algorithms_have_six_lines_in_common():
    """Blank lines and imports do not count."""
    found = defaultdict(list)
    for path in (SOURCE / "algorithms").glob("*.py"):
        text = path.read_text()
        imports = (node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom))
        left_out = {line for node in imports for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
        lines = [line for i, line in enumerate(text.splitlines(), 1) if line.strip() and i not in left_out]
        for begin in range(len(lines) - 5):
            found[tuple(lines[begin : begin + 6])].append(path.name)
    assert not [places for places in found.values() if len(places) > 1]


def loaded_after(statement):
    code = f"import sys; {statement}; print(' '.join(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_and_its_command_line_loads_neither_jax_nor_matplotlib():
    assert not {"jax", "matplotlib", "rich"} & loaded_after("import apdo, apdo.cli")


def test_the_library_trains_without_matplotlib():
    assert not {"matplotlib", "tyro"} & loaded_after("import apdo.experiment.runner, apdo.experiment.evaluation")
