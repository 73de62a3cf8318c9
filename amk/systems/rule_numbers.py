"""The numbers that a file says its rules by: see `rules`."""

from typing import Final

AT_LEAST, PARITY, EQUAL, NEXT_PHASE = range(4)
ADD, STORE, EXPECT, COMPLETE, ONLY_EXPECT = range(5)
GENERIC, ASYNC, FENCE = range(3)
HIGHEST: Final = {"wait_rule": 4, "signal_rule": 5, "phase": 1 << 20, "proxy": 3}
