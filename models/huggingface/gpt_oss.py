"""config.json and tensor names of gpt-oss."""

from collections.abc import Iterator
from dataclasses import replace

from jspec.models.activations import ClampedGate
from jspec.models.experts import Experts
from jspec.models.huggingface.config_json import Settings
from jspec.models.huggingface.llama import kinds, shape, window
from jspec.models.huggingface.llama import weights as dense
from jspec.models.huggingface.weights import Weight, linear
from jspec.models.llama import LlamaConfig

_STRETCH = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""Defaults of absent fields of rotary positions."""


def gpt_oss(settings: Settings) -> LlamaConfig:
    """Sinks of attention, a window in every other layer, biases, and clamped gates of experts."""
    if not settings.get("rope_scaling") and not settings.get("rope_parameters"):
        settings = replace(settings, values={**settings.values, "rope_parameters": _STRETCH})
    settings.choice("hidden_act", ["silu"], "silu")
    usual = [not layer % 2 for layer in range(settings.count("num_hidden_layers"))]
    size = window(settings, 128)
    experts = Experts(
        num_experts=settings.count("num_local_experts", settings.get("num_experts", 128)),
        num_chosen=settings.size("num_experts_per_tok", 4),
        intermediate_size=settings.size("intermediate_size"),
        bias=True,
        clamp=ClampedGate(
            alpha=settings.number("swiglu_alpha", 1.702),
            limit=settings.number("swiglu_limit", 7.0),
        ),
    )
    bias = settings.flag("attention_bias", True)
    return shape(
        settings,
        context=settings.size("max_position_embeddings", 131072),
        kv_heads=8,
        head_dim=64,
        theta=150000.0,
        eps=1e-5,
        windows=[size if slides else None for slides in kinds(settings, usual)],
        experts=(experts,),
        qkv_bias=bias,
        output_bias=bias,
        sinks=True,
    )


def weights(config: LlamaConfig) -> Iterator[Weight]:
    """Yields every parameter and the tensors that it is made of."""
    yield from dense(config)
    width = config.hidden_size
    for index, layer in enumerate(config.layers):
        assert layer.experts is not None, "every layer has experts"
        count, inner = layer.experts.num_experts, layer.experts.intermediate_size
        path, name = (f"layers_{index}", "experts"), f"model.layers.{index}"
        sinks = f"{name}.self_attn.sinks"
        yield Weight((path[0], "sinks"), (sinks,), ((config.num_heads,),))
        yield from linear((*path, "router"), [f"{name}.mlp.router"], width, [count], True)
        for part, inputs, outputs in (("gate_up", width, 2 * inner), ("down", inner, width)):
            matrices, bias = (count, inputs, outputs), (count, outputs)
            tensor = f"{name}.mlp.experts.{part}_proj"
            yield Weight((*path, part), (tensor,), (matrices,), transposed=True)
            yield Weight((*path, f"{part}_bias"), (f"{tensor}_bias",), (bias,))
