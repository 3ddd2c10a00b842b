"""Checks annotations while tests run."""

import beartype
from beartype import BeartypeConf, FrozenDict
from jax.core import Tracer

# As in pyright, an int may be used as a float, and a float as a complex number (PEP 484's numeric tower). A number of a
# configuration may also be an argument of the program that is being traced (`apdo.arguments`).
_NUMBERS = FrozenDict({float: int | float | Tracer, complex: int | float | complex})
checked = beartype.beartype(conf=BeartypeConf(hint_overrides=_NUMBERS))
