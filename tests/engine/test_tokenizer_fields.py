"""Every section of tokenizer.json and field of tokenizer_config.json: the tokens and texts that transformers has."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

transformers = pytest.importorskip("transformers")

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors  # noqa: E402

from amk.engine.tokenizers.open_tokenizer import open_tokenizer  # noqa: E402

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
SPECIAL = ["<|end|>", "<|user|>"]
TEXTS = ["ab  ab <|end|> ab, is n't it ? \u00e9t\u00e9", "AB ab<|user|>ab" * 3, "", " ab", "abis is"]
LENGTHS = {"max_length": 8, "strategy": "longest_first", "stride": 0, "direction": "right"}

CONFIG: dict[str, list[Any]] = {
    "add_bos_token": [True, False],
    "add_eos_token": [True, False],
    "add_prefix_space": [True, False],
    "added_tokens_decoder": [
        {"9": {"content": "is", "special": True, "normalized": False}},
        {"9": {"content": "is", "special": False, "normalized": False, "lstrip": True, "rstrip": True}},
        {"0": {"content": "<|end|>", "special": True, "normalized": False}},
    ],
    "additional_special_tokens": [["is"], ["<|end|>"], [{"__type": "AddedToken", "content": "is", "lstrip": True}]],
    "extra_special_tokens": [["is"], {"image_token": "is"}],
    "bos_token": [None, "is", {"__type": "AddedToken", "content": "<|user|>", "special": True}],
    "eos_token": [None, "is"],
    "unk_token": ["is"],
    "pad_token": ["ab", "[PAD]"],
    "sep_token": ["is"],
    "cls_token": ["is"],
    "mask_token": ["is"],
    "image_token": ["is", {"content": "is"}],
    "clean_up_tokenization_spaces": [True, False],
    "do_lower_case": [True],
    "errors": ["ignore"],
    "legacy": [True, False],
    "max_length": [4],
    "model_max_length": [4],
    "padding_side": ["left"],
    "split_special_tokens": [True, False],
    "spaces_between_special_tokens": [True],
    "stride": [2],
    "tokenizer_class": [None, "PreTrainedTokenizerFast", "LlamaTokenizerFast"],
    "truncation": [True],
    "truncation_side": ["left"],
    "use_default_system_prompt": [True],
}


def truncated(backend: Tokenizer) -> None:
    backend.enable_truncation(**LENGTHS)


def padded(backend: Tokenizer) -> None:
    backend.enable_padding(length=64, pad_id=0, pad_token="<|end|>", direction="left")


def both(backend: Tokenizer) -> None:
    truncated(backend)
    padded(backend)


def lowered(backend: Tokenizer) -> None:
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.NFD()])


def split(backend: Tokenizer) -> None:
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True)]
    )


def framed(backend: Tokenizer) -> None:
    backend.post_processor = processors.TemplateProcessing(
        single="<|user|> $A <|end|>", special_tokens=[("<|user|>", 1), ("<|end|>", 0)]
    )


def added(backend: Tokenizer) -> None:
    backend.add_tokens([AddedToken("is", lstrip=True), AddedToken("n't", single_word=True)])


def stripped(backend: Tokenizer) -> None:
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])


def dropped(backend: Tokenizer) -> None:
    backend.model = models.BPE(backend.get_vocab(with_added_tokens=False), [("a", "b")], ignore_merges=True)


SECTIONS = {
    "truncation": truncated, "padding": padded, "truncation and padding": both, "normalizer": lowered,
    "pre_tokenizer": split, "post_processor": framed, "added_tokens": added, "decoder": stripped, "model": dropped,
}  # fmt: skip


def directory(path: Path, change: Any = None, **config: Any) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    tokens = {text: index for index, text in enumerate([*SPECIAL, *ALPHABET, "ab", "\u0120ab"])}
    backend = Tokenizer(models.BPE(tokens, [("a", "b"), ("\u0120", "ab")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIAL)
    if change is not None:
        change(backend)
    backend.save(str(path / "tokenizer.json"))
    fields = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|user|>", "eos_token": "<|end|>"} | config
    (path / "tokenizer_config.json").write_text(json.dumps(fields))
    return path


NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask", "image")


def check(path: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    mine = open_tokenizer(path, 512)
    named = "|".join(f"{{{{ {name}_token }}}} {{{{ {name}_token is defined }}}}" for name in NAMES)
    conversation = [{"role": "user", "content": "ab"}]
    rendering = theirs.apply_chat_template(
        conversation, chat_template=named, tokenize=False, add_generation_prompt=True
    )
    assert replace(mine, chat_template=named).chat_text(conversation) == rendering
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert mine.encode(text) == ids, text
        assert mine.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text


@pytest.mark.turns(4)
@pytest.mark.parametrize("section", SECTIONS)
def test_sections_of_tokenizer_json(section: str, tmp_path: Path) -> None:
    check(directory(tmp_path / "m", SECTIONS[section]))
    stored = json.loads((tmp_path / "m" / "tokenizer.json").read_text())
    plain = json.loads((directory(tmp_path / "plain") / "tokenizer.json").read_text())
    assert any(stored[key] != plain[key] for key in plain if key in section), "the file says something else"


def test_every_section_is_tried(tmp_path: Path) -> None:
    stored = json.loads((directory(tmp_path) / "tokenizer.json").read_text())
    assert set(stored) - {"version"} == set(SECTIONS) - {"truncation and padding"}


@pytest.mark.turns(4)
@pytest.mark.parametrize("field", CONFIG)
def test_fields_of_tokenizer_config(field: str, tmp_path: Path) -> None:
    for number, value in enumerate(CONFIG[field]):
        check(directory(tmp_path / str(number), **{field: value}))
        if field.startswith("add_"):
            check(directory(tmp_path / f"framed{number}", framed, **{field: value}))


OLDER: dict[str, list[Any]] = {
    "special_tokens_map.json": [
        {"bos_token": "<|end|>", "sep_token": "ab", "unk_token": {"content": "is", "lstrip": True, "rstrip": False}},
        {"additional_special_tokens": ["is", "n't"]},
        {"extra_special_tokens": ["is"]},
        {"extra_special_tokens": {"image_token": "is"}},
        {"image_token": "is", "pad_token": {"content": "n't", "special": False, "normalized": True}},
    ],
    "added_tokens.json": [{"is": 260}, {"n't": 261, "is": 260}, {"<|end|>": 0}],
}  # fmt: skip
"""Files of older directories, which count where tokenizer_config.json lists no tokens."""


@pytest.mark.turns(4)
@pytest.mark.parametrize("file", OLDER)
@pytest.mark.parametrize("listed", [False, True])
def test_files_of_older_directories(file: str, listed: bool, tmp_path: Path) -> None:
    for number, content in enumerate(OLDER[file]):
        for more in ({}, {"bos_token": None, "eos_token": "<|user|>", "mask_token": "ab"}):
            config = more | ({"added_tokens_decoder": {}} if listed else {})
            path = directory(tmp_path / f"{number}{len(more)}", **config)
            (path / file).write_text(json.dumps(content))
            check(path)


def test_a_token_behind_the_embedding_is_left_out(tmp_path: Path) -> None:
    path = directory(tmp_path, pad_token="[PAD]")
    size = open_tokenizer(path).size
    assert open_tokenizer(path, size - 1).encode("[PAD]") != open_tokenizer(path, size).encode("[PAD]")


def test_a_conversation_is_not_cut(tmp_path: Path) -> None:
    path = directory(tmp_path, both, chat_template="{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}")
    assert len(open_tokenizer(path).encode_chat([{"role": "user", "content": "ab " * 40}])) > 40


MESSAGES = [
    {"role": "system", "content": " Be \"kind\"\n& short "}, {"role": "user", "content": "a <b> \u00e9"},
    {"role": "assistant", "content": "c\u2028"}, {"role": "user", "content": "d"},
]  # fmt: skip

REASONS: list[dict[str, Any]] = [
    {"reasoning": "e"}, {"thinking": "f", "reasoning_content": None}, {"reasoning_content": "g", "thinking": "h"}, {},
]  # fmt: skip
WITH_REASONS = [message | reason for message, reason in zip(MESSAGES, REASONS, strict=True)]

TEMPLATES = [
    "{% for m in messages %}{{ m.role }}: {{ m['content'] | trim }}{{ eos_token }}\n{% endfor %}",
    "{% if tools is not none %}tools{% endif %}{% if documents %}docs{% endif %}{{ bos_token }}",
    "{% if tools is defined %}defined{% else %}not{% endif %}{% if xml is defined %}x{% endif %}",
    "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}",
    "{{ messages | tojson(separators=(',', ':')) }}{{ messages[1] | tojson(ensure_ascii=True, sort_keys=True) }}",
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% continue %}{% endif %}{% endfor %}",
    "  {%- if add_generation_prompt %}\n    <|user|>\n  {%- endif %}\n",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ pad_token }}{{ unk_token is defined }}",
    "{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x is defined }}",
    "{% for m in messages %}{{ m | dictsort }}{{ m.reasoning_content }}{% endfor %}",
    "{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(messages[0].content) }}{{ messages | map(attribute='role') | join }}",
]


@pytest.mark.turns(4)
@pytest.mark.parametrize("template", TEMPLATES)
def test_chat_templates(template: str, tmp_path: Path) -> None:
    path = directory(tmp_path, chat_template=template)
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    mine = open_tokenizer(path)
    for messages in (MESSAGES, WITH_REASONS):
        text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert mine.chat_text(messages) == text
        assert mine.encode_chat(messages) == theirs(text, add_special_tokens=False)["input_ids"]


TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}]
NAMED = {"default": "{{ messages[0].content }}", "tool_use": "{{ tools | length }}{{ messages[0].content }}"}


@pytest.mark.parametrize("stored", ["list", "files"])
def test_a_template_for_tools_is_taken_where_tools_are_given(stored: str, tmp_path: Path) -> None:
    listed = [{"name": name, "template": template} for name, template in NAMED.items()]
    path = directory(tmp_path, **({"chat_template": listed} if stored == "list" else {}))
    if stored == "files":
        (path / "chat_template.jinja").write_text(NAMED["default"])
        (path / "additional_chat_templates").mkdir()
        (path / "additional_chat_templates" / "tool_use.jinja").write_text(NAMED["tool_use"])
    theirs, mine = transformers.AutoTokenizer.from_pretrained(path), open_tokenizer(path)
    for tools in (None, TOOLS):
        text = theirs.apply_chat_template(MESSAGES, tools=tools, tokenize=False, add_generation_prompt=True)
        assert mine.chat_text(MESSAGES, tools) == text
    assert mine.chat_text(MESSAGES, TOOLS) != mine.chat_text(MESSAGES)
