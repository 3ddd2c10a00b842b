"""Signals for tests, which come when they are wanted."""

from apdo.experiment.stopping import Stop


class Countdown(Stop):
    """Signals that come after so many looks for one."""

    left = 10**9

    @property
    def asked(self):
        Countdown.left -= 1
        return Countdown.left < 0
