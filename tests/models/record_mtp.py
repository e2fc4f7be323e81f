"""Records MTP heads and what they compute, for the recorded models of some families.

`transformers` ignores these tensors. The oracle is the published formula (DeepSeek-V3, section 2.2,
as vLLM's models `*_mtp.py` have it) in float64, with `transformers`' decoder layer as its layer.

Needs the parity extra: `python tests/models/record_mtp.py [NAME ..]`.
"""

import sys
from importlib import import_module
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = Path(__file__).parent
LENGTH, STEPS = 12, 3
# Prefix, block, fuse, norms of token, state and output, what is added to their scales, and the
# number of the layer, which says whether it has experts.
QWEN = ("mtp.", "layers.0.", "fc",
        ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"), 1.0, 0)  # fmt: skip
NEXTN = "model.layers.3.", "", "eh_proj", ("enorm", "hnorm", "shared_head.norm"), 0.0, 1
KINDS = {
    "qwen3_next": ("Qwen3Next", "Qwen3Next", QWEN),
    "qwen3_5": ("Qwen3_5", "Qwen3_5Text", QWEN),
    "qwen3_5_moe": ("Qwen3_5Moe", "Qwen3_5MoeText", QWEN),
    "deepseek_v3": ("DeepseekV3", "DeepseekV3", NEXTN),
    "glm4_moe": ("Glm4Moe", "Glm4Moe", NEXTN),
    "glm4_moe_lite": ("Glm4MoeLite", "Glm4MoeLite", NEXTN),
}
"""The names of a family's layer and of its rotary embedding, and those of its head."""


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


def record(name: str) -> None:
    folder, (layer_of, rotary_of, names) = HERE / "fixtures" / name, KINDS[name]
    prefix, block, fuse, norms, offset, number = names
    library = import_module(f"transformers.models.{name}.modeling_{name}")
    model = AutoModelForCausalLM.from_pretrained(folder, experts_implementation="eager")
    model = model.double().eval()
    config = AutoConfig.from_pretrained(folder)
    config._attn_implementation = config._experts_implementation = "eager"
    if hasattr(config, "layer_types"):
        config.layer_types = ["full_attention"] * config.num_hidden_layers
    generator, width = torch.Generator().manual_seed(7), config.hidden_size

    def noise(*shape):
        return 0.3 * torch.randn(shape, generator=generator)

    layer = getattr(library, f"{layer_of}DecoderLayer")(config, number).double().eval()
    for key, tensor in layer.state_dict().items():
        scale = tensor.ndim == 1 and key.endswith("norm.weight")
        tensor.copy_((noise(*tensor.shape) + (1 - offset) * scale).double())
    own = {f"{fuse}.weight": noise(width, 2 * width).double()}
    for part in norms:
        own[f"{part}.weight"] = (noise(width) + 1 - offset).double()
    tokens = torch.randint(config.vocab_size, (2, LENGTH + STEPS), generator=generator)
    embed, head = model.model.embed_tokens.weight, model.lm_head.weight
    states = model.model(tokens).last_hidden_state[:, :LENGTH]
    positions = torch.arange(LENGTH)[None].expand(2, -1)
    rotary = getattr(library, f"{rotary_of}RotaryEmbedding")
    turns = rotary(config).double()(states, positions)
    causal = torch.full((LENGTH, LENGTH), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    reference = {"tokens": tokens, "states": states.float()}
    eps = config.rms_norm_eps
    for step in range(1, STEPS + 1):
        following = embed[tokens[:, step : step + LENGTH]]
        pair = [
            norm(x, own[f"{part}.weight"], eps, offset)
            for x, part in zip((following, states), norms, strict=False)
        ]
        x = torch.cat(pair, -1) @ own[f"{fuse}.weight"].T
        x = layer(x, position_embeddings=turns, attention_mask=causal)
        states = norm(x, own[f"{norms[2]}.weight"], eps, offset)
        reference[f"states_{step}"] = states.float()
        reference[f"logits_{step}"] = (states @ head.T).float()
    held = {f"{block}{key}": tensor for key, tensor in layer.state_dict().items()} | own
    if block == "":  # files of a layer behind the last have copies of both tables
        held |= {"embed_tokens.weight": embed, "shared_head.head.weight": head}
    held = {f"{prefix}{key}": tensor for key, tensor in by_expert(held).items()}
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
            record(name)


if __name__ == "__main__":
    main()
