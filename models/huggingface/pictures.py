"""The text part of multimodal models: its fields, and what is skipped."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jspec._validate.errors import InputError
from jspec.models.huggingface.config_json import Settings

OTHERS = (
    r"(.*\.rotary_emb\.inv_freq|(model\.)?(vision_tower|audio_tower|vision_embedder|embed_vision"
    r"|embed_audio|multi_modal_projector)\..*)"
)
"""Tensors that are not read: the pictures' and sounds'."""

INNER = "language_model."
"""The name of the decoder within the model."""

GEMMA3 = {"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216}
GEMMA3 |= {"num_hidden_layers": 26, "num_attention_heads": 8}
"""Defaults of absent fields of its text part: 4B's has six of its own."""


def text(settings: Settings, model_type: str, usual: Mapping[str, Any]) -> Settings:
    """Returns the text model's fields, with the outer field for tied weights."""
    inner = settings.part("text_config")
    if (kind := inner.get("model_type", model_type)) != model_type:
        raise InputError(
            f"{inner.source} has model_type = {kind!r:.60}, which jspec does not implement as the "
            f"text part of {settings.get('model_type')!r:.60}; supported: {model_type!r}"
        )
    tied = settings.get("tie_word_embeddings", inner.get("tie_word_embeddings"))
    return replace(inner, values={**usual, **inner.values, "tie_word_embeddings": tied})
