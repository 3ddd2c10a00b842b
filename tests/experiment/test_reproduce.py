import dataclasses
import json
import re
import shutil

import numpy as np
import pytest

from apdo import cli, files
from apdo.errors import InvalidInput, NumericalFailure
from apdo.experiment import opening, reproduce, runner
from apdo.experiment.records import Records
from apdo.experiment.reproduce import SCALES, studies

FULL, SMALL = SCALES["full"], SCALES["small"]


class Trainer:
    """Writes run folders without training, and remembers them."""

    def __init__(self, fails=()):
        self.folders = []
        self.fails = fails

    def __call__(self, experiment, folder):
        self.folders.append("/".join(folder.parts[-2:]))
        shutil.rmtree(folder, ignore_errors=True)  # what there was of it counts as gone on with
        seeds = list(range(experiment.settings.seed, experiment.settings.seed + experiment.settings.seeds))
        record = Records(folder, opening.describe(experiment, opening.training_of(experiment), seeds))
        if folder.parent.name in self.fails:
            record.close("failed")
            raise NumericalFailure("epoch 3, seed 0: the reward is not finite.")
        held = getattr(experiment.algorithm_config, "dual_step", 1.0) == 0.0
        multiplier = experiment.algorithm_config.initial_multiplier if held else 5.0
        for epoch in range(experiment.settings.epochs):
            cost = 0.2 - 0.02 * (multiplier - 10) + 0.001 * np.sin(epoch)
            row = {"epoch": epoch, "samples": epoch, "return": 0.2 * epoch, "cost": [cost], "multiplier": [multiplier]}
            if epoch == getattr(experiment.algorithm_config, "k_adj", None):
                row["adjusted_multiplier"] = [9.0]
            record.append([row | {"seed": seed} for seed in seeds])
        record.close("finished", seconds=1.0)


class Study:
    """One folder, in which what is missing can be run."""

    def __init__(self, out):
        self.out = out

    def __call__(self, what="fig1", seeds=2, scale="small", fails=()):
        """The blocks that were trained, and what was said."""
        trainer, said = Trainer(fails), []
        failures = reproduce.fill(reproduce.plan(what, seeds, scale, self.out), trainer, said.append)
        return trainer.folders, "\n".join([*said, *failures])


@pytest.fixture
def start(tmp_path):
    return Study(tmp_path / "out")


def report(out, what="fig1", seeds=2):
    """The results and the page of what is there."""
    reproduce.report(reproduce.plan(what, seeds, "small", out), "apdo reproduce", say=lambda _: None)
    return json.loads((out / "results.json").read_text()), (out / "report.html").read_text()


def seeds_of(out, arm="cpo", seeds=100):
    found = reproduce.finished_run(out, next(a for a in studies(SMALL)["fig1"].arms if a.name == arm), seeds)
    return found and found.seeds


@pytest.mark.parametrize("scale", [FULL, SMALL])
def test_arms_that_serve_several_studies_are_run_once(scale):
    every = studies(scale)
    names = {name: {arm.name for arm in study.arms} for name, study in every.items()}
    assert names["fig1"] & names["fig2"] & names["step-size"] == {"apdo-k5"}
    assert names["fig1"] & names["step-size"] == {"apdo-k5", "pdo-0.1"}
    assert len(reproduce.distinct(list(every.values()))) == 11 + len(scale.grid)


def test_arms_of_one_name_are_the_same_run():
    for scale in SCALES.values():
        seen = {}
        for study in studies(scale).values():
            for arm in study.arms:
                assert seen.setdefault(arm.name, arm) == arm


def test_the_full_scale_is_the_papers():
    experiment = reproduce.experiment_of(studies(FULL)["fig1"].arms[0], FULL, 0, 10)
    assert (experiment.settings.epochs, experiment.settings.batch) == (150, 50_000)
    assert experiment.algorithm_config.off_policy.iterations == 500_000
    assert experiment.algorithm_config.k_adj == 5
    assert experiment.note == ""


def test_fixed_multipliers_stay_fixed():
    for arm in studies(FULL)["lambda-star"].arms:
        config = reproduce.experiment_of(arm, FULL, 0, 1).algorithm_config
        assert config.dual_step == 0.0
        assert arm.name == f"fixed-{config.initial_multiplier:g}"


def test_what_is_finished_is_not_run_again(start):
    first, _ = start()
    assert sorted(first) == ["apdo-k5/seeds-000-001", "cpo/seeds-000-001", "pdo-0.1/seeds-000-001"]
    again, said = start()
    assert again == []
    assert "3 of them are finished already" in said


def test_more_seeds_add_a_block_with_the_missing_ones(start):
    start(seeds=2)
    added, _ = start(seeds=5)
    assert sorted(added) == ["apdo-k5/seeds-002-004", "cpo/seeds-002-004", "pdo-0.1/seeds-002-004"]
    assert seeds_of(start.out) == (0, 1, 2, 3, 4)


