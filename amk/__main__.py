"""`python -m amk`, and the script `amk`.

To import a command takes up to a second, in which a signal would end the process without a word, or with a traceback.
Until a command begins, which may handle signals itself, one that ends the process says that nothing was begun.
"""

import os
import signal
import sys
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STDERR = 2
NOTHING = b"interrupted: nothing was begun\n"


def main() -> int:
    """Run the command that the words of the process name, and return its exit code."""
    before = {each: signal.signal(each, _end) for each in SIGNALS if signal.getsignal(each) is not signal.SIG_IGN}

    def begin() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    from amk import cli

    return cli.main(begin=begin)


def _end(signum: int, frame: FrameType | None) -> None:
    try:
        os.write(STDERR, NOTHING)
    finally:  # a terminal that has gone
        os._exit(128 + signum)


if __name__ == "__main__":
    sys.exit(main())
