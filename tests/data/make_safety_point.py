"""Makes safety_point.npz: what Safety-Gymnasium 1.0.0 itself does in the point tasks, with MuJoCo 2.3.3.

Needs the environment of `make test-safety-gymnasium`:

    .venv-safety/bin/python tests/data/make_safety_point.py tests/data/safety_point.npz

A state is x, y, heading, velocity (2) and spin. E = 100 episodes of T = 200 steps, twenty of each of `TASKS`, in which
the robot never touches the vase. Actions are multiples of 1/64, the same numbers in every precision.

    actions      [E, T, 2]        in units of 1/64; the first five of a task turn with ±1 only
    start        [E, 6]           the first state
    track        [E, T/10, 6]     the state after every tenth step
    hazards, vase [E, 8, 2], [E, 2]  NaN where there are none
    when         [E, 4]           the numbers of four steps, with events among them; the following are of these steps
    before, after [E, 4, 6]       the states around them
    goals        [E, 4, 2, 2]     before and after
    reward, cost [E, 4]
    observation  [E, 4, 60]       after
    layouts      [L, 11, 2]       PointGoal1 after a reset, in units of 0.1 mm: agent, goal, hazards, vase
    headings     [L, 2]           of agent and vase, in units of 0.1 mrad
    goal_robot   [50, 2]          places in the first fifty layouts, in units of 0.1 mm, at which the robot was put
    goal_redrawn [50, 40, 2]      goals that were drawn then
    pushes       [P, 101, 6]      x, y and heading of robot and vase while the one pushes the other, in the same units;
                                  the vase begins at 0, 0
"""

import sys
from typing import Any

import numpy as np

from apdo.envs import safety

TASKS = ("PointGoal0", "PointGoal1", "PointCircle0", "PointCircle1", "PointCircle2")
EACH, STEPS, UNIT = 20, 200, 64
LAYOUTS, REDRAWN, REDRAWS = 1000, 50, 40
PUSHES, PUSH_STEPS = 60, 100
FINE = 1e-4


def main(path: str) -> None:
    """Record everything and write it."""
    parts = [episodes(name) for name in TASKS]
    data = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    everything: dict[str, Any] = {**data, **layouts(), "pushes": pushes()}
    np.savez_compressed(path, **everything)


def make(name: str) -> tuple[Any, Any]:
    """An environment and its task."""
    env = safety.make(safety.SAFETY_GYMNASIUM, f"Safety{name}-v0")
    return env, env.unwrapped.task


def heading(matrix: np.ndarray) -> float:
    """The angle about z."""
    return float(np.arctan2(matrix[1, 0], matrix[0, 0]))


def state(task: Any) -> np.ndarray:
    """x, y, heading, velocity, spin of the robot."""
    return np.array([*task.agent.pos[:2], heading(task.agent.mat), *task.agent.vel[:2], task.data.qvel[2]])


def place(task: Any, name: str) -> np.ndarray:
    """Where a thing is; NaN without it."""
    try:
        return task.data.body(name).xpos[:2].copy()
    except KeyError:
        return np.full(2, np.nan)


def steer(robot: np.ndarray, target: np.ndarray, speed: float) -> np.ndarray:
    """Turn towards a point, and go at a speed when facing it."""
    away = target - robot[:2]
    off = np.angle(np.exp(1j * (np.arctan2(away[1], away[0]) - robot[2])))
    ahead = robot[3] * np.cos(robot[2]) + robot[4] * np.sin(robot[2])
    return np.array([0.2 * (speed * max(np.cos(off), 0.0) ** 4 - ahead), off])


def rounded(action: np.ndarray) -> np.ndarray:
    """An action in units of 1/64."""
    return np.clip(np.round(action * UNIT), -UNIT, UNIT).astype(np.int8)


def episodes(name: str) -> dict[str, np.ndarray]:
    """Twenty episodes of a task."""
    env, task = make(name)
    rows, seed = [], 0
    while len(rows) < EACH:
        row = episode(env, task, np.random.default_rng(seed), seed, saturated=len(rows) < 5)
        seed += 1
        if row is not None:
            rows.append(row)
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]}


