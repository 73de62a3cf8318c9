"""A judging process with a quick certifier and no compiler: `quick_gate.py [COUNTER] PARENT DESCRIPTOR`.

COUNTER is a file; while there is something in it, a start takes one byte away and fails.
"""

import os
import sys
from pathlib import Path

if len(sys.argv) > 3 and (left := Path(sys.argv[1]).read_text()):
    Path(sys.argv[1]).write_text(left[1:])
    os._exit(1)

from amk.agent.gate import certify
from amk.agent.gate import process as gate_process
from amk.agent.gate.candidate import Workshop
from amk.agent.gate.certify import Certifier
from amk.agent.gate.gate import Gate, not_compiled
from tests.agent.rules import fences_kept


def quick(workshop: Workshop, certifier: Certifier, runs: bool) -> Gate:
    return Gate(workshop, certifier, not_compiled, runs=runs)


if __name__ == "__main__":
    certify.installed = lambda *_: fences_kept
    gate_process.Gate = quick  # type: ignore[assignment,misc]
    gate_process.serve(*(int(word) for word in sys.argv[-2:]))
