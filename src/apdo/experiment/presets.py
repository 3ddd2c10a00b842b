"""Named sets of options, which override the defaults."""

import dataclasses
from collections.abc import Mapping
from typing import Any

_TRUST_REGION = {"radius": 0.01, "iterations": 10, "damping": 1e-5, "fraction": 0.2, "shrink": 0.8, "trials": 15}
_NETWORKS = {"policy.hidden": (64, 32), "policy.log_std": 0.0, "policy.bound": 0.0}
_NETWORKS |= {"critic.hidden": (64, 32), "trace": 0.95}
_TRPO_STEP = {"primal": "trpo"} | {f"primal.{name}": value for name, value in _TRUST_REGION.items()}
_RUN = {"batch": 50_000, "epochs": 150}
_PDO = _RUN | _NETWORKS | _TRPO_STEP
_PDO |= {"rule": "ascent", "units": "own", "dual_step": 0.1, "initial_multiplier": 0.0, "margin": 0.0, "overshoot": 0.0}
_PDO |= {"first": "policy"}
_FAST = {
    "batch": 10_000,
    "samples": 600_000,
    "k_adj": 4,
    "explore": True,
    # With so few samples the actor must be careful. λ then comes out a little too low, and PID raises it.
    "off_policy.learner.cloning": 0.025,
}
_DEMO = {"batch": 10_000, "epochs": 15}
_NAMED = ("focops", "cup", "pcpo", "p3o", "ipo", "crpo", "ppo-lag", "trpo-lag", "cppo-pid", "trpo-pid", "rcpo")
LEARNER = {
    "critic_hidden": (100, 100),
    "actor_hidden": (64, 32),
    "critic_rate": 1e-3,
    "actor_rate": 1e-3,
    "dual_rate": 1e-2,
    "dual_states": "batch",
    "units": "own",
    "target_rate": 0.001,
    "minibatch": 64,
    "rule": "ascent",
    "clock": False,
    "bound": 0.0,
    "action_noise": 0.0,
    "cloning": 0.0,
    "last_rate": 1.0,
    "averaged": 1.0,
}
"""The learner of the paper's appendix."""


@dataclasses.dataclass(frozen=True)
class Preset:
    """Options for each algorithm that the preset applies to."""

    what: str
    by_algorithm: Mapping[str, Mapping[str, Any]]
    note: str = ""
    """Printed on the screen and on pictures."""

    def options(self, algorithm: str) -> Mapping[str, Any]:
        """The options for one algorithm."""
        return self.by_algorithm.get(algorithm, {})


PRESETS = {
    "paper": Preset(
        what="the paper's supplementary parameters, and the published CPO code's where the paper is silent",
        by_algorithm={
            "trpo": _RUN | _NETWORKS | _TRPO_STEP,
            "pdo": _PDO,
            "cpo": _RUN
            | _NETWORKS
            | {"cost_trace": 1.0, "doubt": False, "history": 0.0, "margin": 0.0}
            | {f"search.{name}": value for name, value in _TRUST_REGION.items()},
            "pd-ddpg": {f"learner.{name}": value for name, value in LEARNER.items()}
            | {"replay_capacity": 1_000_000, "updates": 1.0},
            "apdo": _PDO
            | {"k_adj": 5, "adjust": "dual", "check": False, "explore": False, "replay_capacity": 1_000_000}
            | {"off_policy.iterations": 500_000, "off_policy.members": 1, "off_policy.spread": 1.0}
            | {f"off_policy.learner.{name}": value for name, value in LEARNER.items()},
        },
    ),
    "fast": Preset(
        what="few samples: explore, jump in multiplier and policy, then small batches (docs/sample-efficiency.md)",
        by_algorithm={"apdo": _FAST},
    ),
    "demo": Preset(
        what="150,000 samples of any algorithm, for a first look on two CPU cores",
        by_algorithm={
            "trpo": _DEMO,
            "pdo": _DEMO,
            "cpo": _DEMO,
            "pd-ddpg": {"epochs": 100, "batch": 600, "replay_capacity": 60_000},
            "sac-lag": {"samples": 150_000, "updates": 0.25, "replay_capacity": 150_000, "learner.minibatch": 64}
            | {f"learner.{name}": (64, 64) for name in ("critic_hidden", "actor_hidden")},
            # One jump, whatever the checks would say: checks and further attempts take a minute.
            "apdo": _FAST | _DEMO | {"check": False},
        }
        | dict.fromkeys(_NAMED, _DEMO),
        note="demo: 150,000 samples; the paper has 7,500,000 (--preset paper)",
    ),
}
