"""The learners by name."""

from types import ModuleType

from apdo.off_policy import contract, ddpg, sac

LEARNERS = {"ddpg": ddpg.Learner, "sac": sac.Learner}
"""Each learner's name and the type of its settings. The type determines the learner."""
_MODULES: dict[type, ModuleType] = {ddpg.Learner: ddpg, sac.Learner: sac}


def of(config: contract.Settings) -> contract.Learner:
    """The learner with settings of this type."""
    return _MODULES[type(config)]  # type: ignore[return-value]
