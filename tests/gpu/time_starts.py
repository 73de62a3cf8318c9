"""How long a user waits for the first token of a model on disk: `python -m tests.gpu.time_starts llama3.2-1b`.

Every start is a process of its own, and the clock runs from its beginning to the first token of a short text. `first`
finds no cache, `second` that of the first. `transformers` loads the same files and answers by `generate`. `reading` is
the time in which torch, which is imported already, copies the files to the GPU, and nothing else. The files are in the
memory of the operating system. Weights are random, of the shapes of the model, and so are the merges of the tokenizer,
as many as make its vocabulary.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from amk.models.model import load_model
from tests.recording import provenance

AMK = """
import sys, time, amk
model = amk.load(sys.argv[1], dtype=sys.argv[2], max_context=2048)
next(iter(model.stream([1, 2, 3, 4], max_tokens=2)))
print(time.time())
model.close()
"""
TRANSFORMERS = """
import sys, time, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16, device_map="cuda")
text = torch.tensor([[1, 2, 3, 4]], device="cuda")
model.generate(text, max_new_tokens=1, do_sample=False, pad_token_id=0).tolist()
print(time.time())
"""
READING = """
import sys, time, torch
from pathlib import Path
torch.zeros(1, device="cuda")
begin = time.time()
for file in sorted(Path(sys.argv[1]).glob("*.safetensors")):
    torch.from_file(str(file), size=file.stat().st_size, dtype=torch.uint8).cuda()
torch.cuda.synchronize()
print(time.time() - begin)
"""
MOST_LETTERS = 15
"""Of a token, less one."""
KINDS = {"first": AMK, "second": AMK, "reading": READING, "transformers": TRANSFORMERS}


def write(model: str, folder: Path) -> int:
    """A checkpoint of these shapes; the bytes of its weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    spec = load_model(model)
    config = LlamaConfig(
        vocab_size=spec.vocab, hidden_size=spec.hidden, intermediate_size=spec.ffn, num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads, num_key_value_heads=spec.kv_heads, head_dim=spec.head_dim,
        max_position_embeddings=spec.max_context, rms_norm_eps=spec.rms_eps, tie_word_embeddings=spec.tied_embeddings,
        bos_token_id=spec.bos, eos_token_id=list(spec.eos), dtype="bfloat16",
    )  # fmt: skip
    with torch.device("cuda"):
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    write_tokenizer(spec.vocab, folder / "tokenizer.json")
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def write_tokenizer(vocab: int, file: Path) -> None:
    """Byte-level BPE."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    draw, texts = random.Random(1), sorted(pre_tokenizers.ByteLevel.alphabet())
    ids, merges = {text: n for n, text in enumerate(texts)}, []
    while len(ids) < vocab:
        pair = (draw.choice(texts), draw.choice(texts))
        if len("".join(pair)) < MOST_LETTERS and "".join(pair) not in ids:
            ids["".join(pair)] = len(ids)
            texts.append("".join(pair))
            merges.append(pair)
    tokenizer = Tokenizer(models.BPE(ids, merges, ignore_merges=True))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    tokenizer.save(str(file))


def start(kind: str, folder: Path, dtype: str, cache: Path) -> float:
    """Seconds."""
    environment = os.environ | {"AMK_CACHE": str(cache), "XDG_CACHE_HOME": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as users' Pythons, which compile a module once
    command, begin = [sys.executable, "-c", KINDS[kind], str(folder), dtype], time.time()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    shown = float(done.stdout.split()[-1])
    return shown if kind == "reading" else shown - begin


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="bf16", help="of the weights of `first` and `second`")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        size = write(arguments.model, folder)
        start("reading", folder, arguments.dtype, folder)  # what is read the first time does not count
        for run in range(arguments.runs):
            for kind in KINDS:
                found[kind].append(start(kind, folder, arguments.dtype, Path(name) / f"cache{run}"))
    rows: dict[str, Any] = {"weight_bytes": size}
    for kind, seconds in found.items():
        rows[kind] = {"median_s": statistics.median(seconds), "least_s": min(seconds), "most_s": max(seconds)}
        print(f"{kind:12} {rows[kind]['median_s']:6.2f} s ({min(seconds):.2f} to {max(seconds):.2f})", flush=True)
    if arguments.record:
        command = f"python -m tests.gpu.time_starts {arguments.model} --dtype {arguments.dtype}"
        run_of = provenance([]) | {"command": f"{command} --runs {arguments.runs}"}
        record = {"format": 1, "run": run_of, "model": arguments.model, "dtype": arguments.dtype, "starts": rows}
        arguments.record.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
