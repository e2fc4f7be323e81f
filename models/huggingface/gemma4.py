"""config.json and tensor names of Gemma 4, the text part of its models."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from jspec._validate.errors import InputError
from jspec.models.experts import Experts
from jspec.models.huggingface.config_json import Settings
from jspec.models.huggingface.gemma import cap
from jspec.models.huggingface.llama import kinds, norm, shape, window
from jspec.models.huggingface.llama import weights as dense
from jspec.models.huggingface.weights import Weight, linear
from jspec.models.llama import Layer, LlamaConfig
from jspec.models.rope import ProportionalScaling, Rope


def gemma4(settings: Settings) -> LlamaConfig:
    """Reads per-layer embeddings and experts alongside the MLP, if present."""
    experts = None
    if settings.flag("enable_moe_block", False):
        experts = Experts(
            num_experts=settings.count("num_experts"),
            num_chosen=settings.size("top_k_experts"),
            intermediate_size=settings.size("moe_intermediate_size"),
            beside=True,
            each_scaled=True,
        )
    size = settings.natural("hidden_size_per_layer_input", 256)
    if size:
        settings.choice("vocab_size_per_layer_input", [settings.size("vocab_size")], 262144)
    return replace(_text(settings, 131072, 512, experts), per_layer_size=size or None)


def gemma4_unified(settings: Settings) -> LlamaConfig:
    """Reads Gemma 4 12B."""
    return _text(settings, 262144, 1024, None)


def _text(
    settings: Settings, context: int, near_tokens: int, experts: Experts | None
) -> LlamaConfig:
    """Returns the shared fields: sizes per kind of layer, and shared keys."""
    # What a picture's tokens see of each other, "vision", is nothing to texts.
    settings.choice("use_bidirectional_attention", [None, "vision"], None)
    count = settings.count("num_hidden_layers")
    slides = kinds(settings, [(layer + 1) % 6 > 0 for layer in range(count)])
    slides[-1] = False  # whatever its type says, as in `transformers`
    tokens, (near, far) = window(settings, near_tokens), _rotary(settings)
    bias = settings.flag("attention_bias", False)
    config = shape(
        settings,
        context=settings.size("max_position_embeddings", context),
        kv_heads=4,
        head_dim=256,
        windows=[tokens if slide else None for slide in slides],
        rotary=[near if slide else far for slide in slides],
        experts=(experts,),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        value_norm=True,
        post_norm=True,
        layer_factor=True,
        activation=("hidden_activation", "gelu_pytorch_tanh"),
        embed_scale=settings.size("hidden_size") ** 0.5,
        attention_scale=1.0,
        logit_cap=cap(settings, "final_logit_softcapping", None),
        tied=True,
    )
    joined, wide = (
        settings.flag(name, False) for name in ("attention_k_eq_v", "use_double_wide_mlp")
    )
    sources = _sources(settings, slides)
    sizes = _sizes(settings, slides, joined)
    base = config.layers or (Layer(config.rope),) * count
    layers = [
        replace(
            layer,
            num_kv_heads=heads,
            head_dim=dim,
            intermediate_size=2 * config.intermediate_size if wide and source is not None else None,
            keys_of=source,
            value_is_key=joined and not slide,
        )
        for layer, slide, source, (heads, dim) in zip(base, slides, sources, sizes, strict=True)
    ]
    return replace(config, layers=tuple(layers))


def _sizes(
    settings: Settings, slides: Sequence[bool], joined: bool
) -> list[tuple[int | None, int | None]]:
    """Returns key-value heads and lanes of each layer; None: the config's defaults."""
    heads = settings.size("num_attention_heads")
    per_layer = settings.part("per_layer_config")
    if settings.get("per_layer_config") is None:  # as the models are published
        many = settings.get("num_global_key_value_heads") if joined else None
        fields = {"head_dim": settings.get("global_head_dim", 512)}
        fields |= {} if many is None else {"num_key_value_heads": many}
        by_layer = {str(layer): fields for layer, slide in enumerate(slides) if not slide}
        per_layer = Settings(by_layer, settings.source)
    numbers = {int(name): name for name in per_layer.values if name.isdecimal() and len(name) < 9}
    if len(numbers) != len(per_layer.values) or max(numbers, default=0) >= len(slides):
        raise InputError(
            f"{per_layer.source} names layers {[*per_layer.values]!r:.60}; they have to be numbers "
            f"below {len(slides)}"
        )
    sizes: list[tuple[int | None, int | None]] = []
    for layer in range(len(slides)):
        fields = (
            per_layer.part(numbers[layer]) if layer in numbers else Settings({}, per_layer.source)
        )
        if strange := sorted(set(fields.values) - {"head_dim", "num_key_value_heads"}):
            raise InputError(
                f"{fields.source} has {strange[0]!r:.60}, which jspec does not implement for a "
                "layer of its own; supported: head_dim, num_key_value_heads"
            )
        many, dim = fields.get("num_key_value_heads"), fields.get("head_dim")
        many = many if many is None else fields.divisor("num_key_value_heads", heads)
        dim = dim if dim is None else fields.size("head_dim")
        if dim is not None and dim % 2:
            raise InputError(
                f"{fields.source} has head_dim = {dim}; rotary embeddings need an even one"
            )
        sizes.append((many, dim))
    return sizes


