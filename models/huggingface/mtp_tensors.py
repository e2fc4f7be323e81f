"""Tensor names of the draft heads that come with a model's weights: one row for each layout."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from jspec.models.huggingface.llama import norm
from jspec.models.huggingface.weights import Weight, linear
from jspec.models.llama import LlamaConfig

_BLOCK = "model.layers.0."
"""The tensors of a model's first layer."""


@dataclass(frozen=True)
class MTPLayout:
    """A family's names for the parts of its MTP head, below the head's own prefix."""

    prefix: str
    """Of all its tensors, as a regular expression."""
    fuse: str
    token_norm: str
    state_norm: str
    norm: str
    block: str
    """Prefix of the decoder layer."""
    head: str | None = None
    """The table that it scores by; None: the target's."""
    embed: str | None = None
    """A copy of the target's embeddings, which some files hold."""

    @property
    def mark(self) -> str:
        """The tensor that tells such a head."""
        return f"{self.fuse}.weight"


QWEN = MTPLayout(
    prefix=r"mtp\.",
    fuse="fc",
    token_norm="pre_fc_norm_embedding",
    state_norm="pre_fc_norm_hidden",
    norm="norm",
    block="layers.0.",
)
"""Qwen3-Next and Qwen3.5."""
NEXTN = MTPLayout(
    prefix=r"model\.layers\.\d+\.",
    fuse="eh_proj",
    token_norm="enorm",
    state_norm="hnorm",
    norm="shared_head.norm",
    block="",
    head="shared_head.head.weight",
    embed="embed_tokens.weight",
)
"""DeepSeek-V3 and GLM-4-MoE: a layer behind the target's last."""


def find(names: Iterable[str]) -> dict[str, str] | None:
    """Returns an MTP head's tensors by their names below its prefix; None: no head."""
    names = list(names)
    for layout in (QWEN, NEXTN):
        marks = [
            name for name in names if re.fullmatch(layout.prefix + re.escape(layout.mark), name)
        ]
        if not marks:
            continue
        heads = [name.removesuffix(layout.mark) for name in marks]
        first = min(heads, key=lambda prefix: (len(prefix), prefix))
        tensors = {name.removeprefix(first): name for name in names if name.startswith(first)}
        rest = [name for name in names for head in heads if head != first and name.startswith(head)]
        return tensors | {name: name for name in rest}
    return None


def table(
    config: LlamaConfig,
    layout: MTPLayout,
    weights: Callable[[Any], Iterator[Weight]],
    own_head: bool,
) -> Iterator[Weight]:
    """Yields every parameter of a head and its tensors. Its layer is one of the target's family."""
    width = config.hidden_size
    yield from linear(("fuse",), [layout.fuse], 2 * width, [width], False)
    for part in ("token_norm", "state_norm", "norm"):
        yield norm((part,), getattr(layout, part), width)
    if own_head:
        assert layout.head is not None, "it was found among the tensors"
        yield Weight(("head",), (layout.head,), ((config.vocab_size, width),))
    for weight in weights(config):
        if weight.path[0] == "layers_0":
            names = tuple(layout.block + name.removeprefix(_BLOCK) for name in weight.names)
            yield replace(weight, path=("layer", *weight.path[1:]), names=names)
