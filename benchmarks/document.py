"""Tables that benchmarks write into documents, each between its own marks."""

from pathlib import Path


def fill(document: Path, tables: dict[str, str]) -> None:
    """Put each table between `<!-- name -->` and `<!-- /name -->`."""
    text = document.read_text(encoding="utf-8")
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        assert begin in text, f"{document} has no place for the table {name}"
        head, rest = text.split(begin, 1)
        text = f"{head}{begin}\n{table}\n{end}{rest.split(end, 1)[1]}"
    document.write_text(text, encoding="utf-8")


def table(heading: list[str], *rows: list[str]) -> str:
    """A Markdown table of these cells."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heading, ["---"] * len(heading), *rows))
