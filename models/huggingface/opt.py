"""config.json and tensor names of OPT."""

from collections.abc import Iterator

from jspec.models.activations import ACTIVATIONS
from jspec.models.huggingface.config_json import Settings
from jspec.models.huggingface.weights import Weight, affine, linear
from jspec.models.learned_positions import LearnedPositionConfig


def opt(settings: Settings) -> LearnedPositionConfig:
    width = settings.size("hidden_size")
    first = settings.flag("do_layer_norm_before", True)
    return LearnedPositionConfig(
        vocab_size=settings.size("vocab_size"),
        hidden_size=width,
        intermediate_size=settings.size("ffn_dim"),
        num_layers=settings.count("num_hidden_layers"),
        num_heads=settings.divisor("num_attention_heads", width),
        context=settings.size("max_position_embeddings", 2048),
        embed_size=settings.size("word_embed_proj_dim", width),
        activation=settings.choice("activation_function", list(ACTIVATIONS), "relu"),
        norm_first=first,
        norm_affine=settings.flag("layer_norm_elementwise_affine", True),
        final_norm=first and not settings.flag("_remove_final_layer_norm", False),
        bias=settings.flag("enable_bias", True),
        position_offset=2,
        tied=settings.flag("tie_word_embeddings", True),
    )


def weights(config: LearnedPositionConfig) -> Iterator[Weight]:
    """Yields every parameter and the tensors that it is made of."""
    width, inner, bias = config.hidden_size, config.intermediate_size, config.bias
    base, table = "model.decoder", (config.vocab_size, config.embed_size)
    places = config.context + config.position_offset
    yield Weight(("embed",), (f"{base}.embed_tokens.weight",), (table,))
    yield Weight(("positions",), (f"{base}.embed_positions.weight",), ((places, width),))
    if config.embed_size != width:
        ends = config.embed_size, width
        yield from linear(("project_in",), [f"{base}.project_in"], ends[0], [ends[1]], False)
        yield from linear(("project_out",), [f"{base}.project_out"], ends[1], [ends[0]], False)
    for layer in range(config.num_layers):
        path, name = (f"layers_{layer}",), f"{base}.layers.{layer}"
        heads = [f"{name}.self_attn.{part}_proj" for part in "qkv"]
        yield from linear((*path, "qkv"), heads, width, [width] * 3, bias)
        yield from linear((*path, "output"), [f"{name}.self_attn.out_proj"], width, [width], bias)
        yield from linear((*path, "up"), [f"{name}.fc1"], width, [inner], bias)
        yield from linear((*path, "down"), [f"{name}.fc2"], inner, [width], bias)
        if config.norm_affine:
            yield from affine((*path, "attention_norm"), f"{name}.self_attn_layer_norm", width)
            yield from affine((*path, "mlp_norm"), f"{name}.final_layer_norm", width)
    if config.final_norm and config.norm_affine:
        yield from affine(("norm",), f"{base}.final_layer_norm", width)
    if not config.tied:
        yield Weight(("head",), ("lm_head.weight",), (table,))
