"""The options of every host task, whatever steps it. So a run's description can be read without its environment."""

import dataclasses

from apdo.envs import expressions
from apdo.errors import InvalidInput
from apdo.options import OURS, option


@dataclasses.dataclass(frozen=True)
class HostOptions:
    """The options of any environment of the host."""

    cost: str = option(
        "",
        "costs as expressions over obs[i], action[i] and next_obs[i], with ; between them; empty: info['cost'] or "
        "info['costs']",
        OURS,
    )
    max_episode_steps: int = option(
        0, "steps after which an episode is cut off; 0: as registered with Gymnasium", OURS, within=(0, 10**7)
    )
    discount: float = option(0.99, "the discount γ", OURS, within=(0.0, 1.0))
    workers: str = option(
        "auto",
        "worker processes that step the environments: 0, a number, or auto; ray:N: N actors of Ray",
        OURS,
    )
    step_seconds: float = option(60.0, "the most seconds that a step may take; 0: no limit", OURS, within=(0.0, 1e6))

    def __post_init__(self) -> None:
        number = self.workers.removeprefix("ray:")
        least = 1 if number != self.workers else 0
        if self.workers != "auto" and not (number.isdecimal() and least <= int(number) <= 256):
            raise InvalidInput(
                f"workers must be auto or a number from 0 to 256, or ray:N with N from 1 to 256, not {self.workers!r}."
            )
        for text in expressions.split(self.cost):
            expressions.parse(text)