def choose(rng: np.random.Generator, task: Any, now: np.ndarray, goal: np.ndarray, t: int, held: np.ndarray) -> Any:
    """An action: half of the time random and held for a while, else towards a goal or a hazard."""
    if t % 25 == 0:
        held[:] = rng.normal(size=2) * rng.choice([0.05, 0.3, 1.0])
    if (t // 50) % 2 and hasattr(task, "goal"):
        return steer(now, goal if t < 150 or not hasattr(task, "hazards") else place(task, "hazard0"), 1.0)
    return held + rng.normal(size=2) * 0.03


def episode(env: Any, task: Any, rng: np.random.Generator, seed: int, saturated: bool) -> dict[str, np.ndarray] | None:
    """One episode, or None where the robot moves the vase."""
    env.reset(seed=seed)
    held, vase = np.zeros(2), place(task, "vase0")
    states, goals, actions, outcomes = [state(task)], [place(task, "goal")], [], []
    for t in range(STEPS):
        action = choose(rng, task, states[-1], goals[-1], t, held)
        if saturated:
            action[1] = 1.0 if action[1] > 0.0 else -1.0
        actions.append(rounded(action))
        observation, reward, cost, terminated, _, _ = env.step(actions[-1] / UNIT)
        assert not terminated
        states.append(state(task))
        goals.append(place(task, "goal"))
        outcomes.append((reward, cost, np.pad(observation, (0, 60 - len(observation)), constant_values=np.nan)))
        if np.abs(place(task, "vase0") - vase).max() > 1e-6:
            return None
    reward, cost, observation = (np.array(part) for part in zip(*outcomes, strict=True))
    states, goals = np.array(states), np.array(goals)
    met = (goals[1:] != goals[:-1]).any(axis=1) & ~np.isnan(goals[1:, 0])
    weight = 1.0 + 100.0 * met + 20.0 * (np.diff(cost, prepend=0.0) != 0.0)
    when = np.sort(rng.choice(STEPS, 4, replace=False, p=weight / weight.sum()))
    return {
        "actions": np.array(actions),
        "start": states[0],
        "track": states[10::10].astype(np.float32),
        "hazards": np.array([place(task, f"hazard{i}") for i in range(8)]),
        "vase": vase,
        "when": when,
        "before": states[when],
        "after": states[when + 1],
        "goals": np.stack([goals[when], goals[when + 1]], axis=1),
        "reward": reward[when],
        "cost": cost[when].astype(np.int8),
        "observation": observation[when].astype(np.float32),
    }


def fine(values: Any) -> np.ndarray:
    """In units of 0.1 mm or 0.1 mrad."""
    whole = np.round(np.asarray(values) / FINE)
    assert np.abs(whole).max() < 2**15
    return whole.astype(np.int16)


def layouts() -> dict[str, np.ndarray]:
    """Resets of PointGoal1; and for some of them goals drawn anew, with the robot put somewhere."""
    env, task = make("PointGoal1")
    rng = np.random.default_rng(0)
    names = ["agent", "goal", *[f"hazard{i}" for i in range(8)], "vase0"]
    places, headings, robots, redrawn = [], [], [], []
    for seed in range(LAYOUTS):
        env.reset(seed=seed)
        places.append([place(task, name) for name in names])
        headings.append([heading(task.agent.mat), heading(task.data.body("vase0").xmat.reshape(3, 3))])
        if seed < REDRAWN:
            # At the goal, as after reaching it; the joints are relative to the frame in which the robot began.
            there = place(task, "goal") + rng.uniform(-0.2, 0.2, 2)
            turn = np.exp(-1j * headings[-1][0]) * complex(*(there - place(task, "agent")))
            task.data.qpos[:2] = turn.real, turn.imag
            robots.append(there)
            redrawn.append([])
            for _ in range(REDRAWS):
                task.update_layout()
                task.update_world()
                redrawn[-1].append(place(task, "goal"))
            assert np.allclose(place(task, "agent"), there)
    return {
        "layouts": fine(places),
        "headings": fine(headings),
        "goal_robot": fine(robots),
        "goal_redrawn": fine(redrawn),
    }


def pushes() -> np.ndarray:
    """The robot runs into the vase at many speeds and angles, and goes on towards it or elsewhere."""
    env, task = make("PointGoal1")
    tracks, seed = [], 0
    while len(tracks) < PUSHES:
        track = push(env, task, np.random.default_rng(seed), seed)
        seed += 1
        if track is not None:
            tracks.append(track)
    return fine(np.array(tracks))


def push(env: Any, task: Any, rng: np.random.Generator, seed: int) -> np.ndarray | None:
    """Poses from shortly before the vase is touched."""
    env.reset(seed=seed)
    speed, aside, follow = rng.uniform(0.3, 1.5), rng.uniform(-0.15, 0.15, 2), rng.integers(3)
    start, poses, touched, beyond = place(task, "vase0"), [], None, np.zeros(2)
    for t in range(1000):
        vase = task.data.body("vase0")
        robot = state(task)
        poses.append([*robot[:3], *vase.xpos[:2], heading(vase.xmat.reshape(3, 3))])
        if touched is None and np.abs(vase.xpos[:2] - start).max() > 1e-4:
            touched, beyond = t, robot[:2] + 5.0 * np.array([np.cos(robot[2]), np.sin(robot[2])])
        if touched is not None and t >= touched + PUSH_STEPS - 1 and t >= PUSH_STEPS:
            return np.array(poses[touched - 1 : touched + PUSH_STEPS]) - [*start, 0.0, *start, 0.0]
        # On towards the vase, or straight on, or back to where the vase was.
        target = vase.xpos[:2] + aside if touched is None or follow == 0 else (beyond if follow == 1 else start)
        env.step(rounded(steer(robot, target, speed) + rng.normal(size=2) * [0.005, 0.1]) / UNIT)
    return None


if __name__ == "__main__":
    main(sys.argv[1])
