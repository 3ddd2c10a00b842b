"""Handles SIGTERM and Ctrl-C as requests to stop soon, and a second Ctrl-C as an order to stop at once.

Python runs signal handlers only between its own instructions. A signal during a compiled epoch would wait for the end
of the epoch, and a second signal would be lost. Therefore a thread reads the signals from a pipe, to which the system's
handler writes at once.
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
    """A context in which signals set `asked`. Outside the main thread it does nothing."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._asked = threading.Event()
        self._keyboard = False
        self._before: dict[int, Any] = {}
        self._pipe: tuple[int, int] | None = None
        self._wakeup = -1

    @property
    def asked(self) -> bool:
        """Whether a signal has arrived."""
        return self._asked.is_set()

    @property
    def at_the_keyboard(self) -> bool:
        """Whether the first signal was Ctrl-C, so that a person is there who can use the result so far."""
        return self._keyboard

    def __enter__(self) -> "Stop":
        if threading.current_thread() is not threading.main_thread():
            return self
        reading, writing = self._pipe = os.pipe()
        os.set_blocking(writing, False)
        self._wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            # A program that was started in the background ignores Ctrl-C. It keeps doing so.
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
        """Do nothing: the thread has already read the signal."""

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
    """End the process from any thread, and restore the terminal."""
    if sys.stdout.isatty():
        sys.stdout.write("\x1b[?25h\n")  # the display hides the cursor
        sys.stdout.flush()
    os.write(2, b"apdo: interrupted.\n")
    os._exit(_INTERRUPTED)
