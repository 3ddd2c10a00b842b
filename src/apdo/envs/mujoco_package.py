"""MuJoCo, the package: whether it is there and can be relied upon, and reading a model without notices.

It is an extra. Release 4.0.0 is refused: its Newton solver had a wrong factor for sparse Jacobians. Newer releases
announce for every model that they read what a later one will not understand; of Gymnasium's robots this is known, and
nothing that a user could change.
"""

import contextlib
import importlib
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from apdo.errors import InvalidInput

OLDEST = (3, 3)
REFUSED = "4.0.0"
EXTRA = "pip install 'apdo[mujoco]'"

Model: TypeAlias = Any
"""An `MjModel`."""


def load(what: str, oldest: tuple[int, int] = OLDEST) -> ModuleType:
    """The package, imported; InvalidInput where it is missing or cannot be relied upon says what needs it."""
    try:
        package = importlib.import_module("mujoco")
    except ImportError:
        raise InvalidInput(f"{what} needs MuJoCo, which is not installed: {EXTRA}") from None
    version = str(package.__version__)
    if version == REFUSED:
        raise InvalidInput(
            f"{what} needs MuJoCo, and release {REFUSED}, which is installed, computes some contacts wrongly "
            f"(its Newton solver, with sparse Jacobians); another one is brought by: {EXTRA}"
        )
    if numbers(version) < oldest:
        named = ".".join(map(str, oldest))
        raise InvalidInput(f"{what} needs MuJoCo {named} or newer, and {version} is installed: {EXTRA}")
    return package


def numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a release."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


@contextlib.contextmanager
def without_notices(package: ModuleType) -> Iterator[None]:
    """While entered, MuJoCo neither prints nor logs what is deprecated; its other warnings become Python's."""
    notices: list[str] = []
    before = package.get_mju_user_warning()
    package.set_mju_user_warning(notices.append)
    try:
        yield
    finally:
        package.set_mju_user_warning(before)
    for text in notices:
        if "deprecated" not in text:
            warnings.warn(text, UserWarning, stacklevel=3)


def compiled(package: ModuleType, source: str | Path, name: str) -> Model:
    """The model of an XML file, or of XML itself; InvalidInput says what is wrong with it."""
    is_text = isinstance(source, str) and source.lstrip().startswith("<")
    if not is_text and not Path(source).is_file():
        raise InvalidInput(f"{name}: there is no file {str(source)!r}.")
    try:
        with without_notices(package):
            if is_text:
                return package.MjModel.from_xml_string(str(source))
            return package.MjModel.from_xml_path(str(source))
    except (ValueError, package.FatalError) as error:
        said = " ".join(str(error).split())[:200].rstrip(". ")
        raise InvalidInput(f"{name}: MuJoCo cannot read the model: {said}.") from None
