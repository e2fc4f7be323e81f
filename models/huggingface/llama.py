"""config.json and tensor names of Llama, Mistral, Qwen2 and Qwen3, and what others share."""

from collections.abc import Iterator, Sequence
from typing import Any

from jspec._validate.errors import InputError
from jspec.models.activations import ACTIVATIONS
from jspec.models.experts import Experts
from jspec.models.huggingface import rope_fields
from jspec.models.huggingface.config_json import Settings
from jspec.models.huggingface.weights import Path, Weight, linear
from jspec.models.llama import Layer, LlamaConfig, qkv
from jspec.models.recurrence import Mixer
from jspec.models.rope import Rope


def llama(settings: Settings) -> LlamaConfig:
    bias = settings.flag("attention_bias", False)
    return shape(
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
    context = settings.size("max_position_embeddings", 4096 * 32)
    if not all(kinds(settings, [True] * settings.count("num_hidden_layers"))):
        raise InputError(
            f"{settings.source} has layer_types without a window, and all layers of a Mistral have "
            "one; take its family's name, such as ministral, or leave them out"
        )
    return shape(settings, context, heads, windows=(window(settings, 4096),))


def qwen2(settings: Settings) -> LlamaConfig:
    return shape(
        settings,
        context=settings.size("max_position_embeddings", 32768),
        kv_heads=settings.size("num_attention_heads"),
        windows=_read_windows(settings),
        qkv_bias=True,
    )


def qwen3(settings: Settings) -> LlamaConfig:
    bias = settings.flag("attention_bias", False)
    return shape(
        settings,
        context=settings.size("max_position_embeddings", 32768),
        kv_heads=settings.size("num_attention_heads"),
        head_dim=128,
        windows=_read_windows(settings),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
    )


def weights(config: LlamaConfig) -> Iterator[Weight]:
    """Yields every parameter of a model and the tensors that it is made of."""
    width = config.hidden_size
    yield Weight(("embed",), ("model.embed_tokens.weight",), ((config.vocab_size, width),))
    for layer in range(config.num_layers):
        path, name = (f"layers_{layer}",), f"model.layers.{layer}"
        if config.pre_norm:
            yield norm((*path, "attention_norm"), f"{name}.input_layernorm", width)
        kind = config.layers[layer] if config.layers else Layer(config.rope)
        yield from block(config, path, name, width, kind)
    yield norm(("norm",), "model.norm", width)
    if not config.tied:
        yield Weight(("head",), ("lm_head.weight",), ((config.vocab_size, width),))


def block(
    config: LlamaConfig, path: Path, name: str, inputs: int, layer: Layer | None = None
) -> Iterator[Weight]:
    """Yields a layer without the norm at its entrance, its experts and its mixer."""
    width, layer = config.hidden_size, layer or Layer(None)
    if layer.mixer is None and config.latent is None:
        yield from _attention(config, path, f"{name}.self_attn", inputs, layer)
    elif layer.mixer is None:
        yield from _latent_attention(config, path, f"{name}.self_attn", inputs)
    # `post_attention_layernorm` precedes the MLP in Llama, elsewhere it may follow attention.
    after, before = "post_attention_layernorm", "pre_feedforward_layernorm"
    if config.pre_norm:
        yield norm((*path, "mlp_norm"), f"{name}.{before if config.post_norm else after}", width)
    if config.post_norm:
        yield norm((*path, "attention_post_norm"), f"{name}.{after}", width)
        yield norm((*path, "mlp_post_norm"), f"{name}.post_feedforward_layernorm", width)
    if layer.experts is None or layer.experts.beside:
        size = layer.intermediate_size or config.intermediate_size
        yield from mlp(path, f"{name}.mlp", width, size, config.mlp_bias)


def mlp(
    path: Path, name: str, width: int, inner: int, bias: bool = False, prefix: str = ""
) -> Iterator[Weight]:
    """Yields a gated MLP, by the prefix of its products' names."""
    yield from linear(
        (*path, f"{prefix}gate_up"),
        [f"{name}.gate_proj", f"{name}.up_proj"],
        width,
        [inner, inner],
        bias,
    )
    yield from linear((*path, f"{prefix}down"), [f"{name}.down_proj"], inner, [width], bias)


def _attention(
    config: LlamaConfig, path: Path, name: str, inputs: int, layer: Layer
) -> Iterator[Weight]:
    fused = qkv(config, layer)
    rows = [count * fused.size for count in fused.counts]
    parts = "qkv"[: len(rows)]
    names = [f"{name}.{part}_proj" for part in parts]
    yield from linear((*path, "qkv"), names, inputs, rows, config.qkv_bias)
    query = config.num_heads * fused.size
    if config.qk_norm:
        for part, joint in zip(parts[:2], (query, *rows[1:2]), strict=True):
            size = joint if config.qk_norm_joint else fused.size
            yield norm((*path, f"{part}_norm"), f"{name}.{part}_norm", size)
    yield from linear(
        (*path, "output"),
        [f"{name}.o_proj"],
        query,
        [config.hidden_size],
        config.output_bias,
    )


def _latent_attention(config: LlamaConfig, path: Path, name: str, inputs: int) -> Iterator[Weight]:
    sizes, heads = config.latent, config.num_heads
    assert sizes is not None
    kv_dim, dim = sizes.rank + sizes.rotary_dim, sizes.plain_dim + sizes.rotary_dim
    names, outputs = [f"{name}.kv_a_proj_with_mqa"], [kv_dim]
    if sizes.query_rank is not None:
        names, outputs = [f"{name}.q_a_proj", *names], [sizes.query_rank, kv_dim]
        yield norm((*path, "q_norm"), f"{name}.q_a_layernorm", sizes.query_rank)
        yield from linear(
            (*path, "q"), [f"{name}.q_b_proj"], sizes.query_rank, [heads * dim], False
        )
    else:
        yield from linear((*path, "q"), [f"{name}.q_proj"], inputs, [heads * dim], False)
    yield from linear((*path, "latents"), names, inputs, outputs, config.qkv_bias)
    yield norm((*path, "kv_norm"), f"{name}.kv_a_layernorm", sizes.rank)
    rows = heads * (sizes.plain_dim + sizes.value_dim)
    yield Weight((*path, "kv_up"), (f"{name}.kv_b_proj.weight",), ((rows, sizes.rank),))
    values, width = heads * sizes.value_dim, config.hidden_size
    yield from linear((*path, "output"), [f"{name}.o_proj"], values, [width], config.output_bias)


def norm(path: Path, name: str, size: int) -> Weight:
    return Weight((*path, "scale"), (f"{name}.weight",), ((size,),))


def shape(
    settings: Settings,
    context: int,
    kv_heads: int,
    *,
    head_dim: int | None = None,
    theta: float = 10000.0,
    partial: float | None = None,
    windows: Sequence[int | None] = (None,),
    rotary: Sequence[Rope | None] = (),
    experts: Sequence[Experts | None] = (None,),
    mixers: Sequence[Mixer | None] = (None,),
    eps: float = 1e-6,
    activation: tuple[str, str] = ("hidden_act", "silu"),
    **differences: Any,
) -> LlamaConfig:
    """Returns the fields that the families share."""
    heads, width = settings.size("num_attention_heads"), settings.size("hidden_size")
    head_dim = settings.size("head_dim", head_dim or max(width // heads, 1))
    field, usual = activation
    turned = rotary or (rope_fields.read(settings, head_dim, theta, partial),)
    count = settings.count("num_hidden_layers")
    first = next((rope for rope in turned if rope is not None), Rope())
    if len({rope.scaling for rope in turned if rope is not None}) == 1:
        context = rope_fields.context(settings, first.scaling, context)
    # A window as long as the context is dropped.
    seen = [None if window and window >= context else window for window in _each(windows, count)]
    per_layer = (_each(values, count) for values in (experts, mixers))
    layers = tuple(map(Layer, _each(turned, count), seen, *per_layer))
    plain = Layer(Rope(first.theta, first.scaling))
    return LlamaConfig(
        vocab_size=settings.size("vocab_size"),
        hidden_size=width,
        intermediate_size=settings.size("intermediate_size"),
        num_layers=count,
        num_heads=heads,
        num_kv_heads=settings.divisor("num_key_value_heads", heads, kv_heads),
        head_dim=head_dim,
        context=context,
        norm_eps=settings.number("rms_norm_eps", eps),
        rope_theta=first.theta,
        rope_scaling=first.scaling,
        tied=settings.flag("tie_word_embeddings", differences.pop("tied", False)),
        activation=_name(settings.choice(field, list(ACTIVATIONS), usual)),
        layers=() if set(layers) == {plain} else layers,
        **differences,
    )


def window(settings: Settings, absent: int | None) -> int | None:
    """Returns the sliding window; None: none."""
    if settings.get("sliding_window") is not None:
        return settings.natural("sliding_window", 0) or None
    return None if "sliding_window" in settings.values else absent


def kinds(settings: Settings, usual: Sequence[bool]) -> list[bool]:
    """Returns which layers have the sliding window."""
    types = settings.get("layer_types")
    if types is None:
        return list(usual)
    types = settings.list_of("layer_types", str, [])
    strange = sorted(set(types) - {"full_attention", "sliding_attention"})
    if strange:
        raise InputError(
            f"{settings.source} has a layer of type {strange[0]!r}; "
            "supported: 'full_attention', 'sliding_attention'"
        )
    if len(types) != len(usual):
        raise InputError(
            f"{settings.source} has {len(types)} layer_types for {len(usual)} layers; correct them"
        )
    return [kind == "sliding_attention" for kind in types]


def _read_windows(settings: Settings) -> list[int | None]:
    """Qwen's window counts only where `use_sliding_window` is on, and in the later layers."""
    first = settings.get("max_window_layers", 28)
    usual = [layer >= first for layer in range(settings.count("num_hidden_layers"))]
    slides = kinds(settings, usual)
    size = window(settings, 4096) if settings.flag("use_sliding_window", False) else None
    return [size if slide else None for slide in slides]


def _each(values: Sequence[Any], count: int) -> Sequence[Any]:
    """Returns one value for each layer."""
    return values if len(values) == count else tuple(values) * count


def _name(activation: str) -> str:
    """Returns one name for each function, so that equal models are equal."""
    return {"swish": "silu", "gelu_pytorch_tanh": "gelu_new"}.get(activation, activation)
