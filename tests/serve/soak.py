"""Many clients at once, well-behaved and not, against `amk serve` in a process of its own, which is killed on the way.

    python -m tests.serve.soak --rounds 20 --record tests/records/speed/server-soak.json

A round takes --seconds, with a server of its own: clients ask without a pause through the official package, streamed
and whole; some go in the middle of an answer, some read slowly, some send what no server should get. Half-way the
server is killed with SIGKILL and started again at the same port. Every answer that comes to its end must be the greedy
text that the model gives by itself; no request may hang; files and memory of the server must not grow. The record is
written after every round; a run that was ended goes on behind the rounds that it has. --model: that checkpoint in the
place of a small random one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import openai

import amk
from amk.bench.tools.provenance import commit
from tests.engine import tiny_chat

NAME, HANG = "soaked", 120.0
KINDS = ("streamed", "streamed", "whole", "gone", "slow", "malformed", "streamed", "oversized")
"""What client n does, by n modulo their number."""
WRONG = (b"{", b"[]", b'{"model": "soaked", "messages": 3}', b"\xff" * 100, b'{"model": "other", "prompt": "A"}')
PROMPTS = tuple(f"{word} {number}" for word in ("HELLO", "WHAT IS", "TELL ME", "WHY") for number in range(8))
LEAK_BYTES, LEAK_FILES = 64 << 20, 8
"""By how much a server that has answered may differ from one that has begun to."""


class Server:
    """`amk serve` on the device cpu; words: further options."""

    def __init__(self, words: Sequence[str], port: int = 0) -> None:
        command = [sys.executable, "-m", "amk", "serve", "--device", "cpu", "--name", NAME, "--port", str(port), *words]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert "serving" in line, line + self.process.stderr.read()
        self.port = int(line.rsplit(":", 1)[1].partition("/")[0])

    def held(self) -> tuple[int, int]:
        """Bytes of memory and open files."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        kilobytes = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        return kilobytes << 10, len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def end(self, sign: signal.Signals) -> int:
        self.process.send_signal(sign)
        return self.process.wait(HANG)


class Load:
    """The clients of one round. enough: tokens of an answer; counts: what happened; first, whole: seconds; wrong:
    answers that differ."""

    def __init__(self, port: int, expected: dict[str, str], enough: int, seed: int) -> None:
        self.port, self.expected, self.enough, self.random = port, expected, enough, random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.first: list[float] = []
        self.whole: list[float] = []
        self.tokens = 0
        self.wrong: list[str] = []
        self.end = self.down_until = 0.0
        self.client = openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=0, timeout=HANG
        )

    async def run(self, clients: int, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        await asyncio.gather(*(self._client(number) for number in range(clients)))
        await self.client.close()

    async def _client(self, number: int) -> None:
        kind = KINDS[number % len(KINDS)]
        act = getattr(self, f"_{kind}")
        while time.monotonic() < self.end:
            try:
                async with asyncio.timeout(HANG):
                    await act(self.random.choice(PROMPTS))
                self.counts[kind] += 1
            except TimeoutError:
                self.wrong.append(f"{kind}: no end within {HANG} s")
            except openai.RateLimitError:
                self.counts["refused_429"] += 1
                await asyncio.sleep(0.05)
            except (openai.APIError, OSError, asyncio.IncompleteReadError) as error:
                if time.monotonic() > self.down_until and not isinstance(error, ConnectionResetError | BrokenPipeError):
                    self.wrong.append(f"{kind}: {type(error).__name__} {error}"[:200])
                self.counts["interrupted"] += 1
                await asyncio.sleep(0.05)

    def _ask(self, prompt: str, stream: bool) -> Any:
        return self.client.completions.create(
            model=NAME, prompt=prompt, max_tokens=self.enough, temperature=0, stream=stream
        )

    def _answered(self, prompt: str, text: str, begin: float) -> None:
        self.whole.append(time.monotonic() - begin)
        self.tokens += self.enough
        if text != self.expected[prompt]:
            self.wrong.append(f"{prompt!r}: {text!r}, not {self.expected[prompt]!r}")

    async def _streamed(self, prompt: str) -> None:
        begin, parts, finish = time.monotonic(), [], None
        async for chunk in await self._ask(prompt, True):
            if not parts:
                self.first.append(time.monotonic() - begin)
            parts.append(chunk.choices[0].text)
            finish = chunk.choices[0].finish_reason
        if finish is None:
            raise ConnectionAbortedError("the stream was cut")
        self._answered(prompt, "".join(parts), begin)

    async def _whole(self, prompt: str) -> None:
        begin = time.monotonic()
        found = await self._ask(prompt, False)
        self._answered(prompt, found.choices[0].text, begin)

    async def _gone(self, prompt: str) -> None:
        """Goes behind some chunks, or before the first."""
        stream = await self._ask(prompt, True)
        for _ in range(self.random.randrange(4)):
            await anext(stream, None)
        await stream.close()

    async def _slow(self, prompt: str) -> None:
        """Takes a few bytes at a time, and must get all of the answer."""
        begin = time.monotonic()
        body = {"model": NAME, "prompt": prompt, "max_tokens": self.enough, "temperature": 0, "stream": True}
        reader, writer = await self._sent("/v1/completions", json.dumps(body).encode(), limit=256)
        received = b""
        while part := await reader.read(97):
            received += part
            await asyncio.sleep(0.002)
        writer.close()
        if b" 429 " in received[:50]:
            self.counts["refused_429"] += 1
            return
        if b"[DONE]" not in received:
            raise ConnectionAbortedError("the stream was cut")
        events = [json.loads(part.partition(b"\n")[0]) for part in received.split(b"data: ")[1:] if part[:1] == b"{"]
        self._answered(prompt, "".join(event["choices"][0]["text"] for event in events), begin)

    async def _malformed(self, prompt: str) -> None:
        await self._refused(self.random.choice(WRONG))

    async def _oversized(self, prompt: str) -> None:
        await self._refused(json.dumps({"model": NAME, "prompt": "A" * (2 << 20)}).encode())

    async def _refused(self, body: bytes) -> None:
        reader, writer = await self._sent("/v1/completions", body)
        line = await reader.readline()
        if line and line.split()[1] not in (b"400", b"404", b"413"):
            self.wrong.append(f"{body[:40]!r}: {line!r}")
        writer.close()
        await asyncio.sleep(0.05)

    async def _sent(self, path: str, body: bytes, limit: int = 1 << 16) -> Any:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=limit)
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return reader, writer


