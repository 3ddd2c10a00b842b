"""The package MuJoCo: checks whether it is installed and reliable, and reads models without its notices.

It is an extra. Release 4.0.0 is refused, because its Newton solver had a wrong factor for sparse Jacobians. Newer
releases print a notice for everything in a model that a later release will not understand. For Gymnasium's robots this
is known, and users cannot change it.
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
    """Import the package. InvalidInput says what needs it if it is missing, too old or unreliable."""
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
    """A context in which MuJoCo neither prints nor logs what is deprecated. Its other warnings become Python's."""
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
    """The model of an XML file, or of an XML text. InvalidInput says what is wrong with it."""
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
