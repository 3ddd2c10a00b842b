"""What a sweep asks for: files, grids, draws, and what is wrong with them."""

import itertools

import numpy as np
import pytest

from apdo.errors import InvalidInput
from apdo.sweeps import plan

SMALL = {"algorithms": ["pdo", "cpo"], "environments": ["two-state"], "options": {"epochs": 2, "batch": 200}}


def settings_of(**changes):
    return plan.expand(plan.parse(SMALL | changes))


def test_a_grid_is_every_combination_once():
    found = settings_of(grid={"limits": [0.1, 0.2, 0.1], "trace": [0.9, 0.95]})
    made = {(one.experiment.algorithm, one.varied["limits"], one.varied["trace"]) for one in found}
    assert made == set(itertools.product(("pdo", "cpo"), (0.1, 0.2), (0.9, 0.95)))
    assert len(found) == len({one.name for one in found}) == 8
    for one in found:
        assert one.experiment.problem().limits == (one.varied["limits"],)
        assert one.experiment.algorithm_config.trace == one.varied["trace"]
        assert one.experiment.settings.epochs == 2


def test_more_draws_leave_the_earlier_ones_as_they_were():
    few, many = (
        settings_of(draws={"count": count, "trace": {"low": 0.5, "high": 1.0}}, algorithms="pdo") for count in (3, 9)
    )
    assert [one.name for one in many[:3]] == [one.name for one in few]
    assert len({one.name for one in many}) == 9
    other = settings_of(draws={"count": 3, "seed": 1, "trace": {"low": 0.5, "high": 1.0}}, algorithms="pdo")
    assert not {one.name for one in other} & {one.name for one in many}


def test_draws_are_uniform_on_their_scale_and_exactly_what_their_name_says():
    draw = plan.Draw(1e-3, 1e1, log=True)
    values = [draw.value(0, i, 7) for i in range(4000)]
    shares = (np.log10(values) + 3) / 4
    np.testing.assert_allclose(np.quantile(shares, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.03)
    assert all(float(f"{value:.4g}") == value for value in values)
    assert {plan.Draw(1, 3, whole=True).value(0, i) for i in range(60)} == {1, 2, 3}
    assert {plan.Draw(values=("a", "b")).value(0, i) for i in range(60)} == {"a", "b"}


def test_what_stands_under_an_algorithm_is_for_it_alone_and_replaces_what_is_for_all():
    found = settings_of(
        grid={"trace": [0.9, 0.95]}, **{"for": {"pdo": {"grid": {"dual-step": [0.1]}, "options": {"trace": 0.5}}}}
    )
    assert {(one.experiment.algorithm, one.experiment.algorithm_config.trace) for one in found} == {
        ("pdo", 0.5),
        ("cpo", 0.9),
        ("cpo", 0.95),
    }


def test_a_file_says_what_a_dictionary_says(tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(
        'algorithms = ["pdo"]\nenvironments = ["two-state"]\nseeds = 3\n[options]\nbatch = 200\nepochs = 2\n'
        "[options.policy]\nhidden = [8, 4]\n[grid]\nlimits = [0.1]\n[draws]\ncount = 2\n"
        'dual-step = {low = 0.1, high = 1, scale = "log"}\n'
    )
    sweep = plan.read(file)
    assert (sweep.seeds, sweep.draws, sweep.common.draws["dual_step"]) == (3, 2, plan.Draw(0.1, 1.0, log=True))
    assert {one.experiment.algorithm_config.policy.hidden for one in plan.expand(sweep)} == {(8, 4)}
    words = {"grid": "limits=0.1", "draw": "dual-step=log:0.1:1", "draws": "2", "seeds": "3", "batch": "200"}
    told = plan.amended(plan.of_names("pdo", "two-state"), words | {"epochs": "2", "policy.hidden": "8,4"})
    assert [one.experiment for one in plan.expand(told)] == [one.experiment for one in plan.expand(sweep)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"algorithm": ["pdo"]}, "unknown entry 'algorithm'; did you mean 'algorithms'"),
        ({"algorithms": []}, "algorithms must be a list of names"),
        ({"algorithms": ["pod"]}, "unknown algorithm 'pod'; did you mean 'pdo'"),
        ({"environments": ["two-stat"]}, "did you mean 'two-state'"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"seeds": "3"}, "seeds must be a whole number"),
        ({"options": {"epoch": 3}}, "unknown option 'epoch'; did you mean 'epochs'"),
        ({"options": {"dual_step": 0.1}}, r"cpo on two-state: unknown option .* belongs into \[for.cpo.options\]"),
        ({"options": {"seed": 3}}, "seed belongs at the top of the sweep"),
        ({"grid": {"limits": 0.2}}, "grid.limits must be a list of values, not 0.2"),
        ({"grid": {"trace": [0.9, 2.0]}}, "trace must be between 0.0 and 1.0, not 2.0"),
        ({"grid": {"trace": [0.9]}, "options": {"trace": 0.9}}, "trace stands in both options and grid"),
        ({"draws": {"trace": {"low": 0.1, "high": 1}}}, "draws.count does not say how often"),
        ({"draws": {"count": 3}}, "no option is to be drawn"),
        ({"draws": {"count": 3, "trace": {"low": 0.0, "high": 1, "scale": "log"}}}, "no range on a log scale"),
        ({"draws": {"count": 3, "trace": {"lo": 0.0, "high": 1}}}, "unknown entry of draws.trace 'lo'"),
        ({"for": {"trpo": {}}}, "unknown algorithm of this sweep 'trpo'"),
        ({"for": {"pdo": {"gird": {}}}}, "did you mean 'grid'"),
        ({"preset": "dmo"}, "unknown preset 'dmo'; did you mean 'demo'"),
    ],
)
def test_a_wrong_plan_is_told_in_one_sentence(changes, said):
    with pytest.raises(InvalidInput, match=said) as caught:
        settings_of(**changes)
    assert "\n" not in str(caught.value)


def test_a_wrong_file_is_told_in_one_sentence(tmp_path):
    with pytest.raises(InvalidInput, match="there is no sweep file"):
        plan.read(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("algorithms = [\n")
    with pytest.raises(InvalidInput, match="is not valid TOML"):
        plan.read(tmp_path / "bad.toml")


def test_names_of_long_settings_stay_apart_and_fit_a_folder():
    grid = {f"primal.{name}": [0.011111, 0.022222] for name in ("radius", "damping", "fraction", "shrink")}
    grid |= {f"critic.{name}": [0.5, 0.25] for name in ("rate",)} | {"trace": [0.9, 0.95], "cost_trace": [0.91, 0.92]}
    names = [one.name for one in settings_of(grid=grid, algorithms="pdo")]
    assert len(set(names)) == 2**7
    assert max(len(name) for name in names) <= 120
