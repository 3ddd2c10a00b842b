"""How annotations are checked while tests run."""

import beartype
from beartype import BeartypeConf, FrozenDict
from jax.core import Tracer

# As for pyright, an int may stand for a float, and a float for a complex number (PEP 484's numeric tower). And a number
# of a configuration may be an argument of the program that is being traced (`apdo.arguments`).
_NUMBERS = FrozenDict({float: int | float | Tracer, complex: int | float | complex})
checked = beartype.beartype(conf=BeartypeConf(hint_overrides=_NUMBERS))
