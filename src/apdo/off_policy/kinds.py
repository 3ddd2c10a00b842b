"""The learners by name."""

from types import ModuleType

from apdo.off_policy import contract, ddpg, sac

LEARNERS = {"ddpg": ddpg.Learner, "sac": sac.Learner}
"""Name ↦ the settings of that kind; their type says which learner they are of."""
_MODULES: dict[type, ModuleType] = {ddpg.Learner: ddpg, sac.Learner: sac}


def of(config: contract.Settings) -> contract.Learner:
    """The learner that these are settings of."""
    return _MODULES[type(config)]  # type: ignore[return-value]
