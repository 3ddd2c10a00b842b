import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from apdo.errors import InvalidInput
from apdo.report.plot import figure, labels, plot
from apdo.report.runs import Run, read
from apdo.report.statistics import bootstrap_interval, interquartile_mean

NAMES = ("bombs", "speeding")


def run(algorithm="apdo", seeds=4, epochs=6, limits=(0.2,), settings=None, multiplier=True, path="runs/one", **changes):
    """A made-up run, in memory."""
    draw = np.random.default_rng(0)
    metrics = {"return": draw.normal(size=(seeds, epochs)), "cost": draw.uniform(size=(seeds, epochs, len(limits)))}
    if multiplier:
        metrics["multiplier"] = draw.uniform(size=(seeds, epochs, len(limits)))
    description = {
        "format": 1,
        "algorithm": algorithm,
        "environment": "point-gather",
        "config": {"algorithm": settings or {}},
        "problem": {"limits": list(limits), "cost_names": NAMES[: len(limits)], "cost_discount": 0.995},
        "batch": 100,
        "epochs": epochs,
        "seeds": list(range(seeds)),
        "adjustment_epoch": None,
        "status": "finished",
        "note": "",
    }
    return Run(Path(path), description | changes, metrics, tuple(range(seeds)), np.arange(epochs))


def thick(panel):
    """The curves of the means."""
    return [line for line in panel.lines if line.get_linewidth() == pytest.approx(1.9)]


def vertical(panel):
    return [line.get_xdata()[0] for line in panel.lines if line.get_label() == "multiplier adjusted"]


def limits(panel):
    return {line.get_label(): line for line in panel.lines if "limit" in str(line.get_label())}


def legend(picture):
    return [text.get_text() for text in picture.legends[0].get_texts()]


def small_print(picture):
    return picture.get_supxlabel().replace("\n", " ")


def test_the_panels_are_return_cost_and_multiplier():
    titles = [panel.get_title(loc="left") for panel in figure([run()]).axes]
    assert titles == ["return per episode", "cost per episode", "multiplier"]


def test_a_curve_is_the_interquartile_mean_over_the_samples_taken():
    one = run()
    for panel, values in zip(figure([one]).axes, one.metrics.values(), strict=True):
        (line,) = thick(panel)
        np.testing.assert_array_equal(line.get_xdata(), [100, 200, 300, 400, 500, 600])
        np.testing.assert_allclose(np.asarray(line.get_ydata()), interquartile_mean(values.reshape(4, 6)))


def test_the_band_is_the_bootstrap_interval():
    one = run()
    (band,) = figure([one]).axes[0].collections
    low, high = bootstrap_interval(interquartile_mean, one.metrics["return"])
    heights = np.asarray(band.get_paths()[0].vertices)[:, 1]
    assert heights.min() == pytest.approx(low.min())
    assert heights.max() == pytest.approx(high.max())


def test_every_seed_runs_faintly_behind():
    one = run(seeds=4)
    panel = figure([one]).axes[0]
    faint = [line for line in panel.lines if line not in thick(panel)]
    np.testing.assert_array_equal([line.get_ydata() for line in faint], one.metrics["return"])
    assert all(line.get_zorder() < thick(panel)[0].get_zorder() for line in faint)


def test_a_single_seed_has_no_band_and_says_why():
    picture = figure([run(seeds=1)])
    assert all(not panel.collections for panel in picture.axes)
    assert "nothing is known of the spread" in small_print(picture)


def test_the_limit_is_a_dashed_line_with_its_number():
    panel = figure([run(limits=(0.2,))]).axes[1]
    assert list(limits(panel)) == ["limit 0.2"]
    line = limits(panel)["limit 0.2"]
    assert line.is_dashed()
    np.testing.assert_array_equal(line.get_ydata(), [0.2, 0.2])
    assert "limit\n0.2" in [text.get_text() for text in panel.texts]


def test_a_limit_far_above_the_costs_is_still_in_view():
    panel = figure([run(limits=(25.0,))]).axes[1]
    assert panel.get_ylim()[1] > 25


