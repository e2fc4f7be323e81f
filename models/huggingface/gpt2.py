"""config.json and tensor names of GPT-2."""

from collections.abc import Iterator

from jspec.models.activations import ACTIVATIONS
from jspec.models.huggingface.config_json import Settings
from jspec.models.huggingface.weights import Weight, affine
from jspec.models.learned_positions import LearnedPositionConfig

BUFFERS = r".*\.attn\.(masked_)?bias"
"""The causal mask, which old checkpoints hold in every layer."""


def gpt2(settings: Settings) -> LearnedPositionConfig:
    settings.choice("scale_attn_weights", [True], True)
    settings.choice("scale_attn_by_inverse_layer_idx", [False], False)
    settings.choice("add_cross_attention", [False], False)
    width = settings.size("n_embd", 768)
    return LearnedPositionConfig(
        vocab_size=settings.size("vocab_size", 50257),
        hidden_size=width,
        intermediate_size=settings.size("n_inner", 4 * width),
        num_layers=settings.count("n_layer", 12),
        num_heads=settings.divisor("n_head", width, 12),
        context=settings.size("n_positions", 1024),
        embed_size=width,
        activation=settings.choice("activation_function", list(ACTIVATIONS), "gelu_new"),
        norm_eps=settings.number("layer_norm_epsilon", 1e-5),
        tied=settings.flag("tie_word_embeddings", True),
    )


def weights(config: LearnedPositionConfig) -> Iterator[Weight]:
    """Yields every parameter and the tensors that it is made of.

    GPT-2's Conv1D holds [in, out], and has q, k and v fused already.
    """
    width, inner = config.hidden_size, config.intermediate_size
    yield Weight(("embed",), ("transformer.wte.weight",), ((config.vocab_size, width),))
    yield Weight(("positions",), ("transformer.wpe.weight",), ((config.context, width),))
    for layer in range(config.num_layers):
        path, name = (f"layers_{layer}",), f"transformer.h.{layer}"
        yield from affine((*path, "attention_norm"), f"{name}.ln_1", width)
        yield from _conv((*path, "qkv"), f"{name}.attn.c_attn", width, 3 * width)
        yield from _conv((*path, "output"), f"{name}.attn.c_proj", width, width)
        yield from affine((*path, "mlp_norm"), f"{name}.ln_2", width)
        yield from _conv((*path, "up"), f"{name}.mlp.c_fc", width, inner)
        yield from _conv((*path, "down"), f"{name}.mlp.c_proj", inner, width)
    yield from affine(("norm",), "transformer.ln_f", width)
    if not config.tied:
        yield Weight(("head",), ("lm_head.weight",), ((config.vocab_size, width),))


def _conv(path: tuple[str, ...], name: str, inputs: int, outputs: int) -> Iterator[Weight]:
    yield Weight((*path, "weight"), (f"{name}.weight",), ((inputs, outputs),), transposed=True)
    yield Weight((*path, "bias"), (f"{name}.bias",), ((outputs,),))
