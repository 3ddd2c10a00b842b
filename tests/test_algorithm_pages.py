"""docs/algorithms.md and its pages: what they list is what the code has, and their links and commands work."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from benchmarks import algorithm_pages

from apdo import options
from apdo.algorithms import ALGORITHMS
from apdo.experiment import settings

ROOT = Path(__file__).parent.parent
SECTIONS = ["Equations", "When to use it", "Deviations, and what the paper leaves open", "Curves", "Options", "Metrics"]


@pytest.fixture(scope="module")
def pages():
    return algorithm_pages.pages()


def test_every_page_has_the_tables_that_the_code_gives(pages):
    """`make algorithm-pages` writes them."""
    for page, tables in pages.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        for name, table in tables.items():
            assert f"<!-- {name} -->\n{table}\n<!-- /{name} -->" in text, f"{page}: {name}"


@pytest.mark.parametrize("name", algorithm_pages.OWN)
def test_a_page_has_every_option_that_a_run_takes_with_the_default_that_it_has(name):
    text = (ROOT / f"docs/algorithms/{name}.md").read_text(encoding="utf-8")
    for option, value in options.flatten(settings.defaults(name)).items():
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
        assert f"| `--{option.replace('_', '-')}` | {shown} |" in text, option


@pytest.mark.parametrize("name", algorithm_pages.OWN)
def test_every_algorithm_has_a_page_that_says_all_there_is_to_say(name):
    text = (ROOT / f"docs/algorithms/{name}.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    what = text.split("\n\n")[1]
    assert len(re.findall(r"[.](?:\s|$)", what)) >= 3, "what it does, in three sentences"


def test_there_are_no_pages_but_those_of_algorithms_aliases_and_wrappers():
    found = {path.stem for path in (ROOT / "docs/algorithms").iterdir()}
    assert found == {*algorithm_pages.OWN, "aliases", "wrappers"}


def test_the_index_recommends_only_what_there_is_and_leaves_nothing_out():
    text = (ROOT / algorithm_pages.INDEX).read_text(encoding="utf-8")
    table = text[text.index("## Which one") : text.index("## Every name")]
    recommended = set(re.findall(r"\[`([a-z0-9-]+)`\]", table))
    assert recommended <= set(ALGORITHMS)
    assert recommended >= set(algorithm_pages.OWN)


def commands():
    for path in sorted((ROOT / "docs/algorithms").glob("*.md")):
        for block in re.findall(r"```sh\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
            yield from block.strip().splitlines()


@pytest.mark.parametrize("line", list(commands()))
def test_the_commands_of_the_pages_are_ones(line):
    program, verb, algorithm, environment, *words = shlex.split(line)
    assert (program, verb) == ("apdo", "train")
    if environment[0].isupper():
        pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    pairs = zip(words[::2], words[1::2], strict=True)
    changes: dict[str, Any] = {name.removeprefix("--").replace("-", "_"): value for name, value in pairs}
    if "limit" in changes:
        changes["limits"] = float(changes.pop("limit"))
    settings.make_experiment(algorithm, environment, changes).problem()


def anchor(heading):
    """The name that a heading has in a link."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def documents():
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_within_the_documentation_lead_somewhere(path):
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]*[.#/][^)\s]*)\)", text):
        if "://" in target:
            continue
        file, _, part = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), f"{target}: there is no such file"
        if part:
            headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            assert part in map(anchor, headings), f"{target}: there is no such heading"