def test_each_constraint_has_its_own_style_name_and_limit():
    one = run(limits=(0.2, 0.5))
    earned, bombs, speeding, price = figure([one]).axes
    first, second = thick(price)
    assert first.get_linestyle() != second.get_linestyle()
    assert first.get_color() == second.get_color()
    for i, (panel, line) in enumerate([(bombs, first), (speeding, second)]):
        (curve,) = thick(panel)
        assert curve.get_linestyle() == line.get_linestyle()
        np.testing.assert_allclose(np.asarray(curve.get_ydata()), interquartile_mean(one.metrics["cost"][..., i]))
        assert panel.get_title(loc="left") == NAMES[i]
        assert list(limits(panel)) == [f"limit {one.limits[i]:g}"]
    assert {"bombs", "speeding"} <= set(legend(figure([one])))
    assert len(thick(earned)) == 1


def test_a_cost_that_only_one_run_has_is_drawn_with_its_own_curves_alone():
    picture = figure([run(limits=(0.2, 0.5)), run("pdo", limits=(0.3,))])
    assert [len(thick(panel)) for panel in picture.axes] == [2, 2, 1, 3]


def test_many_costs_go_into_several_rows():
    names = [f"cost {i}" for i in range(6)]
    picture = figure([run(limits=(0.2,) * 6, problem={"limits": [0.2] * 6, "cost_names": names})])
    places = [panel.get_position() for panel in picture.axes]
    assert len(places) == 8
    assert len({round(place.y0, 2) for place in places}) == 2


def test_names_of_close_limits_do_not_cover_each_other():
    panel = figure([run(limits=(0.2,)), run("pdo", limits=(0.201,))]).axes[1]
    low, high = sorted(text.get_position()[1] for text in panel.texts)
    assert high - low > 0.1 * panel.get_ylim()[1]


def test_limits_that_differ_between_runs_wear_the_colours_of_their_runs():
    picture = figure([run(limits=(0.1,)), run(limits=(0.4,))])
    panel = picture.axes[1]
    curves = thick(panel)
    assert limits(panel)["limit 0.1"].get_color() == curves[0].get_color()
    assert limits(panel)["limit 0.4"].get_color() == curves[1].get_color()


def test_several_runs_have_several_colours():
    for count in (3, 12):
        picture = figure([run(seed, path=seed) for seed in map(str, range(count))])
        assert len({line.get_color() for line in thick(picture.axes[0])}) == count


def test_a_run_without_multipliers_is_left_out_of_their_panel_and_said_to_be():
    picture = figure([run("apdo"), run("trpo", multiplier=False)])
    assert [len(thick(panel)) for panel in picture.axes] == [2, 2, 1]
    assert "trpo has no multiplier." in small_print(picture)
    assert "apdo has no" not in small_print(picture)


def test_a_panel_without_any_multiplier_says_so():
    panel = figure([run("trpo", multiplier=False)]).axes[2]
    assert [text.get_text() for text in panel.texts] == ["no multiplier"]


def test_the_adjustment_stands_at_the_end_of_its_epoch_in_every_panel():
    picture = figure([run(adjustment_epoch=2), run("pdo")])
    assert [vertical(panel) for panel in picture.axes] == [[300]] * 3
    assert "multiplier adjusted" in legend(picture)


@pytest.mark.parametrize("epoch", [None, 6])
def test_an_adjustment_that_has_not_happened_is_not_drawn(epoch):
    picture = figure([run(epochs=6, adjustment_epoch=epoch)])
    assert [vertical(panel) for panel in picture.axes] == [[]] * 3
    assert legend(picture) == ["apdo"]


def test_epochs_are_shown_above_where_all_batches_are_the_same():
    panel = figure([run(), run("pdo")]).axes[0]
    (above,) = panel.child_axes
    above.apply_aspect()  # takes over the limits of the panel, as drawing does
    left, right = panel.get_xlim()
    assert above.get_xlim() == pytest.approx((left / 100 - 1, right / 100 - 1))
    assert all(tick >= 0 for tick in above.get_xticks())
    assert not figure([run(), run("pdo", batch=50)]).axes[0].child_axes


