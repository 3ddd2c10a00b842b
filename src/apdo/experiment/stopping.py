"""SIGTERM and Ctrl-C as a request to stop soon; a second Ctrl-C as an order to stop now.

Python runs its signal handlers only between its own instructions, so that one which comes during a compiled epoch would
wait for the epoch's end, and a second one would be lost in the first. A thread therefore reads the signals from a pipe
that the system's handler writes to at once.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_INTERRUPTED = 130


class Stop:
    """While it is entered, signals set `asked`; outside the main thread, where Python has no say in them, nothing."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._asked = threading.Event()
        self._keyboard = False
        self._before: dict[int, Any] = {}
        self._pipe: tuple[int, int] | None = None
        self._wakeup = -1

    @property
    def asked(self) -> bool:
        """Whether a signal has come."""
        return self._asked.is_set()

    @property
    def at_the_keyboard(self) -> bool:
        """Whether the first signal was Ctrl-C: somebody is there, and can use what there is."""
        return self._keyboard

    def __enter__(self) -> "Stop":
        if threading.current_thread() is not threading.main_thread():
            return self
        reading, writing = self._pipe = os.pipe()
        os.set_blocking(writing, False)
        self._wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            # A program started in the background ignores Ctrl-C, and goes on doing so.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        threading.Thread(target=self._watch, args=(reading,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pipe is None:
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._pipe[1])  # the watcher reads the end of the pipe, and closes its side

    def _note(self, number: int, frame: FrameType | None) -> None:
        """The watcher has heard of it already."""

    def _watch(self, pipe: int) -> None:
        while signals := os.read(pipe, 16):
            for number in signals:
                if number not in self._before:
                    continue
                if self._asked.is_set():
                    if number == signal.SIGINT:
                        _leave()
                else:
                    self._keyboard = number == signal.SIGINT
                    self._say("stopping after this epoch, or piece of an adjustment; Ctrl-C again stops at once")
                self._asked.set()
        os.close(pipe)


def _leave() -> None:
    """End the process from any thread, with the terminal as it was."""
    if sys.stdout.isatty():
        sys.stdout.write("\x1b[?25h\n")  # the display hides the cursor
        sys.stdout.flush()
    os.write(2, b"apdo: interrupted.\n")
    os._exit(_INTERRUPTED)
