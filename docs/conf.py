"""How Sphinx builds the documentation site; `make docs` runs it, and every warning is an error."""

import re
from pathlib import Path

from sphinx.application import Sphinx

import apdo

HERE = Path(__file__).parent
ROOT = HERE.parent

project = "apdo"
author = "the authors of apdo"
project_copyright = author
version = release = apdo.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
root_doc = "index"
exclude_patterns = ["_build"]
# Annotations name classes as their modules do, and two modules may have a class of the same name.
suppress_warnings = ["ref.python"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 88
# Docstrings are plain text in which `name` is code.
default_role = "code"

copybutton_exclude = ".linenos, .gp, .go, .c1"

html_theme = "furo"
html_title = f"apdo {release}"
html_show_copyright = False
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)#\s]+)\)")


def _folders_are_not_pages(_app: Sphinx, name: str, source: list[str]) -> None:
    """Link files of the repository as downloads, which MyST does itself, and name its folders in plain text.

    The pages are also read in the repository, where a link to a folder opens it; on the site there is nothing to open.
    """
    page = (HERE / name).parent

    def plain(found: re.Match[str]) -> str:
        text, target = found.groups()
        path = (page / target).resolve()
        if not path.is_dir():
            return found.group(0)
        folder = path.relative_to(ROOT).as_posix()
        return text if folder in text else f"{text} (`{folder}`)"

    source[0] = _LINK.sub(plain, source[0])


_CODE = re.compile(r"(`[^`]*`)")


def _as_docstrings_are_written(
    _app: Sphinx, _what: str, _name: str, _object: object, _options: object, lines: list[str]
) -> None:
    """Read docstrings as plain text: what is indented stays as it stands, and only the backtick has a meaning."""
    read, literal = [], False
    for line in lines:
        if line.startswith("    ") and not literal and (not read or not read[-1].strip()):
            literal = True
            read += ["::", ""]
        elif line.strip() and not line.startswith("    "):
            literal = False
        parts = _CODE.split(line)
        plain = [re.sub(r"[|*]|_(?!\w)", r"\\\g<0>", part) if i % 2 == 0 else part for i, part in enumerate(parts)]
        read.append(line if literal else "".join(plain))
    lines[:] = read


def setup(app: Sphinx) -> None:
    """Register what this site does to its pages."""
    app.connect("source-read", _folders_are_not_pages)
    app.connect("autodoc-process-docstring", _as_docstrings_are_written)
