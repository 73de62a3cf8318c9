"""Tokenizers that would hang, exhaust or end the process that uses them end one of their own, with a reason."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from amk.engine.tokenizers.open_tokenizer import begin_tokenizer, open_tokenizer
from amk.engine.tokenizers.tokenizer_process import Source, TokenizerProcess
from amk.report.diagnostic import AmkError
from tests.engine.test_tokenizer import hf_directory


def backend(folder: Path) -> Backend:
    return Backend.from_file(str(hf_directory(folder) / "tokenizer.json"))


def catastrophic(backend: Backend) -> None:
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"^(a|aa|a?a)+$|(?:(?:a+)+)+b"), behavior="isolated")


def multiplying(backend: Backend) -> None:
    backend.normalizer = normalizers.Sequence([normalizers.Replace("a", "aaaaaaaaaaaaaaaa")] * 9)


@pytest.mark.turns(4)
@pytest.mark.parametrize(("spoil", "text"), [(catastrophic, "a" * 60 + "c"), (multiplying, "aa")])
def test_a_hostile_tokenizer_ends_a_process_of_its_own(tmp_path: Path, spoil: Any, text: str) -> None:
    found = backend(tmp_path)
    spoil(found)
    source = Source(found.to_str().encode())
    process, began = TokenizerProcess(source, tmp_path, seconds=3.0, memory=1 << 30), time.monotonic()
    for _ in range(2):
        with pytest.raises(AmkError, match="AMK012") as caught:
            process.encode(text, special=True)
        assert "tokenizer" in caught.value.diagnostics[0].message
    assert time.monotonic() - began < 60


def test_an_interrupt_leaves_the_next_request_its_own_answer(tmp_path: Path) -> None:
    """Ctrl-C while an answer is awaited: it reaches this process alone, and that answer is nobody's."""
    process = TokenizerProcess(Source(backend(tmp_path).to_str().encode()), tmp_path)
    wanted = process.encode("ab", special=True)
    assert os.getpgid(process._popen.pid) != os.getpgid(0)

    class Interrupted:
        def readline(self, most: int) -> bytes:
            raise KeyboardInterrupt

    replies, process._popen.stdout = process._popen.stdout, Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        process.encode("ab ab ab", special=True)
    process._popen.stdout = replies
    assert process.encode("ab", special=True) == wanted
    assert process.usable and process.decode(wanted) == "ab"


def test_text_that_is_no_unicode_is_refused_and_nothing_breaks(tmp_path: Path) -> None:
    tokenizer = open_tokenizer(hf_directory(tmp_path))
    for text in ("ab\udc80", "\ud800"):
        with pytest.raises(AmkError, match="AMK005"):
            tokenizer.encode(text)
    assert tokenizer.decode(tokenizer.encode("ab ab")) == "ab ab"
    with pytest.raises(AmkError, match="AMK012"):
        tokenizer.process.decode([-1])
    assert tokenizer.decode(tokenizer.encode("ab")) == "ab", "a request that cannot be answered ends nothing"


def test_an_empty_pattern_is_stood_or_refused(tmp_path: Path) -> None:
    path = hf_directory(tmp_path) / "tokenizer.json"
    record = json.loads(path.read_text())
    record["normalizer"] = {"type": "Replace", "pattern": {"String": ""}, "content": "a" * 1000}
    path.write_text(json.dumps(record))
    try:
        assert len(open_tokenizer(tmp_path).encode("ab")) < 1 << 24
    except AmkError as error:
        assert error.diagnostics[0].code in ("AMK012", "AMK013")


def added(document: dict[str, Any], text: str) -> None:
    token = {"id": len(document["model"]["vocab"]) + len(document["added_tokens"]), "content": text, "normalized": True}
    document["added_tokens"].append({**token, "special": False, "single_word": False, "lstrip": False, "rstrip": False})


def bomb(document: dict[str, Any]) -> None:
    """Its normaliser multiplies an added token when the file is read."""
    document["normalizer"] = json.loads(
        normalizers.Sequence([normalizers.Replace("a", "a" * 16)] * 9).__getstate__().decode()
    )
    added(document, "aaaa")


def panic(document: dict[str, Any]) -> None:
    document["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "////fwEB"}


@pytest.mark.turns(4)
@pytest.mark.parametrize("spoil", [bomb, panic])
def test_a_tokenizer_that_is_hostile_when_it_is_read_is_read_elsewhere(tmp_path: Path, spoil: Any) -> None:
    path = hf_directory(tmp_path) / "tokenizer.json"
    record = json.loads(path.read_text())
    spoil(record)
    path.write_text(json.dumps(record))
    began, tokenizer = time.monotonic(), begin_tokenizer(tmp_path, None)
    assert tokenizer.backend.token_to_id("ab") is not None and time.monotonic() - began < 5, "without its normaliser"
    process = TokenizerProcess(tokenizer.source, tmp_path, 3.0, 1 << 30)
    for request in (process.facts, lambda: process.encode("ab", special=True)):
        with pytest.raises(AmkError, match="AMK012"):
            request()


def test_a_normaliser_is_applied_to_texts_and_to_added_tokens(tmp_path: Path) -> None:
    """As by the package itself, though the process that asks has none."""
    path = hf_directory(tmp_path) / "tokenizer.json"
    record = json.loads(path.read_text())
    record["normalizer"] = {"type": "Lowercase"}
    added(record, "BA")
    path.write_text(json.dumps(record))
    itself, tokenizer = Backend.from_file(str(path)), open_tokenizer(tmp_path)
    assert tokenizer.backend.normalizer is None
    for text in ("AB ab", "xBAy ba", "ba"):
        assert tokenizer.encode(text) == itself.encode(text).ids, text


def test_one_key_twice_is_refused(tmp_path: Path) -> None:
    """Readers disagree about which of two counts, and a normaliser could hide behind another."""
    path = hf_directory(tmp_path) / "tokenizer.json"
    path.write_text(path.read_text().rstrip()[:-1] + ', "normalizer": {"type": "Lowercase"}}')
    with pytest.raises(AmkError, match="AMK013"):
        open_tokenizer(tmp_path)