async def soaked(
    words: Sequence[str], expected: dict[str, str], enough: int, seed: int, clients: int, seconds: float
) -> dict[str, Any]:
    """One round."""
    server = Server(words)
    load = Load(server.port, expected, enough, seed)
    running = asyncio.create_task(load.run(clients, seconds))
    await asyncio.sleep(seconds / 2)
    load.down_until = time.monotonic() + HANG
    killed = server.end(signal.SIGKILL)
    server = await asyncio.to_thread(Server, words, server.port)
    load.down_until = time.monotonic() + 1
    await asyncio.sleep(seconds / 8)
    early = server.held()
    await running
    await asyncio.sleep(0.5)
    late = server.held()
    ended = server.end(signal.SIGTERM)
    faults = list(load.wrong)
    if late[0] - early[0] > LEAK_BYTES or late[1] - early[1] > LEAK_FILES:
        faults.append(f"memory and files grew from {early} to {late}")
    if killed != -signal.SIGKILL or ended not in (0, -signal.SIGTERM):
        faults.append(f"the server ended with {killed} and {ended}")
    return {
        "seed": seed, "seconds": seconds, "counts": dict(load.counts), "tokens_per_second": load.tokens / seconds,
        "first_token_ms": percentiles(load.first), "answer_ms": percentiles(load.whole),
        "grown_bytes": late[0] - early[0], "grown_files": late[1] - early[1], "faults": faults,
    }  # fmt: skip


def percentiles(seconds: list[float]) -> dict[str, float]:
    if len(seconds) < 2:
        return {}
    cuts = statistics.quantiles(seconds, n=100)
    return {f"p{at}": round(1000 * cuts[at - 1], 1) for at in (50, 90, 99)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1, help="answers that are computed at once")
    parser.add_argument("--tokens", type=int, default=24, help="of an answer")
    parser.add_argument("--model", type=Path, help="a checkpoint")
    parser.add_argument("--draft", action="store_true", help="with a draft, the model and some noise")
    arguments = parser.parse_args()
    record = json.loads(arguments.record.read_text()) if arguments.record.exists() else {"format": 1, "rounds": []}
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as scratch:
        model = arguments.model or tiny_chat.write(Path(scratch) / "tiny")
        with amk.load(model, device="cpu") as alone:
            expected = {prompt: alone.generate(prompt, max_tokens=arguments.tokens).text for prompt in PROMPTS}
        named = arguments.model.name if arguments.model else "two layers of 256, random"
        words = ["--model", str(model), "--batch", str(arguments.batch)]
        if arguments.draft:
            words += ["--draft", str(tiny_chat.write(Path(scratch) / "draft", noise=0.02)), "--draft-tokens", "3"]
        for seed in range(len(record["rounds"]), arguments.rounds):
            found = asyncio.run(soaked(words, expected, arguments.tokens, seed, arguments.clients, arguments.seconds))
            found |= {"clients": arguments.clients, "commit": commit(), "date": _now(), "cpus": os.cpu_count()}
            found |= {"load_average": round(os.getloadavg()[0], 1), "model": named}
            found |= {"batch": arguments.batch, "draft": arguments.draft, "answer_tokens": arguments.tokens}
            record["rounds"].append(found)
            record["command"] = shlex.join(["python", "-m", "tests.serve.soak", *_portable_words(sys.argv[1:])])
            temporary = arguments.record.with_suffix(".tmp")
            temporary.write_text(json.dumps(record, indent=1) + "\n")
            os.replace(temporary, arguments.record)
            print(json.dumps({key: found[key] for key in ("counts", "tokens_per_second", "first_token_ms", "faults")}))
    return int(any(each["faults"] for each in record["rounds"]))


def _portable_words(arguments: list[str]) -> list[str]:
    """The command without places of this machine."""
    return [Path(word).name if word.startswith("/") else word for word in arguments]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    sys.exit(main())
