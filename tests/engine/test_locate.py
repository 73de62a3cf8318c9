"""`--model NAME|DIR|GGUF` to a path."""

from pathlib import Path

import pytest

from amk.engine.checkpoints.locate import checkpoint_directories, find_checkpoint
from amk.report.diagnostic import AmkError


def checkpoint(path: Path) -> Path:
    """A directory with a configuration."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").touch()
    return path


def test_path_is_used_as_it_is(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    assert find_checkpoint(str(tmp_path), {}) == tmp_path


@pytest.mark.parametrize("stored", ["smollm2-135m", "smollm2-135m.gguf"])
def test_shipped_name_is_found_in_the_named_directories(stored: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    checkpoint(second / stored)
    environment = {"AMK_CHECKPOINTS": f"{first}:{second}"}
    assert find_checkpoint("SmolLM2-135M", environment) == second / stored
    checkpoint(first / stored)
    assert find_checkpoint("smollm2-135m", environment) == first / stored


def test_user_data_directory_comes_last() -> None:
    *directories, last = checkpoint_directories({"AMK_CHECKPOINTS": "/a:/b"})
    assert directories == [Path("/a"), Path("/b")]
    assert last.parts[-2:] == ("amk", "checkpoints")


def test_known_name_without_weights_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(AmkError) as caught:
        find_checkpoint("llama3-70b", {"AMK_CHECKPOINTS": str(tmp_path)})
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "AMK013"
    assert any(str(tmp_path) in fact.text for fact in diagnostic.facts)


@pytest.mark.parametrize(
    ("text", "code"), [("lama3-8b", "AMK010"), ("no/such", "AMK013"), ("x.gguf", "AMK013"), ("a\0b", "AMK010")]
)
def test_neither_name_nor_path(text: str, code: str) -> None:
    with pytest.raises(AmkError) as caught:
        find_checkpoint(text, {})
    assert caught.value.diagnostics[0].code == code


def test_over_long_name_is_refused() -> None:
    with pytest.raises(AmkError):
        find_checkpoint("x" * 100_000, {})


def test_a_directory_without_a_configuration_stands_for_its_only_gguf_file(tmp_path: Path) -> None:
    with pytest.raises(AmkError, match=r"AMK001.*no config\.json and no GGUF"):
        find_checkpoint(str(tmp_path))
    (tmp_path / "a.gguf").touch()
    assert find_checkpoint(str(tmp_path)) == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").touch()
    with pytest.raises(AmkError, match=r"AMK001.*2 GGUF files"):
        find_checkpoint(str(tmp_path))
