"""Chat templates: a Jinja program that comes with the weights, so untrusted, turns messages into a prompt.

It is rendered by `chat_child` in another process with limits on time, memory and output, and with an empty environment.
Cost: one Python start, about 0.1 s, once per prompt.
"""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amk.engine.refusal import unsupported
from amk.engine.tokenizers import chat_child
from amk.report.diagnostic import AmkError

REASONING = ("reasoning_content", "thinking", "reasoning")
"""What clients call the reasoning of a message; the first one that is there counts."""


@dataclass(frozen=True)
class Limits:
    """What a template may use. The longest template of a released model has about 16,000 characters."""

    template_characters: int = 128 << 10
    rendered_characters: int = 4 << 20
    seconds: int = 5
    memory_bytes: int = 512 << 20


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    values: Mapping[str, Any] | None = None,
    limits: Limits = Limits(),
) -> str:
    """The prompt for `messages` ({'role': ..., 'content': ...}) up to where the assistant answers.

    `values` holds what templates call bos_token, eos_token, tools and so on. Raises AMK012 when the template is too
    long, fails, refuses the messages, or passes a limit.
    """
    if len(template) > limits.template_characters:
        raise _refused(f"it has {len(template):,} characters, the limit is {limits.template_characters:,}")
    said = {"messages": [_with_reasoning(message) for message in messages], "add_generation_prompt": True}
    # Templates ask for these with `is not none`.
    known = {"tools": None, "documents": None} | dict(values or {}) | said
    request = {
        "path": [*standard_library(), *package_directories("jinja2", "markupsafe")],
        "template": template,
        "values": known,
        "cpu_seconds": limits.seconds,
        "memory_bytes": limits.memory_bytes,
        "max_characters": limits.rendered_characters,
    }
    # -I and -S: neither the user's environment nor site packages decide what the child imports.
    command = [sys.executable, "-I", "-S", str(Path(chat_child.__file__))]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=limits.seconds,
            env={},
            check=False,
            process_group=0,  # Ctrl-C is for this process alone
        )
    except subprocess.TimeoutExpired:
        raise _refused(f"it takes more than {limits.seconds} s") from None
    if done.returncode < 0:
        raise _refused(f"it was stopped by signal {-done.returncode}: more than {limits.seconds} s of CPU time")
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise _refused(last[0][:500] if last else "the renderer failed")
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise _refused(answer["error"])
    return str(answer["text"])


def _with_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message under all names by which templates read its reasoning, as in transformers."""
    reasoning = next((message[name] for name in REASONING if message.get(name) is not None), None)
    return dict(message) if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _refused(reason: str) -> AmkError:
    return unsupported(
        None, f"the chat template of this model cannot be used: {reason}", help="give the prompt without the template"
    )


def standard_library() -> list[str]:
    """Directories of the interpreter itself, without those that packages are installed to."""
    return [path for path in sys.path if path and not path.rstrip("/").endswith(("site-packages", "dist-packages"))]


def package_directories(*packages: str) -> list[str]:
    specs = [importlib.util.find_spec(package) for package in packages]
    return list(dict.fromkeys(str(Path(spec.origin).parent.parent) for spec in specs if spec and spec.origin))
