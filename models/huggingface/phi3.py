"""config.json and tensor names of Phi-3, Phi-3.5 and Phi-4-mini, whose products are fused."""

from collections.abc import Iterator
from dataclasses import replace

from jspec.models.huggingface.config_json import Settings
from jspec.models.huggingface.llama import shape, window
from jspec.models.huggingface.llama import weights as separate
from jspec.models.huggingface.weights import Weight
from jspec.models.llama import LlamaConfig


def phi3(settings: Settings) -> LlamaConfig:
    """Its fields; nearly all of them are as Llama has them."""
    return shape(
        settings,
        context=settings.size("max_position_embeddings", 4096),
        kv_heads=settings.size("num_attention_heads"),
        partial=1.0,
        windows=(window(settings, None),),
        eps=1e-5,
    )


def weights(config: LlamaConfig) -> Iterator[Weight]:
    """Yields every parameter and the tensors that it is made of."""
    fused = {"qkv": "self_attn.qkv_proj", "gate_up": "mlp.gate_up_proj"}
    for weight in separate(config):
        part = weight.path[-2] if len(weight.path) > 1 else None
        if part in fused:
            layer = weight.names[0].rsplit(".", 3)[0]
            rows = sum(rows for rows, _ in weight.shapes)
            names, shapes = (f"{layer}.{fused[part]}.weight",), ((rows, weight.shapes[0][1]),)
            yield replace(weight, names=names, shapes=shapes)
        else:
            yield weight
