"""config.json and tensor names of decoders with recurrent layers: Qwen3-Next to Granite 4."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

from jspec._validate.errors import InputError
from jspec.models.experts import Experts
from jspec.models.huggingface import rope_fields
from jspec.models.huggingface.config_json import Settings
from jspec.models.huggingface.llama import norm, shape
from jspec.models.huggingface.llama import weights as dense
from jspec.models.huggingface.routed import each_or_common, qwen3_moe_weights
from jspec.models.huggingface.weights import Path, Weight, linear
from jspec.models.llama import LlamaConfig
from jspec.models.mixers import DeltaNet, Mamba2

_MIXER, _ATTENTION = "linear_attention", "full_attention"
_OLD_NAMES = {"mamba": _MIXER, "attention": _ATTENTION}
QWEN3_NEXT_OTHERS = r"(.*\.rotary_emb\.inv_freq|mtp\..*)"
QWEN3_5_OTHERS = r"(.*\.rotary_emb\.inv_freq|mtp\..*|(model\.)?visual\..*)"
"""Tensors that are not read: heads for several tokens, and pictures."""


def qwen3_next(settings: Settings) -> LlamaConfig:
    """Describes models in which three of four layers are gated delta nets."""
    experts = _experts(settings, 512, 10, settings.flag("norm_topk_prob", True))
    return _delta_nets(settings, 2, True, each_or_common(settings, experts))


def qwen3_5(settings: Settings) -> LlamaConfig:
    """Reads Qwen3.5: Qwen3-Next with an MLP in every layer and projections stored part by part."""
    return _delta_nets(settings, 4, False, (None,))


def qwen3_5_moe(settings: Settings) -> LlamaConfig:
    """Reads Qwen3.5-MoE: Qwen3.5 with experts in every layer."""
    experts = _experts(settings, 256, 8, True)
    sized = {"intermediate_size": experts.intermediate_size, **settings.values}
    return _delta_nets(replace(settings, values=sized), 2, False, (experts,))


def _experts(settings: Settings, count: int, top_k: int, normalised: bool) -> Experts:
    """Reads routed experts alongside one for all tokens."""
    return Experts(
        num_experts=settings.count("num_experts", count),
        num_chosen=settings.size("num_experts_per_tok", top_k),
        intermediate_size=settings.size("moe_intermediate_size", 512),
        normalised=normalised,
        shared_size=settings.size("shared_expert_intermediate_size", 512),
        shared_gate=True,
    )


def _delta_nets(
    settings: Settings, kv_heads: int, grouped: bool, experts: Sequence[Experts | None]
) -> LlamaConfig:
    """Returns a decoder of gated delta nets and attention."""
    each = settings.size("full_attention_interval", 4)
    count = settings.count("num_hidden_layers")
    kinds = _kinds(
        settings, [_MIXER if (layer + 1) % each else _ATTENTION for layer in range(count)]
    )
    net = DeltaNet(
        num_key_heads=settings.size("linear_num_key_heads", 16),
        num_heads=settings.size("linear_num_value_heads", 32),
        key_dim=settings.size("linear_key_head_dim", 128),
        value_dim=settings.size("linear_value_head_dim", 128),
        kernel_size=settings.size("linear_conv_kernel_dim", 4),
        grouped=grouped,
    )
    bias = settings.flag("attention_bias", False)
    rope = rope_fields.read(settings, settings.size("head_dim", 256), partial=0.25)
    return shape(
        settings,
        context=settings.size("max_position_embeddings", 32768),
        kv_heads=kv_heads,
        head_dim=256,
        rotary=[rope if kind == _ATTENTION else None for kind in kinds],
        mixers=[net if kind == _MIXER else None for kind in kinds],
        experts=experts,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        norm_offset=1.0,
        output_gate=True,
    )


def granite(settings: Settings) -> LlamaConfig:
    """Reads models of mostly Mamba-2 layers, with a shared MLP alongside the experts, or alone."""
    count, width = settings.count("num_hidden_layers"), settings.size("hidden_size")
    kinds = _kinds(settings, [_MIXER] * count)
    limits = settings.get("time_step_limit", [0, inf])
    if limits not in ([0, inf], [0, {"__float__": "Infinity"}]):
        raise InputError(
            f"{settings.source} has time_step_limit = {limits!r:.60}, which jspec does not "
            "implement; supported: [0, Infinity]"
        )
    heads = settings.size("mamba_n_heads", 128)
    inner = settings.size("mamba_expand", 2) * width
    size = settings.get("mamba_d_head", "auto")
    head_dim = inner // heads if size == "auto" else settings.size("mamba_d_head")
    if head_dim * heads != inner:
        raise InputError(
            f"{settings.source} has {heads} mamba heads of {head_dim}, which are not the "
            f"{inner} lanes of mamba_expand; correct one of them"
        )
    net = Mamba2(
        num_heads=heads,
        head_dim=head_dim,
        num_groups=settings.size("mamba_n_groups", 1),
        state_size=settings.size("mamba_d_state", 256),
        kernel_size=settings.size("mamba_d_conv", 4),
        convolution_bias=settings.flag("mamba_conv_bias", True),
        projection_bias=settings.flag("mamba_proj_bias", False),
    )
    shared, experts = settings.size("shared_intermediate_size", 1024), None
    if settings.get("num_local_experts", 8):
        experts = Experts(
            num_experts=settings.count("num_local_experts", 8),
            num_chosen=settings.size("num_experts_per_tok", 2),
            intermediate_size=settings.size("intermediate_size"),
            shared_size=shared,
        )
    turned = settings.choice("position_embedding_type", [None, "nope", "rope"], None) == "rope"
    attention_heads = settings.size("num_attention_heads")
    rope = rope_fields.read(settings, width // attention_heads) if turned else None
    bias = settings.flag("attention_bias", False)
    config = shape(
        settings,
        context=settings.size("max_position_embeddings", 2048),
        kv_heads=attention_heads,
        rotary=[rope if kind == _ATTENTION else None for kind in kinds],
        mixers=[net if kind == _MIXER else None for kind in kinds],
        experts=(experts,),
        qkv_bias=bias,
        output_bias=bias,
        embed_scale=settings.number("embedding_multiplier", 1.0),
        attention_scale=settings.number("attention_multiplier", 1.0),
        residual_scale=settings.number("residual_multiplier", 1.0),
        logit_scale=1 / settings.number("logits_scaling", 1.0),
    )
    return config if experts else replace(config, intermediate_size=shared)


def _kinds(settings: Settings, usual: Sequence[str]) -> list[str]:
    """Returns what each layer is; names of before `transformers` 5 mean the same."""
    types = settings.list_of("layer_types", str, settings.get("layers_block_type", usual))
    kinds = [str(_OLD_NAMES.get(kind, kind)) for kind in types]
    if strange := sorted(set(kinds) - {_MIXER, _ATTENTION}):
        raise InputError(
            f"{settings.source} has a layer of type {strange[0]!r}; supported: {_ATTENTION!r}, "
            f"{_MIXER!r}"
        )
    if len(kinds) != len(usual):
        raise InputError(
            f"{settings.source} has {len(kinds)} layer_types for {len(usual)} layers; correct them"
        )
    if _ATTENTION not in kinds:
        raise InputError(
            f"{settings.source} has no layer of type {_ATTENTION!r}, which jspec does not "
            "implement; supported: decoders with at least one"
        )
    return kinds


def qwen_weights(config: LlamaConfig) -> Iterator[Weight]:
    """Yields every parameter and the tensors that it is made of."""
    yield from qwen3_moe_weights(config)
    width = config.hidden_size
    for index, layer in enumerate(config.layers):
        if not isinstance(net := layer.mixer, DeltaNet):
            continue
        path, name = (f"layers_{index}", "mixer"), f"model.layers.{index}.linear_attn"
        keys, values = net.num_key_heads * net.key_dim, net.num_heads * net.value_dim
        joint = 2 * keys + values
        fused, rates = {"qkvz": joint + values}, {"ba": 2 * net.num_heads}
        if not net.grouped:
            fused, rates = {"qkv": joint, "z": values}, {"b": net.num_heads, "a": net.num_heads}
        for part, rows in (("qkvz", fused), ("ba", rates)):
            names = [f"{name}.in_proj_{each}" for each in rows]
            yield from linear((*path, part), names, width, [*rows.values()], False)
        yield from _recurrent(path, name, net, joint)
        yield norm((*path, "norm"), f"{name}.norm", net.value_dim)
        yield from linear((*path, "output"), [f"{name}.out_proj"], values, [width], False)


def granite_weights(config: LlamaConfig) -> Iterator[Weight]:
    """Yields every parameter and the tensors that it is made of."""
    width, ours = config.hidden_size, {"gate_up": "input_linear", "down": "output_linear"}
    for weight in dense(config):
        part = weight.path[-2] if len(weight.path) > 1 else None
        if part in ours:
            layer = weight.names[0].rsplit(".", 3)[0]
            yield _whole(weight.path, f"{layer}.shared_mlp.{ours[part]}", weight.shape)
        else:
            yield weight
    for index, layer in enumerate(config.layers):
        path, name = (f"layers_{index}",), f"model.layers.{index}"
        if (experts := layer.experts) is not None:
            count, inner, shared = (
                experts.num_experts,
                experts.intermediate_size,
                experts.shared_size,
            )
            place = f"{name}.block_sparse_moe"
            yield from linear(
                (*path, "experts", "router"), [f"{place}.router.layer"], width, [count], False
            )
            fused, down = (count, 2 * inner, width), (count, width, inner)
            yield _whole((*path, "experts", "gate_up"), f"{place}.input_linear", fused)
            yield _whole((*path, "experts", "down"), f"{place}.output_linear", down)
            place = f"{name}.shared_mlp"
            assert shared is not None, "the MLP alongside the experts is always there"
            gate_up, down = (2 * shared, width), (width, shared)
            yield _whole((*path, "shared_gate_up", "weight"), f"{place}.input_linear", gate_up)
            yield _whole((*path, "shared_down", "weight"), f"{place}.output_linear", down)
        if not isinstance(net := layer.mixer, Mamba2):
            continue
        path, name = (*path, "mixer"), f"{name}.mamba"
        values = net.num_heads * net.head_dim
        channels = values + 2 * net.num_groups * net.state_size
        outputs = [values + channels + net.num_heads]
        bias = net.projection_bias
        yield from linear((*path, "projection"), [f"{name}.in_proj"], width, outputs, bias)
        yield from _recurrent(path, name, net, channels)
        if net.convolution_bias:
            yield Weight((*path, "convolution_bias"), (f"{name}.conv1d.bias",), ((channels,),))
        yield Weight((*path, "skip"), (f"{name}.D",), ((net.num_heads,),))
        yield _whole((*path, "norm"), f"{name}.norm", (values,))
        yield from linear((*path, "output"), [f"{name}.out_proj"], values, [width], bias)


def _recurrent(path: Path, name: str, net: DeltaNet | Mamba2, channels: int) -> Iterator[Weight]:
    """Yields what the two kinds of recurrent layers share."""
    yield _whole((*path, "convolution"), f"{name}.conv1d", (channels, 1, net.kernel_size))
    yield Weight((*path, "bias"), (f"{name}.dt_bias",), ((net.num_heads,),))
    yield Weight((*path, "log_rate"), (f"{name}.A_log",), ((net.num_heads,),))


def _whole(path: Path, name: str, shape: tuple[int, ...]) -> Weight:
    """Returns a parameter that is one tensor."""
    return Weight(path, (f"{name}.weight",), (shape,))
