"""Costs as text: what Python itself says of the same expression, and errors that point at the character."""

import math
import random

import numpy as np
import pytest

from apdo.envs import expressions
from apdo.errors import InvalidInput

SIZES = {"obs": 4, "action": 2, "next_obs": 4}


def random_text(rng, depth=0):
    """An expression that Python reads too."""
    choice = rng.randrange(10 if depth < 4 else 3)
    if choice == 0:
        return rng.choice(["0", "1", "2.5", ".5", "3.", "1e-1", "2E+0"])
    if choice <= 2:
        name = rng.choice(list(SIZES))
        return f"{name}[{rng.randrange(SIZES[name])}]"
    inner = [random_text(rng, depth + 1) for _ in range(rng.randrange(1, 4))]
    match choice:
        case 3:
            return f"abs({inner[0]})"
        case 4:
            return f"{rng.choice(['min', 'max'])}({inner[0]}, {', '.join(inner)})"
        case 5:
            return f"{rng.choice(['sum', 'norm'])}({', '.join(f'({one})' for one in inner)})"
        case 6:
            return f"({inner[0]})"
        case 7:
            return f"-{inner[0]}" if rng.random() < 0.7 else f"({inner[0]}) ** 2"
        case 8:
            sign = rng.choice(["<", "<=", ">", ">=", "==", "!="])
            return f"({inner[0]} {sign} {inner[-1]})"
    return f"{inner[0]} {rng.choice(['+', '-', '*', '/', ' - -'])} {inner[-1]}"


def test_a_thousand_random_expressions_have_the_value_that_python_gives_them():
    rng, draws = random.Random(0), np.random.default_rng(0)
    compared = 0
    for _ in range(1000):
        text = random_text(rng)
        data = {name: draws.normal(size=(3, size)) for name, size in SIZES.items()}
        ours = expressions.parse(text)(data)
        for n in range(3):
            scope = {name: values[n].tolist() for name, values in data.items()}
            scope |= {"norm": lambda *parts: math.hypot(*parts), "sum": lambda *parts: math.fsum(parts)}
            try:
                theirs = float(eval(text, {"__builtins__": {"abs": abs, "min": min, "max": max}}, scope))
            except (ZeroDivisionError, OverflowError):
                continue  # Python has no answer
            assert ours[n] == pytest.approx(theirs, rel=1e-9, abs=1e-12), text
            compared += 1
    assert compared > 2500


def test_a_division_by_zero_is_never_a_cost_that_was_not_incurred():
    data = {"obs": np.zeros((1, 1)), "action": np.zeros((1, 1)), "next_obs": np.zeros((1, 1))}
    assert np.isnan(expressions.parse("obs[0] / obs[0] > 1")(data))
    assert expressions.parse("1 / obs[0] > 1")(data) == 1.0
    assert np.isinf(expressions.parse("1 / obs[0]")(data))


def test_whole_vectors_slices_and_their_absolute_values_go_into_sum_norm_min_and_max():
    data = {"obs": np.array([[3.0, 4.0, 12.0, 0.0]]), "action": np.array([[-1.0, 2.0]]), "next_obs": np.zeros((1, 4))}
    assert expressions.parse("norm(obs[0:2])")(data) == 5.0
    assert expressions.parse("norm(obs)")(data) == 13.0
    assert expressions.parse("max(action, 1)")(data) == 2.0
    assert expressions.parse("min(obs[0:2], action)")(data) == -1.0
    assert expressions.parse("sum(action)")(data) == 1.0
    assert expressions.parse("sum(abs(action))")(data) == 3.0
    assert expressions.parse("max(abs(action[0:1])) > 0.9")(data) == 1.0
    assert expressions.parse("min(abs(action), abs(obs[3] - 1) / 2)")(data) == 0.5
    assert expressions.parse("sum(abs(action[1]), 4)")(data) == 6.0
    assert expressions.parse("-2 ** 2")(data) == -4.0
    assert expressions.parse("2 ** -1 ** 2")(data) == 0.5


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("abs(obs[2) > 4", "']' at character 10"),
        ("", "at character 1, where the end stands"),
        ("obs", "index, as in obs[0]"),
        ("obs[1.5]", "whole number"),
        ("obs[-1]", "whole number"),
        ("1 +", "at character 4, where the end stands"),
        ("speed > 3", "one of obs, action, next_obs"),
        ("obs[0] > 1 > 0", "at character 12, where '>' stands"),
        ("obs[0] $ 1", "'$' at character 8"),
        ("__import__('os')", "at character 12"),
        ("obs[0].real", "'.' at character 7"),
        ("abs(obs)", "index"),
        ("abs(1, 2)", "')' at character 6"),
        ("norm(obs[2:1])", "an index above 2"),
        ("norm(action, 1) > 2", "sum(abs(action))"),
        ("max(abs(action) - 1)", "')' at character"),
        ("sum(abs(action)", "')' at character 16, where the end"),
        ("norm(abs action))", "'(' at character 10"),
        ("1 2", "an operator or the end at character 3"),
        ("(" * 60 + "1" + ")" * 60, "nested deeper"),
        ("2" + "**2" * 100, "nested deeper"),
        ("1+" * 600 + "1", "at most 1000 characters"),
        ("obs[٣]", "at character 5"),
    ],
)
def test_what_is_no_expression_is_refused_at_its_character(text, says):
    with pytest.raises(InvalidInput) as refused:
        expressions.parse(text)
    assert says in str(refused.value)


def test_random_text_is_parsed_or_refused_and_nothing_else():
    rng = random.Random(1)
    pieces = [
        *"0123456789+-*/<>=!()[],:. \t",
        "obs",
        "action",
        "abs",
        "norm",
        "sum(abs(",
        "min(",
        "**",
        "e5",
        "_",
        "é",
        "\x00",
        "[0]",
    ]
    outcomes = set()
    for _ in range(3000):
        text = "".join(rng.choice(pieces) for _ in range(rng.randrange(1, 12)))
        try:
            expressions.parse(text)
            outcomes.add("parsed")
        except InvalidInput:
            outcomes.add("refused")
    assert outcomes == {"parsed", "refused"}


def test_an_entry_that_does_not_exist_is_named():
    with pytest.raises(InvalidInput, match=r"obs\[7\] at character 10, but obs has 4 entries, 0 to 3"):
        expressions.parse("obs[1] + obs[7]").check(SIZES)
    expressions.parse("obs[3] + action[1]").check(SIZES)


def test_costs_are_separated_by_semicolons():
    assert expressions.split(" obs[0] > 1 ; ; abs(obs[1])") == ("obs[0] > 1", "abs(obs[1])")
