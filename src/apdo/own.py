"""A user's own algorithms and environments, and names by which they can be found again.

    mine.py             the file itself is the algorithm
    mine.py:Tank        the object Tank in the file

A run's description contains the name with the absolute path of the file. Resuming or evaluating the run executes the
file. A description with a relative path is refused: its meaning would depend on the current folder, and a run folder
from elsewhere must not be able to bring its own code. Objects that are in no file, such as those from a prompt or from
inside a function, are known by name only in this process. A later process has to be given them again.
"""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from apdo.errors import InvalidInput

OBJECT = "object:"
"""The prefix of names of Python objects that are in no file, so that no other process can find them."""
_NAME = re.compile(r"(?P<path>[^\n]+\.py)(?::(?P<attribute>[A-Za-z_]\w*))?")
_given: dict[str, Any] = {}
"""The objects that were given in this process, by name."""


def is_file(name: str) -> bool:
    """Whether a name refers to a file: mine.py, or mine.py:name."""
    return _NAME.fullmatch(name) is not None


def is_known(name: str) -> bool:
    """Whether a name refers to a file, or to an object that was given in this process."""
    return name in _given or is_file(name)


def whole(name: str) -> str:
    """The name with the absolute path of its file; other names are unchanged."""
    found = _NAME.fullmatch(name)
    if found is None or name in _given:
        return name
    attribute = found["attribute"]
    return str(Path(found["path"]).resolve()) + (f":{attribute}" if attribute else "")


def short(name: str) -> str:
    """The name without the path of its file."""
    return Path(name).name if is_file(name) else name.removeprefix(OBJECT)


def name_of(thing: object) -> str:
    """Register a module or a class, and return its name. Another process finds it by this name if it is in a file."""
    if isinstance(thing, ModuleType):
        file, attribute = getattr(thing, "__file__", None), ""
    else:
        module, attribute = sys.modules.get(getattr(thing, "__module__", "")), getattr(thing, "__qualname__", "")
        file = None if module is None or module.__name__ == "__main__" else getattr(module, "__file__", None)
    title = attribute or getattr(thing, "__name__", type(thing).__name__)
    name = f"{file}:{attribute}" if attribute else str(file)
    name = whole(name) if file and is_file(name) else OBJECT + title
    _given[name] = thing
    return name


def load(name: str, kind: str) -> Any:  # noqa: ANN401
    """The object with this name."""
    if name in _given:
        return _given[name]
    found = _NAME.fullmatch(name)
    if found is None:
        raise InvalidInput(
            f"{name.removeprefix(OBJECT)!r} was a Python object, which no file can bring back; go on in Python, and "
            f"give it again: apdo.resume(RUN, {kind}=...)."
        )
    path = Path(found["path"])
    if not path.is_absolute():
        raise InvalidInput(f"the {kind} is in the file {path}, named without its folder; the whole path is needed.")
    module = _executed(path, kind)
    attribute = found["attribute"]
    if attribute is None:
        return module
    if not hasattr(module, attribute):
        known = ", ".join(other for other in vars(module) if not other.startswith("_"))
        raise InvalidInput(f"{path} has no {attribute!r}; it has {known or 'nothing'}.")
    return getattr(module, attribute)


def _executed(path: Path, kind: str) -> ModuleType:
    """The file as a module. A process executes it only once."""
    called = "apdo_own_" + re.sub(r"\W", "_", str(path))
    if called in sys.modules:
        return sys.modules[called]
    if not path.is_file():
        raise InvalidInput(f"the {kind} should be in {path}, and there is no such file.")
    spec = importlib.util.spec_from_file_location(called, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[called] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[called]
        said = " ".join(str(error).split())
        raise InvalidInput(f"{path} cannot be imported: {type(error).__name__}: {said[:200]}.") from error
    return module


def check_options(config: object, what: str) -> list[str]:
    """The faults of a class of options, one sentence each."""
    params = getattr(config, "__dataclass_params__", None)
    if not isinstance(config, type) or params is None:
        return [f"{what} must be a frozen dataclass (import dataclasses; @dataclasses.dataclass(frozen=True))."]
    faults = [] if params.frozen else [f"{what} must be frozen: @dataclasses.dataclass(frozen=True)."]
    for name, field in getattr(config, "__dataclass_fields__", {}).items():
        if not {"help", "source"} <= set(field.metadata):
            faults.append(
                f"{what}.{name} must be an option: {name}: float = option(0.5, 'what it is', 'whose choice')."
            )
    return faults
