"""assay tells what an LLM server really runs: the model, the sampler, the compute."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("vllm-assay")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0+source"

__all__ = ["__version__"]
