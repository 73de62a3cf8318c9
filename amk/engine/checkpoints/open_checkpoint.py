"""The weights of a checkpoint, whatever its format."""

from pathlib import Path

from amk.engine.checkpoints.checkpoint import Checkpoint
from amk.engine.checkpoints.packed_checkpoint import PackedCheckpoint
from amk.engine.checkpoints.safetensors_dir import SafetensorsCheckpoint
from amk.engine.refusal import bad_weights, unsupported
from amk.models.packed_config import layout_of_directory

ADAPTER = "adapter_config.json"
"""transformers applies the adapter that this file describes, where peft is installed."""


def open_checkpoint(path: Path | str) -> Checkpoint:
    """The checkpoint at `path`: a Hugging Face directory with safetensors, or a .gguf file.

    Raises AMK013 (unreadable, truncated, tensors missing or of another shape) or AMK012 (a model amk does not run).
    """
    path = Path(path)
    if path.is_dir():
        if (path / ADAPTER).is_file():
            raise unsupported(
                path / ADAPTER,
                "an adapter lies beside the weights, and is not applied",
                help="merge it into the weights, or remove it to run the model without it",
            )
        layout = layout_of_directory(path)
        if layout is None:
            return SafetensorsCheckpoint(path)
        return PackedCheckpoint(path, layout)
    if not path.is_file():
        raise bad_weights(path, "there is no such file or directory")
    if path.suffix.lower() == ".gguf":
        # the gguf package takes longest to load, and only these files need it
        from amk.engine.checkpoints.gguf_file import GgufCheckpoint

        return GgufCheckpoint(path)
    raise bad_weights(
        path,
        "not a checkpoint that amk reads",
        help="give a directory with config.json and *.safetensors, or a .gguf file",
    )
