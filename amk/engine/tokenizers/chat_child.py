"""Renders one chat template in a process of its own, started by `chat.py` as a script with `python -I -S`.

Reads a JSON object from stdin, writes one to stdout: {"text": ...} or {"error": ...}. Jinja's immutable sandbox keeps a
template from attributes and mutation, but not from `9 ** 9 ** 9` or nested loops: that is what the limits of the
process are for. Anything unexpected ends it with a traceback, which the parent reports by its last line.
"""

import json
import sys
from typing import Any, NoReturn


def limit_process(cpu_seconds: int, memory_bytes: int) -> None:
    """Limits of this process for CPU time, address space and written files, where the system has them."""
    try:
        import resource
    except ImportError:  # Windows: the parent's wall-clock limit remains
        return
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if sys.platform == "linux":  # elsewhere the address space cannot be limited or counts shared libraries
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def render(template: str, values: dict[str, Any], max_characters: int) -> dict[str, str]:
    """The rendered text, or why there is none. The environment is the one chat templates are written for."""
    from datetime import datetime

    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Node, Scope
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    class Generation(Extension):
        """`{% generation %}` marks what an assistant said, for training; here it is what stands inside, whose variables
        end with it."""

        tags = {"generation"}  # noqa: RUF012  so the base class declares it

        def parse(self, parser: Parser) -> Node:
            line = next(parser.stream).lineno
            return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.filters["tojson"] = tojson
    parts: list[str] = []
    length = 0
    try:
        for part in environment.from_string(template).generate(**values):
            length += len(part)
            if length > max_characters:
                return {"error": f"it renders more than {max_characters:,} characters"}
            parts.append(part)
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        return {"error": f"{error.message or type(error).__name__}{f' (line {line})' if line else ''}"[:1000]}
    return {"text": "".join(parts)}


def main() -> None:
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    limit_process(request["cpu_seconds"], request["memory_bytes"])
    json.dump(render(request["template"], request["values"], request["max_characters"]), sys.stdout)


if __name__ == "__main__":
    main()
