"""Seeds are spread over the devices of a machine, and come out as on one."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import jax, numpy as np
import jax.numpy as jnp
from apdo import loop
from apdo.experiment import checkpoint, opening, runner, settings

assert jax.device_count() == 8
assert [loop.devices_for(seeds) for seeds in (1, 3, 8, 12, 16)] == [1, 3, 8, 6, 8]
options = {"batch": 200, "epochs": 2, "critic.passes": 1, "policy.hidden": (4,), "critic.hidden": (4,)}
training = opening.training_of(settings.make_experiment("trpo", "two-state", options))
found, states = [], []
for most in (8, 1):
    if most == 1:
        loop.devices_for = lambda seeds: 1
    chunk = loop.make_advance(training)(loop.start(training, list(range(8))), jnp.asarray(2))
    assert int(chunk.done) == 2
    found.append({name: np.asarray(value)[:2] for name, value in chunk.metrics.items()})
    leaves = [leaf for _, leaf in checkpoint.named((chunk.state.algorithm, chunk.state.key))]
    own = sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves) / sum(leaf.nbytes for leaf in leaves)
    assert own <= 1 / 6 if most == 8 else own == 1, own
    checkpoint.save(FOLDER / f"{most}.npz", chunk.state, 2)
    states.append(checkpoint.load(FOLDER / f"{most}.npz", chunk.state))
for name, values in found[0].items():
    np.testing.assert_allclose(values, found[1][name], rtol=1e-4, atol=1e-4 * np.abs(values).max(), err_msg=name)
for one, other in zip(*(jax.tree.leaves(state.algorithm) for state in states)):
    assert one.shape == other.shape
"""


def test_eight_devices_give_what_one_gives_with_an_eighth_of_the_state_on_each(tmp_path):
    program = f"from pathlib import Path\nFOLDER = Path({str(tmp_path)!r})\n{PROGRAM}"
    xla = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    flags = {"XLA_FLAGS": xla.strip(), "JAX_PLATFORMS": "cpu"}
    source = str(Path(__file__).parent.parent / "src")
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | flags | {"PYTHONPATH": source},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
