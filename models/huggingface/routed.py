"""config.json and tensor names of Mixtral and Qwen3-MoE: routed experts."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from jspec.models.experts import Experts
from jspec.models.huggingface.config_json import Settings
from jspec.models.huggingface.llama import mlp, shape, window
from jspec.models.huggingface.llama import weights as dense
from jspec.models.huggingface.weights import Weight, linear
from jspec.models.llama import LlamaConfig


def mixtral(settings: Settings) -> LlamaConfig:
    experts = Experts(
        num_experts=settings.count("num_local_experts", 8),
        num_chosen=settings.size("num_experts_per_tok", 2),
        intermediate_size=settings.size("intermediate_size"),
    )
    heads = settings.size("num_attention_heads")
    return shape(
        settings,
        context=settings.size("max_position_embeddings", 4096 * 32),
        # Absent is 8 here, while null is one key-value head for every head.
        kv_heads=heads if "num_key_value_heads" in settings.values else 8,
        theta=1e6,
        eps=1e-5,
        windows=(window(settings, None),),
        experts=(experts,),
    )


def qwen3_moe(settings: Settings) -> LlamaConfig:
    experts = Experts(
        num_experts=settings.count("num_experts", settings.get("num_local_experts", 128)),
        num_chosen=settings.size("num_experts_per_tok", 8),
        intermediate_size=settings.size("moe_intermediate_size", 768),
        normalised=settings.flag("norm_topk_prob", False),
    )
    bias = settings.flag("attention_bias", False)
    slides = settings.flag("use_sliding_window", False)
    return shape(
        settings,
        context=settings.size("max_position_embeddings", 32768),
        kv_heads=4,
        windows=(window(settings, 4096) if slides else None,),
        experts=each_or_common(settings, experts),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
    )


def each_or_common(settings: Settings, experts: Experts) -> list[Experts | None]:
    """Returns layers of `mlp_only_layers`, and those between the steps, have a common MLP."""
    count, step = settings.count("num_hidden_layers"), settings.size("decoder_sparse_step", 1)
    common = settings.list_of("mlp_only_layers", int, [])
    routed = [layer not in common and not (layer + 1) % step for layer in range(count)]
    return [experts if is_routed else None for is_routed in routed]


def weights(
    config: LlamaConfig, place: str, gate: str, up: str, down: str, together: str = "shared_expert"
) -> Iterator[Weight]:
    """Yields every parameter and the tensors that it is made of."""
    yield from dense(config)
    width = config.hidden_size
    for index, layer in enumerate(config.layers):
        if layer.experts is None:
            continue
        count, inner = layer.experts.num_experts, layer.experts.intermediate_size
        path, name = (f"layers_{index}", "experts"), f"model.layers.{index}.{place}"
        yield from linear((*path, "router"), [f"{name}.gate"], width, [count], False)
        if layer.experts.correction:
            bias = f"{name}.gate.e_score_correction_bias"
            yield Weight((*path, "correction"), (bias,), ((count,),), dtype=np.float32)
        if (shared := layer.experts.shared_size) is not None:
            expert = f"{name}.{together}"
            yield from mlp(path[:1], expert, width, shared, config.mlp_bias, "shared_")
            if layer.experts.shared_gate:
                gated = [f"{expert}_gate"]
                yield from linear((path[0], "shared_gate"), gated, width, [1], False)
        each = [f"{name}.experts.{expert}" for expert in range(count)]
        yield Weight(
            (*path, "gate_up"),
            tuple(f"{expert}.{part}.weight" for expert in each for part in (gate, up)),
            ((inner, width),) * (2 * count),
            groups=count,
        )
        yield Weight(
            (*path, "down"),
            tuple(f"{expert}.{down}.weight" for expert in each),
            ((width, inner),) * count,
            groups=count,
        )


mixtral_weights = partial(weights, place="block_sparse_moe", gate="w1", up="w3", down="w2")
qwen3_moe_weights = partial(weights, place="mlp", gate="gate_proj", up="up_proj", down="down_proj")
