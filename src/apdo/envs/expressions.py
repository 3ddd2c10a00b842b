"""Costs as text: a small grammar of numbers and entries of observations and actions, without Python's `eval`.

    expression := sum [("<" | "<=" | ">" | ">=" | "==" | "!=") sum]      1 where it holds, else 0
    sum        := product {("+" | "-") product}
    product    := signed {("*" | "/") signed}
    signed     := "-" signed | power
    power      := atom ["**" signed]
    atom       := number | entry | function "(" argument {"," argument} ")" | "(" expression ")"
    entry      := ("obs" | "action" | "next_obs") "[" index "]"
    argument   := expression | vector | "abs" "(" vector ")"     vectors only in sum, norm, min and max
    vector     := ("obs" | "action" | "next_obs") ["[" index ":" index "]"]
    function   := "abs" | "min" | "max" | "sum" | "norm"

Precedence is as in Python. An expression is compiled into functions that handle all environments of a batch at once.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import NoReturn, TypeAlias

import numpy as np

from apdo.errors import InvalidInput

NAMES = ("obs", "action", "next_obs")
FUNCTIONS = ("abs", "min", "max", "sum", "norm")
_MOST_CHARACTERS = 1000
_MOST_NESTING = 20

Data: TypeAlias = Mapping[str, np.ndarray]
"""Arrays by name, [N, entries]."""
_Node: TypeAlias = Callable[[Data], np.ndarray]
"""Returns [N, 1] for a number and [N, k] for a vector."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)|(?P<sign>\*\*|<=|>=|==|!=|[-+*/<>()\[\],:]))",
    re.ASCII,
)
_COMPARISONS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
}
_ARITHMETIC = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}


@dataclasses.dataclass(frozen=True)
class Expression:
    """A parsed cost; `expression(data)` is its value in each environment, [N]."""

    text: str
    node: _Node
    reach: Mapping[str, int]
    """For each name, the number of entries that it needs to have."""
    where: Mapping[str, int]
    """The position in the text of the largest index of each name."""

    def __call__(self, data: Data) -> np.ndarray:
        """The value in each environment, [N]."""
        with np.errstate(all="ignore"):
            return self.node(data)[:, 0]

    def check(self, sizes: Mapping[str, int]) -> None:
        """Raise InvalidInput if an entry does not exist."""
        for name, needed in self.reach.items():
            if needed > sizes[name]:
                raise InvalidInput(
                    f"the cost {self.text!r} asks for {name}[{needed - 1}] at character {self.where[name]}, but "
                    f"{name} has {sizes[name]} entries, 0 to {sizes[name] - 1}."
                )


def split(text: str) -> tuple[str, ...]:
    """Split a text at its semicolons into several costs."""
    return tuple(part.strip() for part in text.split(";") if part.strip())


def parse(text: str) -> Expression:
    """Parse an expression. InvalidInput names the character at which it violates the grammar."""
    if len(text) > _MOST_CHARACTERS:
        raise InvalidInput(f"a cost has at most {_MOST_CHARACTERS} characters, and this one has {len(text)}.")
    return _Parser(text).parse()


