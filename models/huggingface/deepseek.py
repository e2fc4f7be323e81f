"""Fields and tensor names of DeepSeek-V2 and V3, and of GLM-4-MoE with V3's router."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from jspec._validate.errors import InputError
from jspec.models.experts import ExpertGroups, Experts
from jspec.models.huggingface import rope_fields
from jspec.models.huggingface.config_json import Settings
from jspec.models.huggingface.llama import shape
from jspec.models.huggingface.routed import weights as routed_weights
from jspec.models.latent import LatentAttention
from jspec.models.llama import LlamaConfig

weights = partial(
    routed_weights,
    place="mlp",
    gate="gate_proj",
    up="up_proj",
    down="down_proj",
    together="shared_experts",
)
"""Every parameter and the tensors that it is made of."""


def deepseek_v2(settings: Settings) -> LlamaConfig:
    """Reads DeepSeek-V2 (arXiv 2405.04434): latents, and a softmax over all experts."""
    settings.choice("scoring_func", ["softmax"], "softmax")
    # `transformers` does not read this field, and the authors' code scales by it or by the factor.
    settings.choice("norm_topk_prob", [False], False)
    kinds = ["greedy", "group_limited_greedy"]
    grouped = settings.choice("topk_method", kinds, "greedy") == kinds[1]
    inner = settings.size("moe_intermediate_size", 1407)
    experts = Experts(
        num_experts=settings.count("n_routed_experts", 64),
        num_chosen=settings.size("num_experts_per_tok"),
        intermediate_size=inner,
        normalised=False,
        shared_size=inner * settings.size("n_shared_experts", 2),
        groups=ExpertGroups(settings.size("n_group"), settings.size("topk_group"))
        if grouped
        else None,
        scale=settings.number("routed_scaling_factor", 1.0),
        float32_router=True,
    )
    return _latent(settings, behind_dense(settings, experts, 0), context=2048)


def deepseek_v3(settings: Settings) -> LlamaConfig:
    """Reads DeepSeek-V3 (arXiv 2412.19437): latents, and a router without an auxiliary loss."""
    experts = read_experts(settings, routed=256, inner=2048, groups=8, chosen_groups=4, scale=2.5)
    interleaved = settings.flag("rope_interleave", True)
    return _latent(settings, behind_dense(settings, experts, 3), 4096, interleaved)


def glm4_moe_lite(settings: Settings) -> LlamaConfig:
    """Reads DeepSeek-V3's attention and router in other sizes."""
    experts = read_experts(settings, routed=64, inner=1536, scale=1.8, top_k=4)
    count = settings.count("num_hidden_layers")
    kinds = settings.list_of("mlp_layer_types", str, ["dense", *["sparse"] * (count - 1)])
    if len(kinds) != count or set(kinds) - {"dense", "sparse"}:
        raise InputError(
            f"{settings.source} has mlp_layer_types = {kinds!r:.60}; it has to be 'dense' or "
            f"'sparse' for each of {count} layers"
        )
    each = [experts if kind == "sparse" else None for kind in kinds]
    usual = LatentAttention(512, 768, plain_dim=192, rotary_dim=64, value_dim=256)
    interleaved = settings.flag("rope_interleave", True)
    return _latent(settings, each, 202752, interleaved, usual, eps=1e-5)


_USUAL = LatentAttention(512, 1536, plain_dim=128, rotary_dim=64, value_dim=128)
"""Defaults of absent fields in DeepSeek's models."""


def _latent(
    settings: Settings,
    experts: Sequence[Experts | None],
    context: int,
    interleaved: bool = True,
    usual: LatentAttention = _USUAL,
    eps: float = 1e-6,
) -> LlamaConfig:
    """Returns a decoder of multi-head latent attention."""
    heads = settings.size("num_attention_heads")
    settings.choice("num_key_value_heads", [heads], heads)
    # Null is not a latent vector of queries, and absent is one.
    null = settings.values.get("q_lora_rank", usual.query_rank) is None
    sizes = LatentAttention(
        rank=settings.size("kv_lora_rank", usual.rank),
        query_rank=None if null else settings.size("q_lora_rank", usual.query_rank),
        plain_dim=settings.size("qk_nope_head_dim", usual.plain_dim),
        rotary_dim=settings.size("qk_rope_head_dim", usual.rotary_dim),
        value_dim=settings.size("v_head_dim", usual.value_dim),
    )
    dim, bias = sizes.plain_dim + sizes.rotary_dim, settings.flag("attention_bias", False)
    config = shape(
        settings,
        context=settings.size("max_position_embeddings", context),
        kv_heads=heads,
        eps=eps,
        rotary=(replace(rope_fields.read(settings, sizes.rotary_dim), interleaved=interleaved),),
        experts=experts,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=settings.flag("mlp_bias", False),
        latent=sizes,
        attention_scale=dim**-0.5 * rope_fields.score_factor(settings),
    )
    # In the files, head_dim is that of the rotary lanes.
    return replace(config, num_kv_heads=1, head_dim=dim)


def glm4_moe(settings: Settings) -> LlamaConfig:
    """Reads partly rotated heads, and DeepSeek-V3's router."""
    experts = read_experts(settings, routed=128, inner=1408)
    return shape(
        settings,
        context=settings.size("max_position_embeddings", 131072),
        kv_heads=8,
        partial=0.5,
        eps=1e-5,
        experts=behind_dense(settings, experts, 1),
        qkv_bias=settings.flag("attention_bias", False),
        qk_norm=settings.flag("use_qk_norm", False),
    )


def read_experts(
    settings: Settings,
    routed: int,
    inner: int,
    groups: int = 1,
    chosen_groups: int = 1,
    scale: float = 1.0,
    top_k: int = 8,
) -> Experts:
    """Reads the experts of DeepSeek-V3 (arXiv 2412.19437, section 2.1.2)."""
    settings.choice("scoring_func", ["sigmoid"], "sigmoid")
    settings.choice("topk_method", ["noaux_tc"], "noaux_tc")
    inner = settings.size("moe_intermediate_size", inner)
    count = settings.count("n_routed_experts", routed)
    num_groups, best = settings.size("n_group", groups), settings.size("topk_group", chosen_groups)
    return Experts(
        num_experts=count,
        num_chosen=settings.size("num_experts_per_tok", top_k),
        intermediate_size=inner,
        normalised=settings.flag("norm_topk_prob", True),
        shared_size=inner * settings.size("n_shared_experts", 1),
        sigmoid=True,
        correction=True,
        groups=ExpertGroups(num_groups, best, 2) if num_groups > 1 else None,
        scale=settings.number("routed_scaling_factor", scale),
        float32_router=True,
    )


def behind_dense(settings: Settings, experts: Experts, dense: int) -> list[Experts | None]:
    """Returns the experts of each layer: none in the first ones, which have a common MLP."""
    settings.choice("moe_layer_freq", [1], 1)
    first = settings.natural("first_k_dense_replace", dense)
    return [
        experts if layer >= first else None for layer in range(settings.count("num_hidden_layers"))
    ]