def _sources(settings: Settings, slides: Sequence[bool]) -> list[int | None]:
    """Returns the layer whose keys each layer reads; None: its own."""
    first = len(slides) - settings.natural("num_kv_shared_layers", 0)
    last = {slide: layer for layer, slide in enumerate(slides[: max(first, 0)])}
    if missing := [layer for layer, slide in enumerate(slides) if slide not in last]:
        raise InputError(
            f"{settings.source} has num_kv_shared_layers = {len(slides) - first}, and no layer "
            f"before these is of the kind of layer {missing[0]}, whose keys it would read; lower it"
        )
    return [last[slide] if layer >= first else None for layer, slide in enumerate(slides)]


def _rotary(settings: Settings) -> tuple[Rope, Rope]:
    """Returns the fields of layers with a window, and of the others."""
    if settings.get("rope_parameters") is None:
        return Rope(1e4), Rope(1e6, ProportionalScaling(0.25))
    parameters = settings.part("rope_parameters")
    near, far = (_rope(parameters.part(f"{kind}_attention")) for kind in ("sliding", "full"))
    return near, far


def _rope(fields: Settings) -> Rope:
    theta = fields.number("rope_theta")
    if fields.choice("rope_type", ["default", "proportional"], None) == "default":
        return Rope(theta)
    part = fields.number("partial_rotary_factor", 1.0)
    if part > 1:
        raise InputError(
            f"{fields.source} has partial_rotary_factor = {part}; it has to be at most 1"
        )
    return Rope(theta, ProportionalScaling(part, fields.number("factor", 1.0)))


def weights(config: LlamaConfig) -> Iterator[Weight]:
    """Yields every parameter and the tensors that it is made of."""
    yield from dense(config)
    width, size = config.hidden_size, config.per_layer_size
    if size is not None:
        name, outputs = "model.per_layer", config.num_layers * size
        table = "model.embed_tokens_per_layer.weight"
        yield Weight(("per_layer_embed",), (table,), ((config.vocab_size, outputs),))
        tensors = [f"{name}_model_projection"]
        yield from linear(("per_layer_projection",), tensors, width, [outputs], False)
        yield norm(("per_layer_norm",), f"{name}_projection_norm", size)
    for index, layer in enumerate(config.layers):
        path, name = (f"layers_{index}",), f"model.layers.{index}"
        yield Weight((*path, "layer_factor"), (f"{name}.layer_scalar",), ((1,),))
        if size is not None:
            gate, up = (f"{name}.per_layer_{part}" for part in ("input_gate", "projection"))
            yield from linear((*path, "per_layer_gate"), [gate], width, [size], False)
            yield from linear((*path, "per_layer_up"), [up], size, [width], False)
            yield norm((*path, "per_layer_post_norm"), f"{name}.post_per_layer_input_norm", width)
        if layer.experts is not None:
            yield from _experts(layer.experts, index, width)


def _experts(experts: Experts, index: int, width: int) -> Iterator[Weight]:
    """Maps router, experts and their norms of a layer."""
    path, name = (f"layers_{index}",), f"model.layers.{index}"
    count, inner = experts.num_experts, experts.intermediate_size
    experts_path = (*path, "experts")
    yield from linear((*experts_path, "router"), [f"{name}.router.proj"], width, [count], False)
    yield Weight((*path, "router_norm", "scale"), (f"{name}.router.scale",), ((width,),))
    yield Weight((*experts_path, "factors"), (f"{name}.router.per_expert_scale",), ((count,),))
    for part, matrix in (("gate_up", (2 * inner, width)), ("down", (width, inner))):
        yield Weight((*experts_path, part), (f"{name}.experts.{part}_proj",), ((count, *matrix),))
    for part, tensor in (
        ("mlp_own_norm", "post_feedforward_layernorm_1"),
        ("experts_post_norm", "post_feedforward_layernorm_2"),
        ("experts_norm", "pre_feedforward_layernorm_2"),
    ):
        yield norm((*path, part), f"{name}.{tensor}", width)


def unread(config: LlamaConfig) -> str:
    """Returns the tensors of keys and values of layers that read others', which the files hold."""
    numbers = [
        str(number) for number, layer in enumerate(config.layers) if layer.keys_of is not None
    ]
    return rf"model\.layers\.({'|'.join(numbers)})\.self_attn\.[kv]_(proj|norm)\.weight"