class _Parser:
    """A recursive-descent parser of the tokens."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = self._tokens()
        self.place = 0
        self.depth = 0
        self.reach: dict[str, int] = {}
        self.where: dict[str, int] = {}

    def parse(self) -> Expression:
        node = self._expression()
        if self._kind() != "end":
            self._complain("an operator or the end")
        return Expression(self.text, node, self.reach, self.where)

    def _tokens(self) -> list[tuple[str, str, int]]:
        """The tokens as (kind, text, position from 1)."""
        found, at = [], 0
        end = len(self.text.rstrip())
        while at < end:
            match = _TOKEN.match(self.text, at)
            if match is None:
                bad = at + len(self.text[at:]) - len(self.text[at:].lstrip())
                raise InvalidInput(
                    f"the cost {self.text!r} has {self.text[bad]!r} at character {bad + 1}, which no cost can hold."
                )
            kind = str(match.lastgroup)
            found.append((kind, match[kind], match.start(kind) + 1))
            at = match.end()
        return [*found, ("end", "", end + 1)]

    def _kind(self) -> str:
        return self.tokens[self.place][0]

    def _complain(self, expected: str) -> NoReturn:
        _, token, at = self.tokens[self.place]
        found = repr(token) if token else "the end"
        raise InvalidInput(f"the cost {self.text!r} needs {expected} at character {at}, where {found} stands.")

    def _take(self, *wanted: str) -> str | None:
        """Take the next token if it is one of these signs; otherwise None."""
        kind, token, _ = self.tokens[self.place]
        if kind == "sign" and token in wanted:
            self.place += 1
            return token
        return None

    def _need(self, sign: str) -> None:
        if self._take(sign) is None:
            self._complain(repr(sign))

    def _expression(self) -> _Node:
        self.depth += 1
        if self.depth > _MOST_NESTING:
            raise InvalidInput(f"the cost {self.text!r} is nested deeper than {_MOST_NESTING} levels.")
        left = self._sum()
        if (sign := self._take(*_COMPARISONS)) is not None:
            left = _comparison(_COMPARISONS[sign], left, self._sum())
        self.depth -= 1
        return left

    def _sum(self) -> _Node:
        return self._chain(self._product, "+", "-")

    def _product(self) -> _Node:
        return self._chain(self._signed, "*", "/")

    def _chain(self, part: Callable[[], _Node], *signs: str) -> _Node:
        first, rest = part(), []
        while (sign := self._take(*signs)) is not None:
            rest.append((_ARITHMETIC[sign], part()))
        if not rest:
            return first

        def node(data: Data) -> np.ndarray:
            value = first(data)
            for operation, other in rest:
                value = operation(value, other(data))
            return value

        return node

    def _signed(self) -> _Node:
        negative = False
        while self._take("-") is not None:
            negative = not negative
        node = self._power()
        return (lambda data: -node(data)) if negative else node

    def _power(self) -> _Node:
        base = self._atom()
        if self._take("**") is None:
            return base
        self.depth += 1
        if self.depth > _MOST_NESTING:
            raise InvalidInput(f"the cost {self.text!r} is nested deeper than {_MOST_NESTING} levels.")
        exponent = self._signed()
        self.depth -= 1
        return lambda data: np.power(base(data), exponent(data))

    def _atom(self) -> _Node:
        kind, token, _ = self.tokens[self.place]
        if kind == "number":
            self.place += 1
            value = np.full((1, 1), float(token))
            return lambda data: np.broadcast_to(value, (len(data["obs"]), 1))
        if kind == "name" and token in FUNCTIONS:
            return self._function()
        if kind == "name" and token in NAMES:
            node, is_vector = self._entry()
            if is_vector:
                self.place -= 1
                self._complain(f"an index, as in {token}[0], since only sum, norm, min and max take whole vectors,")
            return node
        if kind == "name":
            self._complain(f"one of {', '.join((*NAMES, *FUNCTIONS))}")
        if self._take("(") is not None:
            node = self._expression()
            self._need(")")
            return node
        self._complain("a number, an entry such as obs[0], or a function")

    def _function(self) -> _Node:
        name = self.tokens[self.place][1]
        self.place += 1
        self._need("(")
        if name == "abs":
            inner = self._expression()
            self._need(")")
            return lambda data: np.abs(inner(data))
        arguments = [self._argument()]
        while self._take(",") is not None:
            kind, token, at = self.tokens[self.place]
            arguments.append(self._argument())
            if name == "norm" and kind == "number" and self.tokens[self.place - 1][2] == at:
                raise InvalidInput(
                    f"the cost {self.text!r} has the number {token} in norm, at character {at}: it would count as one "
                    "more entry of the vector. The sum of absolute values is sum(abs(action)), the largest one is "
                    "max(abs(action))."
                )
        self._need(")")
        together = {
            "min": lambda values: values.min(axis=1, keepdims=True),
            "max": lambda values: values.max(axis=1, keepdims=True),
            "sum": lambda values: values.sum(axis=1, keepdims=True),
            "norm": lambda values: np.sqrt(np.sum(values * values, axis=1, keepdims=True)),
        }[name]
        return lambda data: together(np.concatenate([argument(data) for argument in arguments], axis=1))

    def _argument(self) -> _Node:
        """An expression, a vector alone, or the absolute values of a vector alone."""
        before = self.place
        absolute = [token for _, token, _ in self.tokens[before : before + 2]] == ["abs", "("]
        if absolute:
            self.place += 2
        kind, token, _ = self.tokens[self.place]
        if kind == "name" and token in NAMES:
            node, is_vector = self._entry()
            if is_vector and absolute:
                self._need(")")
                return lambda data: np.abs(node(data))
            if is_vector:
                return node
        self.place = before
        return self._expression()

    def _entry(self) -> tuple[_Node, bool]:
        """Parse obs[3] (a number), or obs and obs[0:2] (vectors); the second result is whether it is a vector."""
        name, at = self.tokens[self.place][1:]
        self.place += 1
        if self._take("[") is None:
            return (lambda data: data[name]), True
        first = self._index()
        if self._take(":") is None:
            self._need("]")
            self._note(name, first + 1, at)
            return (lambda data: data[name][:, first : first + 1]), False
        last = self._index()
        if last <= first:
            self.place -= 1
            self._complain(f"an index above {first}")
        self._need("]")
        self._note(name, last, at)
        return (lambda data: data[name][:, first:last]), True

    def _index(self) -> int:
        kind, token, _ = self.tokens[self.place]
        if kind != "number" or not token.isdigit() or len(token) > 9:
            self._complain("a whole number, the index of an entry,")
        self.place += 1
        return int(token)

    def _note(self, name: str, needed: int, at: int) -> None:
        if needed > self.reach.get(name, 0):
            self.reach[name], self.where[name] = needed, at


def _comparison(compare: Callable[[np.ndarray, np.ndarray], np.ndarray], left: _Node, right: _Node) -> _Node:
    """1 or 0. NaN, such as from 0/0, stays NaN: it must not count as a cost that was not incurred."""

    def node(data: Data) -> np.ndarray:
        a, b = left(data), right(data)
        return np.where(np.isnan(a) | np.isnan(b), np.nan, compare(a, b))

    return node
