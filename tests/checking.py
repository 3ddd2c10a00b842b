"""How annotations are checked while tests run."""

import beartype
import jax
from beartype import BeartypeConf, FrozenDict

# As for pyright, an int may stand for a float, and a float for a complex number (PEP 484's numeric tower). And a number
# of a configuration may be an argument of the program that is being traced (`apdo.arguments`).
_NUMBERS = FrozenDict({float: int | float | jax.core.Tracer, complex: int | float | complex})
checked = beartype.beartype(conf=BeartypeConf(hint_overrides=_NUMBERS))
