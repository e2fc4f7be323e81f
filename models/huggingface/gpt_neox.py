"""config.json and tensor names of GPT-NeoX and Pythia."""

from collections.abc import Iterator

from jspec.models.activations import ACTIVATIONS
from jspec.models.huggingface import rope_fields
from jspec.models.huggingface.config_json import Settings
from jspec.models.huggingface.weights import Weight, affine, linear
from jspec.models.neox import GPTNeoXConfig

BUFFERS = r".*\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)"
"""Masks and frequencies, which old checkpoints hold in every layer."""


def gpt_neox(settings: Settings) -> GPTNeoXConfig:
    width = settings.size("hidden_size", 6144)
    heads = settings.divisor("num_attention_heads", width, 64)
    base, part = settings.number("rotary_emb_base", 10000.0), settings.number("rotary_pct", 0.25)
    rope = rope_fields.read(settings, width // heads, base, part)
    context = settings.size("max_position_embeddings", 2048)
    return GPTNeoXConfig(
        vocab_size=settings.size("vocab_size", 50432),
        hidden_size=width,
        intermediate_size=settings.size("intermediate_size", 24576),
        num_layers=settings.count("num_hidden_layers", 44),
        num_heads=heads,
        context=rope_fields.context(settings, rope.scaling, context),
        rope=rope,
        activation=settings.choice("hidden_act", list(ACTIVATIONS), "gelu"),
        norm_eps=settings.number("layer_norm_eps", 1e-5),
        parallel=settings.flag("use_parallel_residual", True),
        attention_bias=settings.flag("attention_bias", True),
        tied=settings.flag("tie_word_embeddings", False),
    )


def weights(config: GPTNeoXConfig) -> Iterator[Weight]:
    """Yields every parameter and the tensors that it is made of."""
    width, inner, bias = config.hidden_size, config.intermediate_size, config.attention_bias
    table = (config.vocab_size, width)
    yield Weight(("embed",), ("gpt_neox.embed_in.weight",), (table,))
    for layer in range(config.num_layers):
        path, name = (f"layers_{layer}",), f"gpt_neox.layers.{layer}"
        fused, dense = f"{name}.attention.query_key_value", f"{name}.attention.dense"
        yield from affine((*path, "attention_norm"), f"{name}.input_layernorm", width)
        yield from linear((*path, "qkv"), [fused], width, [3 * width], bias)
        yield from linear((*path, "output"), [dense], width, [width], bias)
        yield from affine((*path, "mlp_norm"), f"{name}.post_attention_layernorm", width)
        yield from linear((*path, "up"), [f"{name}.mlp.dense_h_to_4h"], width, [inner], True)
        yield from linear((*path, "down"), [f"{name}.mlp.dense_4h_to_h"], inner, [width], True)
    yield from affine(("norm",), "gpt_neox.final_layer_norm", width)
    if not config.tied:
        yield Weight(("head",), ("embed_out.weight",), (table,))
