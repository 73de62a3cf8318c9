"""amk: LLM decode as one verified persistent CUDA kernel.

`amk.load` makes a model ready to answer, `amk.plan`, `amk.verify` and `amk.simulate` work on schedules; errors are
`amk.AmkError`. What a name needs is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from amk.version import __version__

if TYPE_CHECKING:
    from amk import hf, lm_eval
    from amk.api.layers import layers, lm_head
    from amk.api.loading import load
    from amk.api.schedules import plan, simulate, verify
    from amk.engine.generation.answer_stream import Stream
    from amk.engine.generation.completion import Completion, Options, Perplexity, Piece, Score, TokenLogprob, Usage
    from amk.engine.generation.conversation import Chat
    from amk.engine.generation.language_model import LanguageModel
    from amk.report.diagnostic import AmkError

__all__ = [
    "AmkError",
    "Chat",
    "Completion",
    "LanguageModel",
    "Options",
    "Perplexity",
    "Piece",
    "Score",
    "Stream",
    "TokenLogprob",
    "Usage",
    "__version__",
    "hf",
    "layers",
    "lm_eval",
    "lm_head",
    "load",
    "plan",
    "simulate",
    "verify",
]

_HOME = {
    "load": "amk.api.loading",
    "layers": "amk.api.layers",
    "lm_head": "amk.api.layers",
    **dict.fromkeys(("plan", "simulate", "verify"), "amk.api.schedules"),
    **dict.fromkeys(
        ("Completion", "Options", "Perplexity", "Piece", "Score", "TokenLogprob", "Usage"),
        "amk.engine.generation.completion",
    ),
    "Chat": "amk.engine.generation.conversation",
    "LanguageModel": "amk.engine.generation.language_model",
    "Stream": "amk.engine.generation.answer_stream",
    "AmkError": "amk.report.diagnostic",
}


def __getattr__(name: str) -> Any:
    if name in ("hf", "lm_eval"):
        return import_module(f"amk.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'amk' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
