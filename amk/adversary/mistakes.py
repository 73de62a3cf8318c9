"""The one table of mistakes. Every stored case and every generated class shows an entry of it.

The mistakes with a number are classes: `classes/table.py` has a generator of mutants for each. Those without a number
are shown by recipes alone.
"""

from __future__ import annotations

from enum import Enum


class Mistake(Enum):
    """title: what is wrong. number: of the class, 0 without one."""

    QUEUE_INVERSION = "cross-SM queue inversion", 1
    QUEUE_CYCLE = "k-SM queue cycle", 2
    LOW_THRESHOLD = "threshold one too low", 3
    HIGH_THRESHOLD = "threshold too high in the ragged last wave", 4
    PARTIAL_OF_OTHERS = "partial threshold, needed producer not guaranteed", 5
    PARTIAL_OF_ONE_OWNER = "partial threshold, single-owner prefix", 6
    PARTIAL_BY_COUNT = "partial threshold by counting", 7
    DOUBLE_SIGNAL = "task signals twice", 8
    HEAVY_SIGNAL = "weight hides a pending producer", 9
    OTHER_COUNTER = "producer moved to another counter", 10
    SHARED_CELL = "two events share a counter cell", 11
    REDUNDANT_WAIT = "dropped wait, redundant by transitivity", 12
    MASKED_WAIT = "dropped wait masked by same-SM order", 13
    MOVED_WAIT = "wait moved away from its load", 14
    EQUALITY_WAIT = "wait for equality", 15
    REUSED_ACTIVATION = "write after read on a reused activation", 16
    SPLIT_PARTIALS = "two split partials on one slot", 17
    STRADDLING_READER = "reader straddles producer tiles", 18
    OVERLAPPING_SHARES = "shares overlap by a row group", 19
    STALE_READ = "stale read without a race", 20
    IN_PLACE_RESIDUAL = "in-place residual", 21
    ALIASED_PAGES = "aliased pages", 22
    SHARED_BYTE = "packed tiles share a byte", 23
    MIXED_ACCUMULATION = "accumulate mixed with store", 24
    MISSING_ZERO = "missing zero of an accumulator", 25
    EARLY_RELEASE_OF_A_SLOT = "slot released before its last read", 26
    WRONG_DEPTH = "phase computed with another depth", 27
    WRONG_PARITY = "wrong initial parity", 28
    WRONG_ARRIVALS = "wrong arrival count", 29
    WRONG_BYTES = "expect_tx bytes differ from copied bytes", 30
    LATE_EXPECTATION = "expect_tx after the arrive", 31
    PARITY_ALIASING = "parity aliasing, two phases behind", 32
    SLOT_ACROSS_TASKS = "slot reused across tasks", 33
    WRONG_WAIT_GROUP = "refill after the wrong wait_group", 34
    READ_WAIT = "read wait before a global signal", 35
    EARLY_RELEASE = "release before the barrier", 36
    RELAXED_ORDER = "relaxed poll or signal", 37
    NARROW_SCOPE = "scope too narrow", 38
    MISSING_PROXY_FENCE = "missing proxy fence", 39
    NON_COHERENT_LOAD = "non-coherent load of written memory", 40
    NO_EPOCHS = "no epoch separation", 41
    COUNTER_RESET = "reset races a late waiter", 42
    SPLIT_COUNT = "split count", 43
    LAUNCH_LIMITS = "wrap and co-residency", 44
    DROPPED_WAIT = "dropped wait", 0
    DROPPED_BARRIER = "dropped barrier", 0
    MOVED_BARRIER = "moved barrier", 0
    POLL_WITHOUT_BARRIER = "poll without a barrier behind it", 0
    ARRIVAL_WITHOUT_WAIT = "barrier only arrived at", 0
    MISSING_SIGNAL = "missing signal", 0
    OTHER_INSTANCE = "wait or signal on another instance of a counter", 0
    WAIT_CYCLE = "wait for a signal of one's own", 0
    NONZERO_INITIAL_COUNT = "counter that starts above zero", 0
    HINT_FOR_ORDER = "hint taken for an order", 0
    REPEATED_TAG = "tag that does not tell its word from others", 0
    EMPTY_WAIT = "wait for nothing in place of a barrier", 0
    SWAPPED_STEPS = "swapped steps", 0
    WEAK_OPERATION = "synchronisation by a weak operation or one of another size", 0
    MIXED_REDUCTIONS = "reductions of different sizes on one cell", 0
    MODIFIED_TENSOR_MAP = "tensor map modified before a copy", 0
    DECREMENT = "counter that decreases", 0
    DATA_DEPENDENCE = "wait or signal that depends on data", 0
    LOCK = "lock", 0
    UNSIGNED_COMPARISON = "comparison that fails at the wrap", 0
    SHARED_POOL = "pool that all warps block on", 0
    OUT_OF_BOUNDS = "access out of bounds", 0
    UNCOVERED_OUTPUT = "output not covered", 0
    OTHER_GRAPH = "op of another graph", 0
    OTHER_CONSTANT = "wrong constant", 0
    OTHER_LAYOUT = "layout of another product", 0
    CUT_CHUNKS = "parts that cut chunks", 0
    CUT_BLOCK = "staged part of a block", 0
    LONG_SHARE = "share that is too long", 0
    ODD_WORDS = "pair of words at an odd word", 0
    REUSED_SLOT = "slot of a ring reused by something else", 0
    UNSET_REGISTER = "register that is not set", 0
    LOST_STATE = "state that the next launch does not find", 0
    RESOURCES = "launch beyond the device's resources", 0
    SHARED_ROWS = "rows of a step in the same bytes", 0
    UNORDERED_SHARES = "shares in another order than their rows", 0
    OTHER_SEQUENCE = "cache or position of another sequence", 0
    GUESSES_WITHOUT_ROWS = "guesses without rows", 0
    UNAWAITED_ACCEPTANCE = "accepted count not awaited", 0
    REJECTED_ROWS = "rows of rejected guesses read", 0
    TREE_WITHOUT_ROWS = "tree without rows", 0
    OTHER_NODES = "node that attends to others", 0
    EQUAL_PROGRAMS = "programs that are equal but for their names", 0

    def __init__(self, title: str, number: int) -> None:
        self.title, self.number = title, number

    @property
    def label(self) -> str:
        """`class` in the file of a case."""
        return f"{self.number} {self.title}" if self.number else self.title

    @property
    def key(self) -> str:
        """What its row in the table of outcomes is called."""
        return str(self.number) if self.number else self.title


BY_LABEL = {mistake.label: mistake for mistake in Mistake}
