"""The tutorial, as its page prints it, without a GPU and without torch: every command and program, and what they say.

In an environment with amk and without torch, in a checkout: python -m tests.tutorial DIRECTORY

Files go to DIRECTORY, which is outside of the checkout, so that amk is the one that is installed.
"""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import smollm2

ROOT = Path(__file__).parents[1]
PAGE, SERVING = ROOT / "amk/api/README.md", ROOT / "amk/serve/README.md"
FENCED = re.compile(r"```python\n(.*?)```", re.DOTALL)
SECONDS = 300
"""Of a command at most."""
SPOKEN = "What is the capital of France?\nAnd what is the capital of Italy?\n"
"""What the user types into `amk chat`, until Ctrl-D."""
PARIS = "The capital of France is Paris.\n"

Check = Callable[[str], bool]

COMMANDS: dict[str, Check] = {
    "pip install '.[grammar]'": lambda text: True,
    'amk generate --model model.gguf --device cpu --prompt "What is the capital of France?"': PARIS.__eq__,
    "amk chat --model model.gguf --device cpu": lambda text: text.startswith(PARIS) and "Rome" in text[len(PARIS) :],
    "amk targets": lambda text: {"l4", "h200"} <= set(text.split()),
    "amk plan --model model.gguf --gpu l4 --max-context 1024 -o schedule.json": lambda text: "58 of 8 warps" in text,
    "amk simulate schedule.json": lambda text: 0.5 < simulated(text) < 2,
    "amk plan --model model.gguf --gpu l4 --max-context 1024 --search --expansions 20 -o tuned.json": (
        lambda text: "search plan" in text
    ),
    "amk simulate tuned.json": lambda text: 0.5 < simulated(text) < 2,
    "amk verify tuned.json --certificate certificate.json": lambda text: text.startswith("SAFE"),
    "amk check-certificate tuned.json certificate.json": lambda text: text.startswith("ACCEPTED"),
    "pip install 'amk[serve]'": lambda text: True,
    "amk serve --model model.gguf --device cpu --name small": lambda text: "Paris" in text,
}
"""What is run, in the order of the page, and whether what it says is right. Of the server: what it answers."""
LEFT_OUT = {
    'amk generate --model model.gguf --schedule tuned.json --prompt "Hello"': "in numpy it takes minutes",
    "amk serve --model model.gguf --schedule tuned.json --temperature 0": "needs a GPU",
}
PROGRAMS_LEFT_OUT = {
    'model = amk.load("model.gguf", schedule="tuned.json")': "needs a GPU",
    "theirs.generate(": "needs torch",
    "import lm_eval": "needs torch",
}
"""By how they begin."""


def commands(page: Path) -> list[str]:
    """The indented lines, without the comments behind them."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    return [line.partition("  #")[0].strip() for line in text.splitlines() if line.startswith("    ")]


def programs(page: Path) -> list[str]:
    return FENCED.findall(page.read_text(encoding="utf-8"))


def chosen() -> tuple[list[str], str]:
    """The commands of the page that are run, and its program. ValueError if it has others than are known here."""
    found, known = commands(PAGE), set(COMMANDS) | set(LEFT_OUT)
    if set(found) != known or len(found) != len(known):
        raise ValueError(f"the tutorial and tests/tutorial.py differ in {sorted(set(found) ^ known) or found}")
    rest = [code for code in programs(PAGE) if not code.startswith(tuple(PROGRAMS_LEFT_OUT))]
    if len(rest) != 1:
        raise ValueError(f"the tutorial has {len(rest)} programs that need neither a GPU nor torch, not one")
    return [command for command in found if command in COMMANDS], rest[0]


def simulated(text: str) -> float:
    """Milliseconds per token."""
    found = re.match(r"([\d.]+) ms per token, simulated", text)
    return float(found[1]) if found else 0.0


def check_program(text: str) -> bool:
    """The program prints an answer, a drawn text, a conversation, its usage, a list, logprobs and a perplexity."""
    found = re.fullmatch(r"(.*?\n)(.+)\nUsage\((.+?)\)\n(\[.*\])\n(\[.*?\])\n([\d.]+)\n", text, re.DOTALL)
    if found is None:
        return False
    answer, texts, usage, colours, logprobs, perplexity = found.groups()
    cached = re.search(r"cached_tokens=(\d+)", usage)
    names, scores = json.loads(colours), json.loads(logprobs)
    return (
        answer == PARIS
        and "Faust" in texts
        and cached is not None
        and int(cached[1]) > 20
        and len(names) > 1
        and all(isinstance(name, str) for name in names)
        and len(scores) == 3
        and 0 > scores[0] > scores[1]
        and 1 < float(perplexity) < 1000
    )


def output(command: list[str], directory: Path, typed: str = "") -> str:
    done = subprocess.run(command, cwd=directory, input=typed, text=True, capture_output=True, timeout=SECONDS)
    if done.returncode:
        raise SystemExit(f"{command[-1]}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def shell(command: str, directory: Path, typed: str = "") -> str:
    return output(["bash", "-euo", "pipefail", "-c", command], directory, typed)


@contextmanager
def server(command: str, directory: Path) -> Iterator[str]:
    """A server, at a free port; yields where it listens. It ends when it is told to."""
    arguments = [*command.split(), "--port", "0"]
    with subprocess.Popen(arguments, cwd=directory, text=True, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        try:
            lines = list[str]()
            for line in process.stderr:
                lines.append(line)
                if address := re.search(r"http://[\d.]+:\d+", line):
                    yield address[0]
                    break
            else:
                raise SystemExit(f"{command}\ndoes not serve:\n{''.join(lines)}")
        finally:
            process.terminate()
        if (code := process.wait(SECONDS)) not in (0, -signal.SIGTERM):
            raise SystemExit(f"{command}\nended with {code}:\n{process.stderr.read()}")


def answer_served(command: str, directory: Path) -> str:
    """What the client of the serving page prints, which asks the server for one answer."""
    (client,) = programs(SERVING)
    shell("pip install --quiet openai", directory)
    with server(command, directory) as address:
        return python(client.replace("http://127.0.0.1:8000", address), directory)


def python(code: str, directory: Path) -> str:
    return output([sys.executable, "-c", code], directory)


def main(directory: Path) -> None:
    run, program = chosen()
    if importlib.util.find_spec("torch"):
        raise SystemExit("this environment has torch: the tutorial is to be run without")
    (directory / "model.gguf").symlink_to(smollm2.cached())
    place = python("import amk; print(amk.__file__)", directory).strip()
    if Path(place).is_relative_to(ROOT):
        raise SystemExit(f"amk is that of the checkout, not an installed one: {place}")
    outputs = dict[str, str]()
    for command in run:
        begun = time.perf_counter()
        if command.startswith("amk serve"):
            outputs[command] = answer_served(command, directory)
        else:
            typed = SPOKEN if command.startswith("amk chat") else ""
            outputs[command] = shell(command, ROOT if "'.[" in command else directory, typed)
        judge(command, outputs[command], COMMANDS[command](outputs[command]), begun)
    tuned, plain = (simulated(outputs[f"amk simulate {name}.json"]) for name in ("tuned", "schedule"))
    judge("the search", f"{tuned} ms, {plain} before\n", tuned < plain, time.perf_counter())
    begun = time.perf_counter()
    answers = python(program, directory)
    judge("the program", answers, check_program(answers), begun)


def judge(name: str, text: str, right: bool, begun: float) -> None:
    print(f"{time.perf_counter() - begun:6.1f} s  {name}", flush=True)
    if not right:
        raise SystemExit(f"{name}\nsays other than it should:\n{text}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
