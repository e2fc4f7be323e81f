"""Records MTP heads and what they compute, for the recorded models of some families.

`transformers` ignores these tensors. The oracle is the published formula (DeepSeek-V3, section 2.2,
as vLLM's models `*_mtp.py` have it) in float64, with `transformers`' decoder layer as its layer.

Needs the parity extra: `python tests/models/record_mtp.py [NAME ..]`.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
from transformers.models.glm4_moe import modeling_glm4_moe as glm
from transformers.models.glm4_moe_lite import modeling_glm4_moe_lite as lite
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen3_5
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as qwen3_5_moe
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

HERE = Path(__file__).parent
LENGTH, STEPS = 12, 3


@dataclass(frozen=True)
class Kind:
    """A family's layer, and the names of its head."""

    layer: Callable[..., Any]
    rotary: Callable[..., Any]
    prefix: str
    block: str
    fuse: str
    token_norm: str
    state_norm: str
    norm: str
    offset: float = 0.0
    """Added to the scales of the norms."""
    number: int = 0
    """Of the layer, which says whether it has experts."""


QWEN = {
    "prefix": "mtp.",
    "block": "layers.0.",
    "fuse": "fc",
    "token_norm": "pre_fc_norm_embedding",
    "state_norm": "pre_fc_norm_hidden",
    "norm": "norm",
    "offset": 1.0,
}
NEXTN = {
    "prefix": "model.layers.3.",
    "block": "",
    "fuse": "eh_proj",
    "token_norm": "enorm",
    "state_norm": "hnorm",
    "norm": "shared_head.norm",
    "number": 1,
}
KINDS = {
    "qwen3_next": Kind(qwen.Qwen3NextDecoderLayer, qwen.Qwen3NextRotaryEmbedding, **QWEN),
    "qwen3_5": Kind(qwen3_5.Qwen3_5DecoderLayer, qwen3_5.Qwen3_5TextRotaryEmbedding, **QWEN),
    "qwen3_5_moe": Kind(
        qwen3_5_moe.Qwen3_5MoeDecoderLayer, qwen3_5_moe.Qwen3_5MoeTextRotaryEmbedding, **QWEN
    ),
    "deepseek_v3": Kind(
        deepseek.DeepseekV3DecoderLayer, deepseek.DeepseekV3RotaryEmbedding, **NEXTN
    ),
    "glm4_moe": Kind(glm.Glm4MoeDecoderLayer, glm.Glm4MoeRotaryEmbedding, **NEXTN),
    "glm4_moe_lite": Kind(lite.Glm4MoeLiteDecoderLayer, lite.Glm4MoeLiteRotaryEmbedding, **NEXTN),
}


def norm(x, weight, eps, offset):
    return (offset + weight) * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def by_expert(tensors):
    """Tensors as the published files have them, an expert's matrices one by one."""
    found = {}
    for name, tensor in tensors.items():
        place = name.partition(".experts.")[0]
        if name.endswith(".experts.gate_up_proj"):
            for expert, both in enumerate(tensor):
                for part, matrix in zip(("gate", "up"), both.chunk(2), strict=True):
                    found[f"{place}.experts.{expert}.{part}_proj.weight"] = matrix
        elif name.endswith(".experts.down_proj"):
            for expert, matrix in enumerate(tensor):
                found[f"{place}.experts.{expert}.down_proj.weight"] = matrix
        else:
            found[name] = tensor
    return found


def record(name: str, kind: Kind) -> None:
    folder = HERE / "fixtures" / name
    model = AutoModelForCausalLM.from_pretrained(folder, experts_implementation="eager")
    model = model.double().eval()
    config = AutoConfig.from_pretrained(folder)
    config._attn_implementation = config._experts_implementation = "eager"
    if hasattr(config, "layer_types"):
        config.layer_types = ["full_attention"] * config.num_hidden_layers
    generator, width = torch.Generator().manual_seed(7), config.hidden_size

    def noise(*shape):
        return 0.3 * torch.randn(shape, generator=generator)

    layer = kind.layer(config, kind.number).double().eval()
    for key, tensor in layer.state_dict().items():
        scale = tensor.ndim == 1 and key.endswith("norm.weight")
        tensor.copy_((noise(*tensor.shape) + (1 - kind.offset) * scale).double())
    own = {f"{kind.fuse}.weight": noise(width, 2 * width).double()}
    for part in (kind.token_norm, kind.state_norm, kind.norm):
        own[f"{part}.weight"] = (noise(width) + 1 - kind.offset).double()
    tokens = torch.randint(config.vocab_size, (2, LENGTH + STEPS), generator=generator)
    embed, head = model.model.embed_tokens.weight, model.lm_head.weight
    states = model.model(tokens).last_hidden_state[:, :LENGTH]
    positions = torch.arange(LENGTH)[None].expand(2, -1)
    turns = kind.rotary(config).double()(states, positions)
    causal = torch.full((LENGTH, LENGTH), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    reference = {"tokens": tokens, "states": states.float()}
    eps = config.rms_norm_eps
    for step in range(1, STEPS + 1):
        following = embed[tokens[:, step : step + LENGTH]]
        pair = [
            norm(following, own[f"{kind.token_norm}.weight"], eps, kind.offset),
            norm(states, own[f"{kind.state_norm}.weight"], eps, kind.offset),
        ]
        x = torch.cat(pair, -1) @ own[f"{kind.fuse}.weight"].T
        x = layer(x, position_embeddings=turns, attention_mask=causal)
        states = norm(x, own[f"{kind.norm}.weight"], eps, kind.offset)
        reference[f"states_{step}"] = states.float()
        reference[f"logits_{step}"] = (states @ head.T).float()
    held = {f"{kind.block}{key}": tensor for key, tensor in layer.state_dict().items()} | own
    if kind.block == "":  # files of a layer behind the last have copies of both tables
        held |= {"embed_tokens.weight": embed, "shared_head.head.weight": head}
    held = {f"{kind.prefix}{key}": tensor for key, tensor in by_expert(held).items()}
    place = HERE / "mtp" / name
    place.mkdir(parents=True, exist_ok=True)
    for file, tensors in (("mtp", held), ("reference", reference)):
        kept = {
            key: (tensor if tensor.dtype == torch.int64 else tensor.float()).contiguous()
            for key, tensor in tensors.items()
        }
        save_file(kept, place / f"{file}.safetensors")
        (place / f"{file}.safetensors").chmod(0o644)


def main() -> None:
    with torch.no_grad():
        for name in sys.argv[1:] or KINDS:
            record(name, KINDS[name])


if __name__ == "__main__":
    main()
