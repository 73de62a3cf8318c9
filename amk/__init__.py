"""amk: LLM decode as one verified persistent CUDA kernel."""

__version__ = "0.1.0"
