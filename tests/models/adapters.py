"""Adapters in PEFT's layout."""

import json

import numpy as np
from safetensors.numpy import save_file

CONFIG = dict(peft_type="LORA", r=2, lora_alpha=6, bias="none", target_modules=[])


def save(folder, shapes, seed=0, rank=2, rename=lambda tensors: tensors, **config):
    """An adapter of modules by their (outputs, inputs); returns what it adds to each weight."""
    rng, tensors, added = np.random.default_rng(seed), {}, {}
    settings = CONFIG | dict(r=rank) | config
    for name, (outputs, inputs) in shapes.items():
        down = rng.normal(0, 0.4, (rank, inputs)).astype(np.float32)
        up = rng.normal(0, 0.4, (outputs, rank)).astype(np.float32)
        tensors |= {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
        root = np.sqrt(rank) if settings.get("use_rslora") else rank
        own = (alpha for end, alpha in settings.get("alpha_pattern", {}).items()
               if name.endswith(f".{end}"))  # fmt: skip
        alpha = next(own, settings["lora_alpha"])
        added[f"{name}.weight"] = alpha / root * (up.astype(np.float64) @ down)
    folder.mkdir(exist_ok=True)
    held = {f"base_model.model.{name}": tensor for name, tensor in rename(tensors).items()}
    save_file(held, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return added
