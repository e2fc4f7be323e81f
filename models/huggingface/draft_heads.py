"""Tensor names of published draft heads: EAGLE, Medusa and block heads."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jspec.models.heads.block import BlockConfig
from jspec.models.heads.eagle import EAGLEConfig
from jspec.models.heads.eagle3 import Eagle3Config
from jspec.models.heads.medusa import MedusaConfig
from jspec.models.huggingface import mtp_tensors
from jspec.models.huggingface.llama import block, norm
from jspec.models.huggingface.weights import Weight, linear

EMBED, HEAD = "embed_tokens.weight", "lm_head.weight"
"""Copies of the target's embeddings and of its head, which some heads hold."""
OFFSETS, MASK = "d2t", "t2d"
"""EAGLE-3's tables: offsets from draft tokens to target tokens, and a mask of target tokens."""
FACTORS = {"down": "efficient_lm_head_down_proj.weight", "up": "efficient_lm_head.weight"}
"""EAGLE-4's low-rank candidate head."""
_BUFFERS = r".*\.rotary_emb\.inv_freq"
_LAYER = "layers.0"
_MEDUSA = r"(?:medusa_heads?\.)?(\d+\.\d+\.(?:linear\.)?(?:weight|bias))"


@dataclass(frozen=True)
class Names:
    """The tensors of a head by the names of these tables, and what the files call them."""

    kind: str
    tensors: dict[str, str]

    @property
    def layer(self) -> str:
        """The name of EAGLE-3's only layer."""
        return "midlayer" if any(name.startswith("midlayer.") for name in self.tensors) else _LAYER


def find(names: Iterable[str]) -> Names | None:
    """Returns the kind of head that has tensors of such names; None: no kind that is known."""
    tensors = {name: name for name in names if not re.fullmatch(_BUFFERS, name)}
    if "model.fc.weight" in tensors:  # as NeMo AutoModel trains them
        tensors = {name.removeprefix("model."): name for name in tensors}
    if {"fc.weight", "hidden_norm.weight"} <= tensors.keys():
        return Names("block", tensors)
    if "fc.weight" in tensors:
        third = any(name.endswith(".hidden_norm.weight") for name in tensors)
        return Names("eagle3" if third else "eagle", tensors)
    if (head := mtp_tensors.find(tensors)) is not None:
        return Names("mtp", head)
    heads = {match[1]: name for name in tensors if (match := re.fullmatch(_MEDUSA, name))}
    return Names("medusa", heads) if heads else None


def eagle(config: EAGLEConfig, bias: bool) -> Iterator[Weight]:
    """Maps EAGLE-1 and EAGLE-2. Our first map has a bias: a missing one is 0."""
    width = config.hidden_size
    yield from linear(("fuse",), ["fc"], 2 * width, [width], bias)
    yield from block(config, ("layer",), _LAYER, width)
    yield from _tables(config, config.vocab_size)


def _tables(config: EAGLEConfig | Eagle3Config, scored: int) -> Iterator[Weight]:
    """Yields embeddings and head, where these are its own."""
    if config.own_embed:
        yield Weight(("embed",), (EMBED,), ((config.vocab_size, config.hidden_size),))
    if config.own_head:
        yield Weight(("head",), (HEAD,), ((scored, config.hidden_size),))


def eagle3(config: Eagle3Config, layer: str) -> Iterator[Weight]:
    """Maps EAGLE-3, 3.1 and 4, whose layer is called `layer`."""
    width = config.hidden_size
    yield from linear(("fuse",), ["fc"], len(config.taps) * width, [width], False)
    for place in range(len(config.taps) * config.fc_norm):
        yield norm((f"fc_norms_{place}",), f"fc_norm.{place}", width)
    if config.norm_before_fc:
        yield norm(("fused_norm",), "input_norm", len(config.taps) * width)
    yield norm(("token_norm",), f"{layer}.input_layernorm", width)
    yield norm(("state_norm",), f"{layer}.hidden_norm", width)
    yield from block(config, ("layer",), layer, 2 * width)
    yield norm(("norm",), "norm", width)
    yield from _tables(config, config.draft_tokens or config.vocab_size)


def block_head(config: BlockConfig) -> Iterator[Weight]:
    """Maps DFlash, DSpark and JetSpec, without the target's embeddings and head."""
    width, rank = config.hidden_size, config.markov_rank
    size = config.draft_tokens or config.vocab_size
    yield from linear(("fuse",), ["fc"], len(config.taps) * width, [width], False)
    yield norm(("state_norm",), "hidden_norm", width)
    for layer in range(config.num_layers):
        path, name = (f"layers_{layer}",), f"layers.{layer}"
        yield norm((*path, "attention_norm"), f"{name}.input_layernorm", width)
        yield from block(config, path, name, width)
    yield norm(("norm",), "norm", width)
    if config.draft_tokens:
        yield Weight(("head",), (HEAD,), ((size, width),))
    if rank:
        for part, name, rows in (("from", "w1", config.vocab_size), ("to", "w2", size)):
            tensor = f"markov_head.markov_{name}.weight"
            yield Weight((f"markov_{part}",), (tensor,), ((rows, rank),))
    if read := config.confidence_width:
        yield from linear(("certainty",), ["confidence_head.proj"], read, [1], True)


def medusa(config: MedusaConfig) -> Iterator[Weight]:
    width = config.hidden_size
    for head in range(config.num_heads):
        for layer in range(config.num_layers):
            name = f"{head}.{layer}.linear"
            yield from linear((f"block_{head}_{layer}",), [name], width, [width], True)
        name = f"{head}.{config.num_layers}"
        yield from linear((f"head_{head}",), [name], width, [config.vocab_size], False)
