"""OmniSafe's published results on the benchmark's tasks: return and cost, each with mean and standard deviation.

The figures are those of its documentation; we have not run any of them. The limit is 25 on an episode's plain total of
costs. On-policy algorithms had 10,000,000 steps. Off-policy ones had 1,000,000, and 3,000,000 on the point robot's
tasks.
"""

from typing import NamedTuple

LIMIT = 25.0
ON_POLICY_STEPS = 10_000_000


class Figure(NamedTuple):
    """A published result; a deviation is None if it was not given."""

    earned: float
    earned_deviation: float | None
    cost: float
    cost_deviation: float | None

    def __str__(self) -> str:
        return " / ".join(
            f"{value:g}" if deviation is None else f"{value:g} ± {deviation:g}"
            for value, deviation in ((self.earned, self.earned_deviation), (self.cost, self.cost_deviation))
        )


ON_POLICY = {
    "point-goal-1": {
        "Policy Gradient": Figure(26.19, 3.44, 201.22, 80.4),
        "Natural PG": Figure(26.92, 0.58, 57.92, 9.97),
        "TRPO": Figure(27.2, 0.44, 45.88, 11.27),
        "PPO": Figure(25.44, 5.43, 55.72, 35.55),
        "RCPO": Figure(15.27, 4.05, 30.56, 19.15),
        "TRPOLag": Figure(18.51, 3.83, 22.98, 8.45),
        "PPOLag": Figure(12.96, 6.95, 25.8, 34.99),
        "P3O": Figure(1.6, 3.01, 31.1, 80.03),
        "CUP": Figure(14.42, 6.74, 19.02, 20.08),
        "PCPO": Figure(18.57, 1.71, 22.98, 6.56),
        "FOCOPS": Figure(14.97, 9.01, 33.72, 42.24),
        "CPO": Figure(20.46, 1.38, 28.84, 7.76),
        "PPOSaute": Figure(7.06, 5.85, 20.04, 21.91),
        "TRPOSaute": Figure(16.18, 9.55, 29.94, 26.68),
        "PPOSimmerPID": Figure(8.3, 6.03, 25.32, 31.91),
        "TRPOSimmerPID": Figure(11.64, 8.46, 30.0, 27.67),
        "CPPOPID": Figure(8.43, 3.43, 25.74, 7.83),
        "TRPOPID": Figure(19.24, 3.94, 21.38, 6.96),
        "PPOEarlyTerminated": Figure(16.03, 8.6, 19.17, 9.42),
        "TRPOEarlyTerminated": Figure(16.31, 6.99, 22.1, 6.13),
    },
    "halfcheetah-velocity": {
        "Policy Gradient": Figure(5188.46, 1202.76, 896.55, 184.7),
        "Natural PG": Figure(5878.28, 2012.24, 847.74, 249.02),
        "TRPO": Figure(6490.76, 2507.18, 734.26, 321.88),
        "PPO": Figure(6921.83, 1721.79, 919.2, 173.08),
        "RCPO": Figure(2440.97, 451.88, 9.02, 9.34),
        "TRPOLag": Figure(2884.68, 77.47, 9.04, 11.83),
        "PPOLag": Figure(2946.15, 306.35, 3.44, 4.77),
        "P3O": Figure(2117.84, 313.55, 27.6, 8.36),
        "CUP": Figure(2850.6, 244.65, 4.27, 4.46),
        "PCPO": Figure(1677.93, 217.31, 19.06, 15.26),
        "FOCOPS": Figure(2965.2, 290.43, 2.37, 3.5),
        "CPO": Figure(2786.48, 173.45, 4.7, 6.72),
        "PPOSaute": Figure(2901.4, 25.49, 16.2, 0.6),
        "TRPOSaute": Figure(2521.8, 477.29, 7.61, 0.39),
        "PPOSimmerPID": Figure(2922.17, 24.84, 16.14, 0.14),
        "TRPOSimmerPID": Figure(2737.79, 37.53, 16.44, 0.21),
        "CPPOPID": Figure(2837.89, 398.52, 8.06, 9.62),
        "TRPOPID": Figure(2796.75, 190.84, 11.16, 9.8),
        "PPOEarlyTerminated": Figure(2447.25, 346.84, 3.47, 4.9),
        "TRPOEarlyTerminated": Figure(2555.7, 368.17, 0.06, 0.08),
    },
    "ant-velocity": {
        "Policy Gradient": Figure(5292.29, 913.44, 919.42, 158.61),
        "Natural PG": Figure(5547.2, 807.89, 895.56, 77.13),
        "TRPO": Figure(6026.79, 314.98, 933.46, 41.28),
        "PPO": Figure(5977.73, 885.65, 958.13, 134.5),
        "RCPO": Figure(3139.52, 110.34, 12.34, 3.11),
        "TRPOLag": Figure(3041.89, 180.77, 19.52, 20.21),
        "PPOLag": Figure(3261.87, 80.0, 12.05, 6.57),
        "P3O": Figure(2636.62, 181.09, 20.69, 10.23),
        "CUP": Figure(3215.79, 346.68, 18.25, 17.12),
        "PCPO": Figure(2257.07, 47.97, 10.44, 5.22),
        "FOCOPS": Figure(3184.48, 305.59, 14.75, 6.36),
        "CPO": Figure(3098.54, 78.9, 14.12, 3.41),
        "PPOSaute": Figure(2978.74, 93.65, 16.77, 0.92),
        "TRPOSaute": Figure(2507.65, 63.97, 8.036, 0.39),
        "PPOSimmerPID": Figure(2944.84, 60.53, 16.2, 0.66),
        "TRPOSimmerPID": Figure(3018.95, 66.44, 16.52, 0.23),
        "CPPOPID": Figure(3213.36, 146.78, 14.3, 7.39),
        "TRPOPID": Figure(3052.94, 139.67, 15.22, 3.68),
        "PPOEarlyTerminated": Figure(2801.53, 19.66, 0.23, 0.09),
        "TRPOEarlyTerminated": Figure(3052.63, 58.41, 0.4, 0.23),
    },
    "hopper-velocity": {
        "Policy Gradient": Figure(3218.17, 672.88, 881.76, 198.46),
        "Natural PG": Figure(2613.95, 866.13, 587.78, 220.97),
        "TRPO": Figure(2047.35, 447.33, 448.12, 103.87),
        "PPO": Figure(2337.11, 942.06, 550.02, 237.7),
        "RCPO": Figure(1428.58, 199.87, 11.12, 12.66),
        "TRPOLag": Figure(1391.79, 269.07, 11.22, 9.97),
        "PPOLag": Figure(961.92, 752.87, 13.96, 19.33),
        "P3O": Figure(1231.52, 465.35, 16.33, 11.38),
        "CUP": Figure(1716.08, 5.93, 7.48, 5.535),
        "PCPO": Figure(1551.22, 85.16, 15.46, 9.83),
        "FOCOPS": Figure(1437.75, 446.87, 10.13, 8.87),
        "CPO": Figure(1713.71, 18.26, 13.4, 5.82),
        "PPOSaute": Figure(1650.91, 152.65, 17.87, 1.33),
        "TRPOSaute": Figure(1368.28, 576.08, 10.38, 4.38),
        "PPOSimmerPID": Figure(1699.94, 24.25, 17.04, 0.41),
        "TRPOSimmerPID": Figure(1608.41, 88.23, 16.3, 0.3),
        "CPPOPID": Figure(1713.29, 10.21, 8.96, 4.28),
        "TRPOPID": Figure(1178.59, 646.71, 18.76, 8.93),
        "PPOEarlyTerminated": Figure(1643.39, 2.58, 0.77, 0.26),
        "TRPOEarlyTerminated": Figure(1646.47, 49.95, 0.42, 0.84),
    },
    "walker2d-velocity": {
        "Policy Gradient": Figure(4832.34, 685.76, 866.59, 93.47),
        "Natural PG": Figure(5347.35, 436.86, 914.74, 32.61),
        "TRPO": Figure(6096.67, 723.06, 914.46, 27.85),
        "PPO": Figure(6239.52, 879.99, 902.68, 100.93),
        "RCPO": Figure(3064.43, 218.83, 3.02, 1.48),
        "TRPOLag": Figure(3207.1, 7.88, 14.98, 9.27),
        "PPOLag": Figure(2982.27, 681.55, 13.49, 14.55),
        "P3O": Figure(2713.57, 313.2, 20.51, 14.09),
        "CUP": Figure(2466.95, 1114.13, 6.63, 8.25),
        "PCPO": Figure(1802.86, 714.04, 18.82, 5.57),
        "FOCOPS": Figure(3117.05, 53.6, 8.78, 12.38),
        "CPO": Figure(2074.76, 962.45, 21.9, 9.41),
        "PPOSaute": Figure(2410.89, 241.22, 18.88, 2.38),
        "TRPOSaute": Figure(2548.82, 891.65, 13.21, 6.09),
        "PPOSimmerPID": Figure(3187.56, 32.66, 17.1, 0.49),
        "TRPOSimmerPID": Figure(3156.99, 30.93, 17.14, 0.54),
        "CPPOPID": Figure(2183.43, 1300.69, 14.12, 10.28),
        "TRPOPID": Figure(2707.75, 980.56, 9.6, 8.94),
        "PPOEarlyTerminated": Figure(2195.57, 1046.29, 7.63, 10.44),
        "TRPOEarlyTerminated": Figure(2079.64, 1028.73, 13.74, 15.94),
    },
    "humanoid-velocity": {
        "Policy Gradient": Figure(7001.78, 419.67, 834.11, 212.43),
        "Natural PG": Figure(8055.2, 641.67, 946.4, 9.11),
        "TRPO": Figure(8681.24, 3934.08, 718.42, 323.3),
        "PPO": Figure(9115.93, 596.88, 960.44, 7.06),
        "RCPO": Figure(6286.51, 151.03, 19.47, 7.74),
        "TRPOLag": Figure(6551.3, 58.42, 59.56, 117.37),
        "PPOLag": Figure(6624.46, 25.9, 5.87, 9.46),
        "P3O": Figure(6342.47, 82.45, 126.4, 193.76),
        "CUP": Figure(6109.94, 497.56, 24.69, 20.54),
        "PCPO": Figure(5852.25, 78.01, 0.24, 0.48),
        "FOCOPS": Figure(6489.39, 35.1, 13.86, 39.33),
        "CPO": Figure(6465.34, 79.87, 0.18, 0.36),
        "PPOSaute": Figure(6401.0, 32.23, 17.1, 2.41),
        "TRPOSaute": Figure(5759.44, 75.73, 15.84, 1.42),
        "PPOSimmerPID": Figure(6401.85, 57.62, 11.06, 5.35),
        "TRPOSimmerPID": Figure(6411.32, 44.26, 13.04, 2.68),
        "CPPOPID": Figure(6579.26, 55.7, 3.76, 3.61),
        "TRPOPID": Figure(6407.95, 254.06, 7.38, 11.34),
        "PPOEarlyTerminated": Figure(6321.45, 35.73, 0.0, 0.0),
        "TRPOEarlyTerminated": Figure(6332.14, 89.86, 0.0, 0.0),
    },
    "swimmer-velocity": {
        "Policy Gradient": Figure(77.05, 33.44, 107.1, 60.58),
        "Natural PG": Figure(120.19, 7.74, 161.78, 17.51),
        "TRPO": Figure(124.91, 6.13, 176.56, 15.95),
        "PPO": Figure(119.77, 13.8, 165.27, 20.15),
        "RCPO": Figure(61.29, 18.12, 22.6, 1.16),
        "TRPOLag": Figure(81.18, 16.33, 22.24, 3.91),
        "PPOLag": Figure(64.74, 17.67, 28.02, 4.09),
        "P3O": Figure(38.02, 34.18, 18.4, 12.13),
        "CUP": Figure(63.83, 46.45, 21.95, 11.04),
        "PCPO": Figure(54.42, 38.65, 17.34, 1.57),
        "FOCOPS": Figure(53.87, 17.9, 29.75, 7.33),
        "CPO": Figure(65.3, 43.25, 18.22, 8.01),
        "PPOSaute": Figure(35.61, 4.37, 3.44, 1.35),
        "TRPOSaute": Figure(34.72, 1.37, 10.19, 2.32),
        "PPOSimmerPID": Figure(77.52, 40.2, 0.98, 1.91),
        "TRPOSimmerPID": Figure(51.39, 40.09, 0.0, 0.0),
        "CPPOPID": Figure(91.05, 62.68, 19.12, 8.33),
        "TRPOPID": Figure(69.75, 46.52, 20.48, 9.13),
        "PPOEarlyTerminated": Figure(33.02, 7.26, 24.23, 0.54),
        "TRPOEarlyTerminated": Figure(39.24, 5.01, 23.2, 0.48),
    },
}
"""Task ↦ algorithm ↦ its result after 10,000,000 steps."""
OFF_POLICY = {
    "point-goal-1": {
        "DDPGLag": Figure(17.17, 10.03, 20.3, 31.6),
        "TD3Lag": Figure(25.27, 2.74, 28.0, 15.8),
        "SACLag": Figure(21.45, 6.97, 19.2, 9.7),
        "TD3PID": Figure(18.76, 7.87, 12.2, 9.4),
    },
    "point-circle-1": {
        "DDPGLag": Figure(70.7, 13.6, 22.0, 32.8),
        "TD3Lag": Figure(83.1, 3.5, 7.8, 15.8),
        "SACLag": Figure(83.7, 3.3, 12.8, 19.5),
        "TD3PID": Figure(71.0, 6.0, 0.0, None),
    },
    "halfcheetah-velocity": {
        "DDPGLag": Figure(2743.0, 22.0, 0.33, 0.12),
        "TD3Lag": Figure(2741.0, 49.0, 10.5, 14.5),
        "SACLag": Figure(2834.0, 4.0, 0.0, None),
        "TD3PID": Figure(2696.0, 29.0, 35.9, 14.0),
    },
    "ant-velocity": {
        "DDPGLag": Figure(1271.0, 582.0, 33.3, 13.3),
        "TD3Lag": Figure(1944.0, 759.0, 63.3, 46.9),
        "SACLag": Figure(1897.0, 1214.0, 5.7, 7.8),
        "TD3PID": Figure(2410.0, 217.0, 44.5, 38.4),
    },
    "walker2d-velocity": {
        "DDPGLag": Figure(2239.0, 401.0, 33.4, 20.1),
        "TD3Lag": Figure(2996.0, 74.0, 22.5, 17.0),
        "SACLag": Figure(2676.0, 300.0, 30.7, 32.3),
        "TD3PID": Figure(2770.0, 67.0, 6.5, 8.9),
    },
}
"""Task ↦ algorithm ↦ its result after `off_policy_steps`."""
COUNTERPARTS = {
    "trpo": "TRPO",
    "pdo": "TRPOLag",
    "cpo": "CPO",
    "focops": "FOCOPS",
    "cup": "CUP",
    "pcpo": "PCPO",
    "p3o": "P3O",
    "ppo-lag": "PPOLag",
    "trpo-lag": "TRPOLag",
    "cppo-pid": "CPPOPID",
    "trpo-pid": "TRPOPID",
    "rcpo": "RCPO",
    "pd-ddpg": "DDPGLag",
    "sac-lag": "SACLag",
    "sac-lag-1m": "SACLag",
    "ppo-saute": "PPOSaute",
    "trpo-saute": "TRPOSaute",
    "ppo-early-termination": "PPOEarlyTerminated",
    "trpo-early-termination": "TRPOEarlyTerminated",
}
"""Our algorithm ↦ the most similar algorithm of OmniSafe, if it has published figures."""


def off_policy_steps(task: str) -> int:
    """The number of steps for which OmniSafe trained off-policy algorithms on a task."""
    return 3_000_000 if task.startswith("point-") else 1_000_000


def counterpart(task: str, algorithm: str) -> tuple[str, Figure, int] | None:
    """The name, result and steps of OmniSafe's algorithm that is most similar to ours; None if there is none."""
    name = COUNTERPARTS.get(algorithm, "")
    if name in ON_POLICY.get(task, {}):
        return name, ON_POLICY[task][name], ON_POLICY_STEPS
    if name in OFF_POLICY.get(task, {}):
        return name, OFF_POLICY[task][name], off_policy_steps(task)
    return None


def best(task: str) -> tuple[str, Figure, int]:
    """The name, result and steps with the highest return within the limit, from on-policy algorithms if possible."""
    on_policy = task in ON_POLICY
    found = ON_POLICY[task] if on_policy else OFF_POLICY[task]
    within = {name: figure for name, figure in found.items() if figure.cost <= LIMIT}
    name = max(within, key=lambda one: within[one].earned)
    return name, within[name], ON_POLICY_STEPS if on_policy else off_policy_steps(task)
