"""The recorded steps, against which the velocity tasks are tested elsewhere, are Safety-Gymnasium's own."""

import numpy as np
import pytest

from apdo.envs import safety
from velocity_steps import ROBOTS, record, recorded

if not safety.installed(safety.SAFETY_GYMNASIUM):
    pytest.skip("Safety-Gymnasium is not installed; make test-safety-gymnasium runs these", allow_module_level=True)


@pytest.mark.parametrize("robot", ROBOTS)
def test_safety_gymnasium_gives_what_was_recorded(robot):
    expected, found = recorded()[robot], record(robot)
    assert found["observation"].keys() == expected["observation"].keys()
    for t, observation in expected["observation"].items():
        np.testing.assert_allclose(found["observation"][t], observation, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found["reward"], expected["reward"], rtol=1e-6, atol=1e-6)
    for name in ("action", "cost", "terminated"):
        assert found[name] == expected[name]
