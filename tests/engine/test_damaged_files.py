"""Random damage to headers of checkpoints: they open, or one diagnostic refuses them, and nothing else happens."""

import random
from pathlib import Path

import pytest

from amk.engine.checkpoints.open_checkpoint import open_checkpoint
from amk.engine.tokenizers.open_tokenizer import open_tokenizer
from amk.report.diagnostic import AmkError, Exit
from tests.engine import tiny_model
from tests.engine.test_tokenizer import byte_level

WORDS = [b"\xff" * 8, bytes(8), (1 << 40).to_bytes(8, "little"), (1 << 60).to_bytes(8, "little")]


def damaged(content: bytes, header: int, source: random.Random) -> bytes:
    """`content` with a few bytes or 64-bit words of its first `header` bytes replaced."""
    data = bytearray(content)
    for _ in range(source.choice([1, 1, 2, 8])):
        at = source.randrange(header)
        if source.random() < 0.5:
            data[at] ^= 1 << source.randrange(8)
        else:
            data[at : at + 8] = source.choice(WORDS)
    return bytes(data)


@pytest.mark.parametrize("seed", range(8))
def test_damaged_headers(seed: int, tmp_path: Path) -> None:
    source = random.Random(seed)
    gguf = byte_level(tmp_path, "smollm", bos=1, template="{{ messages }}")
    directory = tiny_model.write_single(tmp_path / "tiny", tiny_model.weights())
    safetensors = directory / "model.safetensors"
    gguf_bytes, safetensors_bytes = gguf.read_bytes(), safetensors.read_bytes()
    gguf_header = len(gguf_bytes) - 4 * sum(array.size for array in tiny_model.weights().values())
    safetensors_header = 8 + int.from_bytes(safetensors_bytes[:8], "little")
    refusals = 0
    for _ in range(12):
        gguf.write_bytes(damaged(gguf_bytes, gguf_header, source))
        safetensors.write_bytes(damaged(safetensors_bytes, safetensors_header, source))
        for open_it, path in ((open_checkpoint, gguf), (open_tokenizer, gguf), (open_checkpoint, directory)):
            try:
                open_it(path)
            except AmkError as error:
                assert error.exit_code is Exit.INPUT
                refusals += 1
    assert refusals > 0
