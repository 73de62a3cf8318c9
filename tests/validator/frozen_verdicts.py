"""What the validator of this process's tree answers, as (status, code, place): a server for `tests.validator.frozen`.

Run as a file with the root of a tree in PYTHONPATH, it answers each document on a line of its input by a line.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pydantic import ValidationError

from amk.report.diagnostic import AmkError
from amk.schedule_ir.schedule import Schedule
from amk.validator.memory.flat import judge
from amk.validator.program.system import MalformedSystem, from_json
from amk.validator.verify import verify

SECONDS = 40.0
"""That a verdict may take."""
Answer = list[Any]


def answer(document: Any) -> Answer:
    """[status, code of the first finding, its place]; of a flat system [status, stuck, racy, wrong content]. `late` if
    the time was not enough."""
    try:
        if "agent_first" in document:
            found = judge(from_json(document))
            status = "SAFE" if found.safe else "UNSAFE"
            return [status, found.deadlock is not None, found.races.racy, not found.dataflow.correct]
        verdict = verify(Schedule.model_validate_json(json.dumps(document)), timeout_s=SECONDS)
    except (ValidationError, MalformedSystem):
        return ["refused", "AMK005", ""]
    except AmkError as error:
        return ["refused", error.diagnostics[0].code, ""]
    except Exception as error:  # noqa: BLE001  an error of one side and not of the other is a difference too
        return ["error", type(error).__name__, str(error)]
    if any(d.message.startswith("the time limit") for d in verdict.diagnostics):
        return ["late", "", ""]
    code, place = next(((d.code, d.where.path) for d in verdict.diagnostics), ("", ""))
    return [verdict.status, code, place]


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