def test_every_note_is_printed_once_and_a_dollar_is_a_dollar(tmp_path):
    runs = [run(note="costs $5 and $6"), run("pdo", note="costs $5 and $6"), run("cpo", note="other")]
    assert small_print(figure(runs)).count("costs $5 and $6") == 1
    assert small_print(figure(runs)).endswith("other")
    plot(runs, tmp_path / "dollars.png")


@pytest.mark.parametrize("status", ["running", "failed", "interrupted"])
def test_a_run_that_is_not_finished_is_said_not_to_be(status):
    assert f"apdo: {status}, shown up to epoch 5." in small_print(figure([run(status=status)]))
    assert "shown up to" not in small_print(figure([run()]))


def test_a_diverged_seed_is_said_to_be():
    broken = run()
    broken.metrics["return"][1, 4:] = np.nan
    picture = figure([broken])
    assert "apdo: 1 of 4 seeds gave NaN" in small_print(picture)
    np.testing.assert_array_equal(np.isnan(thick(picture.axes[0])[0].get_ydata()), [0, 0, 0, 0, 1, 1])


def test_the_title_is_the_environment_unless_one_is_given():
    assert figure([run()]).legends[0].get_title().get_text() == "point-gather"
    assert figure([run()], title="mine").legends[0].get_title().get_text() == "mine"


def test_a_label_is_the_algorithm_and_only_what_differs():
    one = run(settings={"k_adj": 5, "dual_step": 0.1})
    two = run(settings={"k_adj": 10, "dual_step": 0.1})
    assert labels([one]) == ["apdo"]
    assert labels([one, two, run("pdo")]) == ["apdo k_adj=5", "apdo k_adj=10", "pdo"]


def test_settings_of_the_same_name_are_told_apart_by_what_encloses_them():
    one = run(settings={"actor": {"rate": 1e-3}, "critic": {"rate": 1e-3}})
    two = run(settings={"actor": {"rate": 2e-3}, "critic": {"rate": 3e-3}})
    assert labels([one, two])[1] == "apdo actor.rate=0.002 critic.rate=0.003"


def test_a_setting_that_only_one_run_has_is_named_there():
    assert labels([run(), run(settings={"clip": 0.2})]) == ["apdo", "apdo clip=0.2"]


def test_how_a_run_is_kept_does_not_enter_its_label():
    def configured(note, limits, **settings):
        parts = {"algorithm": "apdo", "note": note, "settings": settings | {"limits": limits, "seeds": 4}}
        return run(config=parts | {"algorithm_config": {"primal": "ppo", "primal.clip": settings["seed"]}})

    one = configured("demo", [], seed=0, epochs=6, checkpoint_every=50)
    two = configured("", [0.2], seed=1, epochs=5, checkpoint_every=5)
    assert labels([one, two]) == ["apdo clip=0", "apdo clip=1"]


def test_several_environments_are_named():
    assert labels([run(), run("pdo", environment="tabular")]) == ["apdo on point-gather", "pdo on tabular"]


def test_many_differences_are_cut_short():
    one, two = (run(settings={letter: value for letter in "abcde"}) for value in (0, 1))
    assert labels([one, two]) == ["apdo a=0 b=0 c=0 and 2 more", "apdo a=1 b=1 c=1 and 2 more"]


@pytest.mark.parametrize(
    ("change", "label"),
    [
        ({"limits": (0.5,)}, "apdo limits=0.5"),
        ({"batch": 7}, "apdo batch=7"),
        ({"seeds": 9}, "apdo seeds=9"),
        ({"path": "runs/two"}, "apdo run=runs/two"),
    ],
)
def test_runs_with_the_same_settings_are_told_apart_by_what_is_left(change, label):
    assert labels([run(), run(**change)])[1] == label


