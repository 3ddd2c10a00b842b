"""Sweeps on Ray: several nodes on one machine, some of which die. `make test-ray` runs these."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from apdo.errors import InvalidInput
from apdo.report import runs
from apdo.sweeps import plan, sweep

cluster_utils = pytest.importorskip("ray.cluster_utils", reason="Ray is not installed")

OPTIONS = {"batch": 200, "critic": {"passes": 1}, "policy": {"hidden": [4]}, "checkpoint_every": 20}
PLAN = {"algorithms": "trpo", "environments": "two-state", "seeds": 4, "block": 1}
EPOCHS = 600
MEMORY = {"object_store_memory": 80_000_000}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A head without processors, and two nodes with one each."""
    home = tmp_path_factory.mktemp("home")
    before = os.environ.get("HOME")
    # Ray keeps a token at home; the persistent compilation cache stays where it was.
    os.environ |= {"XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", f"{before}/.cache"), "HOME": str(home)}
    made = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **MEMORY})
    made.spare = [made.add_node(num_cpus=1, **MEMORY) for _ in range(2)]
    yield made
    made.shutdown()
    if before is not None:
        os.environ["HOME"] = before


def wanted(epochs):
    return plan.parse(PLAN | {"options": OPTIONS | {"epochs": epochs}})


def begin(cluster, out, epochs):
    return sweep.run(
        wanted(epochs), sweep.Options(out, quiet=True), sweep.executor(out, "ray", address=cluster.address)
    )


def metrics(out):
    found = {path.name: runs.read(path) for path in sorted(out.glob("runs/*/seeds-*"))}
    assert all(run.description["status"] == "finished" for run in found.values())
    return {name: {m: v for m, v in run.metrics.items() if m != "seconds"} for name, run in found.items()}


def test_runs_on_nodes_that_die_and_a_driver_that_dies_come_out_as_undisturbed(cluster, tmp_path):
    assert not begin(cluster, tmp_path / "calm", EPOCHS).failures
    disturbed = tmp_path / "disturbed"
    words = ["trpo", "two-state", "--seeds", "4", "--block", "1", "--epochs", str(EPOCHS), "--batch", "200"]
    words += ["--critic.passes", "1", "--policy.hidden", "4", "--checkpoint-every", "20", "--out", str(disturbed)]
    driver = subprocess.Popen(
        [sys.executable, "-m", "apdo.cli", "sweep", *words, "--on", "ray", "--address", cluster.address],
        env=os.environ | {"PYTHONPATH": str(Path(sweep.__file__).parents[2])},
        stdout=subprocess.DEVNULL,
    )
    wait_for(lambda: list(disturbed.glob("runs/*/*/checkpoints/epoch-*.npz")), driver)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    written = size_of_metrics(disturbed)

    def kill_a_node():
        wait_for(lambda: size_of_metrics(disturbed) > written)
        cluster.remove_node(cluster.spare.pop(), allow_graceful=False)

    killer = threading.Thread(target=kill_a_node)
    killer.start()
    found = begin(cluster, disturbed, EPOCHS)
    killer.join()
    assert not found.failures
    assert len(found.rows) == 4
    again = [runs.read_description(path).get("resumed", []) for path in disturbed.glob("runs/*/seeds-*")]
    assert sum(map(len, again)) >= 2, "neither the driver's death nor the node's was in the middle of a run"
    calm, stormy = metrics(tmp_path / "calm"), metrics(disturbed)
    assert calm.keys() == stormy.keys()
    for name, values in calm.items():
        for metric, expected in values.items():
            np.testing.assert_array_equal(stormy[name][metric], expected, err_msg=f"{name} {metric}")


def size_of_metrics(out):
    return sum(file.stat().st_size for file in out.glob("runs/*/*/metrics.jsonl"))


def wait_for(happened, process=None, seconds=900):
    until = time.monotonic() + seconds
    while not happened():
        assert process is None or process.poll() is None, "the driver has ended by itself"
        assert time.monotonic() < until
        time.sleep(0.05)


def test_an_address_where_nobody_is_is_told_in_one_sentence(tmp_path):
    with pytest.raises(InvalidInput, match=r"no Ray cluster answers at 127.0.0.1:1: "):
        sweep.run(
            wanted(2), sweep.Options(tmp_path, quiet=True), sweep.executor(tmp_path, "ray", address="127.0.0.1:1")
        )
