"""Sweeps on Slurm, by submitit's executor that needs none. `make test-ray` runs these."""

import os
import signal

import numpy as np
import pytest

import apdo
from apdo.errors import InvalidInput
from apdo.report import runs
from apdo.sweeps import plan, slurm, sweep

pytest.importorskip("submitit", reason="submitit is not installed")

TINY = {"epochs": 2, "batch": 200, "critic.passes": 1, "policy.hidden": [4], "critic.hidden": [4]}
PLAN = {"algorithms": "trpo", "environments": "two-state", "seeds": 2, "block": 1, "options": TINY}


class Disturbed(slurm.Slurm):
    """Kills its first job as soon as that has begun."""

    killed = 0

    def submit(self, job, tries=1):
        super().submit(job, tries)
        if not self.killed:
            self.killed = self._jobs[-1][0].job_id
            os.kill(int(self.killed), signal.SIGKILL)


def test_a_sweep_on_slurm_does_every_run_and_one_whose_job_was_killed_again(tmp_path):
    made = []

    def begin():
        made.append(Disturbed(tmp_path / "out" / sweep.PAGE, where="local"))
        return made[0]

    found = sweep.run(plan.parse(PLAN), sweep.Options(tmp_path / "out", quiet=True), begin)
    assert made[0].killed
    assert found.failures == {}
    assert [row["seed"] for row in found.rows] == [0, 1]
    options = {name.replace(".", "__"): value for name, value in TINY.items()}
    alone = apdo.train("trpo", "two-state", out=tmp_path / "alone", quiet=True, **options)
    [first] = (tmp_path / "out" / "runs").glob("*/seeds-000-000")
    np.testing.assert_array_equal(runs.read(first).metrics["return"], alone.metrics["return"])


def test_what_slurm_cannot_give_is_told_before_anything_begins(tmp_path, monkeypatch):
    monkeypatch.setattr(slurm.shutil, "which", lambda _: None)
    with pytest.raises(InvalidInput, match="there is no Slurm here: its command srun is not found"):
        slurm.Slurm(tmp_path / sweep.PAGE)
    with pytest.raises(InvalidInput, match=r"--gpus must be a whole number for Slurm, not 0\.5"):
        slurm.Slurm(tmp_path / sweep.PAGE, gpus=0.5, where="local")