def test_without_a_suffix_a_png_and_an_svg_are_written(tmp_path):
    files = plot([run()], tmp_path / "new" / "beta0.05")
    assert [file.name for file in files] == ["beta0.05.png", "beta0.05.svg"]
    assert files[0].read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in files[1].read_bytes()


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")])
def test_a_suffix_is_the_only_file_written(tmp_path, name, start):
    assert plot([run()], tmp_path / name) == [tmp_path / name]
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize("name", ["a.svg", "a.pdf", "a.png"])
def test_the_same_runs_give_the_same_file(tmp_path, name):
    first = plot([run()], tmp_path / name)[0].read_bytes()
    assert plot([run()], tmp_path / name)[0].read_bytes() == first


@pytest.mark.filterwarnings("error")
def test_infinite_and_missing_numbers_can_be_drawn(tmp_path):
    wild = run()
    wild.metrics["return"][:2, 3] = np.inf, -np.inf
    wild.metrics["cost"][:3, 4:] = np.inf
    wild.metrics["multiplier"][:, 2] = np.nan
    assert plot([wild], tmp_path / "a.png")


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.filterwarnings("error")
def test_the_first_epochs_can_be_drawn(tmp_path, seeds, epochs):
    one = run(seeds=seeds, epochs=epochs, limits=(0.2, 0.1))
    assert plot([one], tmp_path / "a.png")
    assert all(line.get_marker() == "o" for line in thick(figure([one]).axes[1])) == (epochs == 1)


def test_a_run_folder_gives_the_picture_of_its_run(tmp_path):
    one = run(limits=(0.2, 0.1), adjustment_epoch=2)
    (tmp_path / "run.json").write_text(json.dumps(one.description))
    with (tmp_path / "metrics.jsonl").open("w") as file:
        for epoch in range(6):
            for seed in range(4):
                values = {name: metric[seed, epoch].tolist() for name, metric in one.metrics.items()}
                file.write(json.dumps({"epoch": epoch, "seed": seed} | values) + "\n")
    written = plot([read(tmp_path)], tmp_path / "a.png")[0].read_bytes()
    assert written == plot([one], tmp_path / "b.png")[0].read_bytes()


def test_what_cannot_be_drawn_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="nothing to plot"):
        figure([])
    with pytest.raises(InvalidInput, match=r"'\.jpg'; use one of \.png, \.svg, \.pdf"):
        plot([run()], tmp_path / "a.jpg")
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="cannot be written"):
        plot([run()], tmp_path / "file" / "a.png")


def test_it_loads_neither_jax_nor_matplotlib_before_they_are_needed_and_never_pyplot(tmp_path):
    before = "import sys, apdo.report.plot; print({'jax', 'matplotlib'} & set(sys.modules))"
    after = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_plot import plot, run
plot([run()], {str(tmp_path / "a")!r}); print({{"matplotlib.pyplot"}} & set(sys.modules))
"""
    for code in (before, after):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "set()"


def test_rare_spikes_of_a_multiplier_are_cut_off_and_the_small_print_says_so():
    calm, spiked = run(seeds=4, epochs=200), run(seeds=4, epochs=200)
    spiked.metrics["multiplier"][1, 50] = 1e4
    for given, cut in ((calm, False), (spiked, True)):
        picture = figure([given])
        top = picture.axes[2].get_ylim()[1]
        highest = given.metrics["multiplier"].max()
        assert (top < highest) == cut
        assert ("are cut off" in small_print(picture)) == cut
        assert top > np.percentile(given.metrics["multiplier"], 99)


def test_of_many_runs_with_one_constraint_a_colour_is_a_setting_and_a_line_style_an_algorithm():
    many = [run(algorithm=name, settings={"step": i}) for name in ("pdo", "apdo") for i in range(4)]
    picture = figure(many)
    handles = picture.legends[0].get_lines()
    looks = {(handle.get_color(), str(handle.get_linestyle())) for handle in handles}
    assert len(handles) == len(looks) == 8
    assert len({colour for colour, _ in looks}) == 4
