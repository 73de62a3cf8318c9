"""A small random model with a tokenizer of capital letters and a chat template: it answers, though not in words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.engine import tiny_model

TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }} {{ m.content }}{% endfor %}{% if add_generation_prompt %}<s>{% endif %}"
)
WORDS = [
    "<s>",
    "</s>",
    "</e>",
    "\u0120",
    *(chr(code) for code in range(33, 96)),
    *(f"{a}{b}" for a in "abcde" for b in "xyz"),
]


def write(path: Path, layers: int = tiny_model.LAYERS, noise: float = 0.0, words: list[str] = WORDS) -> Path:
    """layers: the first ones of the model. noise: standard deviation of what is added to matrices, whose own is 0.2."""
    draw = np.random.default_rng(1)
    arrays = {
        name: array * (6 if array.ndim == 2 else 1) + (1 if name.endswith("norm") else 0)
        for name, array in tiny_model.weights().items()
        if not name.startswith(tuple(f"l{layer}." for layer in range(layers, tiny_model.LAYERS)))
    }
    for name, array in arrays.items():
        if array.ndim == 2 and noise:
            arrays[name] = array + noise * draw.standard_normal(array.shape).astype(np.float32)
    tiny_model.write_single(path, arrays, eos_token_id=[1], num_hidden_layers=layers)
    vocab = {word: index for index, word in enumerate(words)}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<s>"))
    characters = pre_tokenizers.Split("", "isolated")
    bytes_of_text = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([bytes_of_text, characters])
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>"])
    backend.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return path
