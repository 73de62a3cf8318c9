"""Runs one tokenizer in a process of its own, started by `tokenizer_process.py` as a script with `python -I -S`.

Lines of JSON come in on stdin and go out on stdout: first {"path", "memory_bytes", "tokenizer"}, then a number and
{"encode", "special"} or {"decode"}; each answer is that number and {"ids"}, {"text"} or {"error"}. A tokenizer's
expressions may take for ever and its normaliser may multiply a text: the limits of the process, and the deadline of
whoever asks, are for that.
"""

import json
import sys
from typing import Any

MAX_TOKENS = 1 << 24


def answered(backend: Any, request: dict[str, Any]) -> dict[str, Any]:
    try:
        if "decode" in request:
            return {"text": backend.decode(request["decode"], skip_special_tokens=True)}
        ids = backend.encode(request["encode"], add_special_tokens=request["special"]).ids
    except BaseException as error:  # noqa: BLE001  a panic of the package is no Exception
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    if len(ids) > MAX_TOKENS:
        return {"error": f"it makes {len(ids):,} tokens of the text"}
    return {"ids": ids}


def main() -> None:
    first = json.loads(sys.stdin.readline())
    sys.path[:] = first["path"]
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # elsewhere the address space cannot be limited or counts shared libraries
        resource.setrlimit(resource.RLIMIT_AS, (first["memory_bytes"], first["memory_bytes"]))
    from tokenizers import Tokenizer

    wrong = ""
    try:
        backend = Tokenizer.from_str(first["tokenizer"])
        backend.encode_special_tokens = first["split_special"]
    except BaseException as error:  # noqa: BLE001  a panic of the package is no Exception
        backend, wrong = None, f"{type(error).__name__}: {error}"[:500]
    for line in sys.stdin:
        number, _, request = line.partition(" ")
        answer = {"error": wrong} if wrong else answered(backend, json.loads(request))
        sys.stdout.write(f"{number} {json.dumps(answer)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
