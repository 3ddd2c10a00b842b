"""Signals for tests, which arrive at a chosen time."""

from apdo.experiment.stopping import Stop


class Countdown(Stop):
    """A `Stop` whose signal arrives after it has been asked so many times."""

    left = 10**9

    @property
    def asked(self):
        Countdown.left -= 1
        return Countdown.left < 0