def test_fewer_seeds_report_the_first_ones(start):
    start(seeds=3)
    assert start(seeds=2)[0] == []
    assert seeds_of(start.out, seeds=2) == (0, 1)


def test_another_study_shares_the_arms_that_are_there(start):
    start("fig1")
    assert sorted(start("fig2")[0]) == ["apdo-k1/seeds-000-001", "apdo-k10/seeds-000-001"]
    _, page = report(start.out)
    assert 'data-figure="fig1"' in page
    assert 'data-figure="fig2"' in page


def description(folder, **changes):
    """Change a block's run.json."""
    file = folder / "run.json"
    file.write_text(files.seal_page(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("damage", "fate"),
    [
        ("running", "it goes on where it was"),
        ("interrupted", "it goes on where it was"),
        ("metrics", "it goes on where it was"),
        ("failed", "it is removed and run again"),
        ("no description", "it is removed and run again"),
        ("half a description", "it is removed and run again"),
    ],
)
def test_a_half_written_block_is_detected_and_gone_on_with_or_redone(start, damage, fate):
    start()
    block = start.out / "runs" / "cpo" / "seeds-000-001"
    if damage == "no description":
        (block / "run.json").unlink()
    elif damage == "half a description":
        (block / "run.json").write_text('{"format": 1, "algo')
    elif damage == "metrics":
        lines = (block / "metrics.jsonl").read_text().splitlines(keepends=True)
        (block / "metrics.jsonl").write_text("".join(lines[:20]))
    else:
        description(block, status=damage)
    (block / "left-over").write_text("")
    again, said = start()
    assert again == ["cpo/seeds-000-001"]
    assert fate in said


def test_a_folder_of_another_scale_is_refused_with_the_difference(start):
    start()
    with pytest.raises(InvalidInput, match="scale is small there and full here"):
        start(scale="full")


def test_a_folder_of_other_settings_is_refused_with_the_difference(start):
    start()
    file = start.out / "study.json"
    study = json.loads(file.read_text())
    study["arms"]["cpo"]["settings"]["epochs"] = 7
    file.write_text(json.dumps(study))
    with pytest.raises(InvalidInput, match=re.escape("cpo.settings.epochs is 7 there and 50 here")):
        start()


def test_a_finished_block_of_other_settings_is_refused_and_kept(start):
    start()
    block = start.out / "runs" / "cpo" / "seeds-000-001"
    config = json.loads((block / "run.json").read_text())["config"]
    config["algorithm_config"]["trace"] = 0.5
    description(block, config=config)
    with pytest.raises(InvalidInput, match=re.escape("algorithm_config.trace is 0.5 there and 0.95 here")):
        start()
    assert block.exists()


def test_a_folder_of_something_else_is_refused(start):
    start.out.mkdir()
    (start.out / "thesis.tex").write_text("")
    with pytest.raises(InvalidInput, match="is no study's folder"):
        start()


def test_two_batches_do_not_work_in_one_folder(start):
    start()
    with (
        reproduce._alone(reproduce.plan("fig1", 2, "small", start.out)),
        pytest.raises(InvalidInput, match="another apdo reproduce"),
    ):
        start()


def test_a_block_that_fails_is_told_of_and_does_not_stop_the_others(start):
    trained, said = start("lambda-star", fails=("fixed-6",))
    assert len(trained) == len(SMALL.grid)
    assert "fixed-6: epoch 3, seed 0: the reward is not finite." in said
    again, said = start("lambda-star")
    assert again == ["fixed-6/seeds-000-001"]
    assert "failed; it is removed and run again" in said


def test_lambda_star_is_where_the_cost_crosses_the_limit(start):
    start("lambda-star")
    found = report(start.out)[0]["optimal_multiplier"]
    assert found["estimate"]["value"] == pytest.approx(10.0, abs=0.1)


def test_the_miniature_is_labelled_everywhere(start):
    _, said = start()
    assert "MINIATURE" in said
    assert "MINIATURE" in report(start.out)[1]
    assert "(miniature)" in (start.out / "fig1.svg").read_text()
    assert (start.out / "fig1.png").exists()


def test_the_estimate_counts_what_is_missing(tmp_path):
    full = reproduce.plan("all", None, "full", tmp_path)
    blocks = [block for arm in full.arms for block in reproduce.missing_blocks(full, arm)]
    alone, shared = (reproduce.together.alike(blocks, shared) for shared in (False, True))
    assert 5 * 60 < reproduce.seconds_for(shared, "gpu") < reproduce.seconds_for(alone, "gpu") < 40 * 60
    at_once = [reproduce.seconds_for(shared, "gpu", count) for count in (1, 2, 4)]
    assert at_once == sorted(at_once, reverse=True)
    assert 60 < at_once[-1] < 5 * 60
    assert 5 * 3600 < reproduce.seconds_for(alone, "cpu") < 20 * 3600
    small = reproduce.plan("all", None, "small", tmp_path)
    blocks = [block for arm in small.arms for block in reproduce.missing_blocks(small, arm)]
    assert reproduce.seconds_for(reproduce.together.alike(blocks, shared=False), "cpu") < 10 * 60


def test_arms_that_differ_in_numbers_only_are_one_job(tmp_path):
    wanted = reproduce.plan("all", None, "full", tmp_path)
    blocks = [block for arm in wanted.arms for block in reproduce.missing_blocks(wanted, arm)]
    found = reproduce.longest_first(reproduce.together.alike(blocks, shared=True), "gpu")
    jobs = [[block.arm.name for block in job] for job in found]
    assert jobs[0] == ["apdo-k5", "apdo-k1", "apdo-k10", "apdo-0.01", "apdo-0.05", "apdo-0.5"]
    assert sorted(job for job in jobs[1:] if len(job) > 1) == [
        [f"fixed-{value:g}" for value in FULL.grid],
        ["pdo-0.1", "pdo-0.01", "pdo-0.05", "pdo-0.5"],
    ]
    assert sorted(name for job in jobs for name in job) == sorted(arm.name for arm in wanted.arms)
    assert all(len(job) == 1 for job in reproduce.together.alike(blocks, shared=False))


SHORT = dataclasses.replace(
    SMALL, batch=1500, epochs=2, fixed_epochs=2, grid=(4.0, 10.0), options={"pdo": {"critic.passes": 1}}
)


def short_plan(out):
    """Two arms of the reproduction, made small."""
    return reproduce.Plan(SHORT, 2, out, studies(SHORT)["lambda-star"].arms)


def test_arms_in_one_program_come_out_as_each_does_alone(tmp_path, monkeypatch):
    together, shared = reproduce.together.train, []
    monkeypatch.setattr(
        reproduce.together, "train", lambda opened, **more: shared.append(len(opened)) or together(opened, **more)
    )
    found = {}
    for how in (False, True):
        wanted = short_plan(tmp_path / str(how))
        assert reproduce.fill(wanted, quiet_train, lambda _: None, shared=how) == []
        found[how] = [reproduce.finished_run(wanted.out, arm, 2) for arm in wanted.arms]
        assert reproduce.fill(wanted, never, lambda _: None, shared=how) == []
    assert shared == [2]
    for alone, one in zip(found[False], found[True], strict=True):
        assert one.seeds == alone.seeds == (0, 1)
        assert one.metrics.keys() == alone.metrics.keys()
        for name, values in alone.metrics.items():
            if name != "seconds":
                # What a study reports, as for seeds; a step's own figures are differences of small numbers.
                near = 1e-3 if name in ("return", "cost", "multiplier") else 1e-2
                size = near * np.abs(values).max()
                np.testing.assert_allclose(one.metrics[name], values, rtol=near, atol=size, err_msg=name)
    assert [set(run.metrics["multiplier"].ravel()) for run in found[True]] == [{4.0}, {10.0}]


def never(experiment, folder):
    raise AssertionError(f"{folder} was to be trained alone, or again")


def quiet_train(experiment, folder):
    return runner.train(experiment, folder, quiet=True)


def test_an_arm_that_fails_in_a_program_of_several_takes_no_other_along(tmp_path, monkeypatch):
    wanted = short_plan(tmp_path / "out")
    said = []

    def train(opened, **_):
        for one in opened:
            one.record.close("finished" if one is not opened[1] else "failed")
        ends = {one.record.folder: None for one in opened}
        return ends | {opened[1].record.folder: NumericalFailure("epoch 1, seed 0: the reward is not finite.")}

    monkeypatch.setattr(reproduce.together, "train", train)
    failures = reproduce.fill(wanted, never, said.append, shared=True)
    assert failures == ["fixed-10: epoch 1, seed 0: the reward is not finite."]
    assert any("fixed-10/seeds-000-001 failed: epoch 1" in line for line in said)


def test_an_unknown_figure_is_refused_with_the_nearest(start):
    with pytest.raises(InvalidInput, match="did you mean 'fig1'"):
        start("fig11")
    assert not start.out.exists()


@pytest.mark.parametrize(
    ("given", "message"), [({"seeds": 0}, "at least 1"), ({"scale": "smal"}, "did you mean 'small'")]
)
def test_bad_input_is_refused_before_anything_is_written(start, given, message):
    with pytest.raises(InvalidInput, match=message):
        start(**given)
    assert not start.out.exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["fig3"], "unknown figure 'fig3'; did you mean"),
        (["all", "--seeds", "0"], "--seeds must be at least 1, not 0"),
        (["all", "--jobs", "0"], "--jobs must be at least 1, not 0"),
        (["--seeds", "many"], "--seeds must be a whole number"),
        (["all", "--sed", "3"], "did you mean '--seeds'"),
    ],
)
def test_the_command_line_refuses_bad_input_in_one_sentence(given, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["reproduce", *given])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
