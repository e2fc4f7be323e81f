"""GGUF, the one-file format of llama.cpp: weights, vocabulary and chat template together."""

from jspec.models.gguf.file import File, GGUFTensors, open_file
from jspec.models.gguf.header import is_gguf

__all__ = ["File", "GGUFTensors", "is_gguf", "open_file"]
