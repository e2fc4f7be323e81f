"""config.json and tensor names of Llama, Mistral, Qwen2 and Qwen3."""

from collections.abc import Iterator

from jspec.errors import InputError
from jspec.models.huggingface.settings import Settings
from jspec.models.huggingface.weights import Path, Weight, linear
from jspec.models.llama import LlamaConfig, RopeScaling


def llama(settings: Settings) -> LlamaConfig:
    bias = settings.flag("attention_bias", False)
    return _config(
        settings,
        context=settings.size("max_position_embeddings", 2048),
        kv_heads=settings.size("num_attention_heads"),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=settings.flag("mlp_bias", False),
    )


def mistral(settings: Settings) -> LlamaConfig:
    # Absent is 8 here, while null is one key-value head for every head.
    null = "num_key_value_heads" in settings.values
    heads = settings.size("num_attention_heads") if null else 8
    return _config(settings, context=_window(settings, 4096 * 32), kv_heads=heads)


def qwen2(settings: Settings) -> LlamaConfig:
    return _config(
        settings,
        context=_switched_window(settings),
        kv_heads=settings.size("num_attention_heads"),
        qkv_bias=True,
    )


def qwen3(settings: Settings) -> LlamaConfig:
    bias = settings.flag("attention_bias", False)
    return _config(
        settings,
        context=_switched_window(settings),
        kv_heads=settings.size("num_attention_heads"),
        head_dim=128,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
    )


def weights(config: LlamaConfig) -> Iterator[Weight]:
    """Every parameter of a Llama and the tensors that it is made of."""
    width = config.hidden_size
    yield Weight(("embed",), ("model.embed_tokens.weight",), ((config.vocab_size, width),))
    for layer in range(config.num_layers):
        path, name = (f"layers_{layer}",), f"model.layers.{layer}"
        yield norm((*path, "attention_norm"), f"{name}.input_layernorm", width)
        yield from block(config, path, name, width)
    yield norm(("norm",), "model.norm", width)
    if not config.tied:
        yield Weight(("head",), ("lm_head.weight",), ((config.vocab_size, width),))


def block(config: LlamaConfig, path: Path, name: str, inputs: int) -> Iterator[Weight]:
    """A layer without the norm at its entrance.

    Args:
        config: its shape.
        path: of the parameters.
        name: of the tensors.
        inputs: width of what queries, keys and values are made of.
    """
    width = config.hidden_size
    query, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    yield from linear(
        (*path, "qkv"),
        [f"{name}.self_attn.{part}_proj" for part in "qkv"],
        inputs,
        [query, keys, keys],
        config.qkv_bias,
    )
    if config.qk_norm:
        for part in "qk":
            yield norm((*path, f"{part}_norm"), f"{name}.self_attn.{part}_norm", config.head_dim)
    yield from linear(
        (*path, "output"), [f"{name}.self_attn.o_proj"], query, [width], config.output_bias
    )
    yield norm((*path, "mlp_norm"), f"{name}.post_attention_layernorm", width)
    inner = config.intermediate_size
    yield from linear(
        (*path, "gate_up"),
        [f"{name}.mlp.gate_proj", f"{name}.mlp.up_proj"],
        width,
        [inner, inner],
        config.mlp_bias,
    )
    yield from linear((*path, "down"), [f"{name}.mlp.down_proj"], inner, [width], config.mlp_bias)


def norm(path: Path, name: str, size: int) -> Weight:
    return Weight((*path, "scale"), (f"{name}.weight",), ((size,),))


def _config(
    settings: Settings,
    context: int,
    kv_heads: int,
    head_dim: int | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
) -> LlamaConfig:
    """The fields that all four share; `kv_heads` and `head_dim` are what an absent field means."""
    settings.choice("hidden_act", ["silu", "swish"], "silu")
    heads = settings.size("num_attention_heads")
    width = settings.size("hidden_size")
    head_dim = settings.size("head_dim", head_dim or max(width // heads, 1))
    if head_dim % 2:
        raise InputError(
            f"{settings.source} gives a head_dim of {head_dim}; rotary embeddings need an even one"
        )
    theta, scaling = _rope(settings)
    return LlamaConfig(
        vocab_size=settings.size("vocab_size"),
        hidden_size=width,
        intermediate_size=settings.size("intermediate_size"),
        num_layers=settings.size("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=settings.divisor("num_key_value_heads", heads, kv_heads),
        head_dim=head_dim,
        context=context,
        norm_eps=settings.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        tied=settings.flag("tie_word_embeddings", False),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
    )


def _rope(settings: Settings) -> tuple[float, RopeScaling | None]:
    """Base and scaling of the rotary angles.

    Transformers 5 writes both into `rope_parameters`; before, they were `rope_theta` and
    `rope_scaling`, whose type was called `type` before it was called `rope_type`.
    """
    rope = settings.part("rope_parameters" if settings.get("rope_parameters") else "rope_scaling")
    theta = rope.number("rope_theta", settings.number("rope_theta", 10000.0))
    name = "rope_type" if rope.get("rope_type") else "type"
    kind = rope.choice(name, ["default", "llama3"], "default")
    rope.choice("partial_rotary_factor", [1.0], settings.get("partial_rotary_factor", 1.0))
    if kind == "default":
        return theta, None
    return theta, RopeScaling(
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_context=rope.size("original_max_position_embeddings"),
    )


def _window(settings: Settings, context: int) -> int:
    """Positions that a model with a sliding window can place exactly.

    Within the first `sliding_window` positions every token still sees every earlier one, so a
    context that ends there needs no window, and what is emitted is what the model would emit.
    """
    context = settings.size("max_position_embeddings", context)
    # Absent is a window of 4096, while null is none.
    null = "sliding_window" in settings.values
    return min(context, settings.size("sliding_window", context if null else 4096))


def _switched_window(settings: Settings) -> int:
    """Qwen's window counts only where `use_sliding_window` is on and some layer has it."""
    context = settings.size("max_position_embeddings", 32768)
    layers = settings.size("num_hidden_layers")
    kinds = settings.get("layer_types")
    if kinds is None:
        sliding = settings.get("max_window_layers", 28) < layers
    else:
        strange = sorted(set(kinds) - {"full_attention", "sliding_attention"})
        if strange:
            raise InputError(
                f"{settings.source} has a layer of type {strange[0]!r}; "
                "supported: 'full_attention', 'sliding_attention'"
            )
        sliding = "sliding_attention" in kinds
    if settings.flag("use_sliding_window", False) and sliding:
        return _window(settings, context)
    return context
