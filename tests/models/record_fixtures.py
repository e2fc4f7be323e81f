"""Records the models and logits that the parity tests check without torch.

A folder's config.json is what its model is made of: a new one needs no more.

Needs the parity extra: `python tests/models/record_fixtures.py [NAME ..]`.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import AutoConfig, AutoModelForCausalLM

FIXTURES = Path(__file__).parent / "fixtures"
BATCH, LENGTH, GREEDY = 2, 16, 40


def build(name: str):
    """A random model of a variant; norms and biases are random too, else they test nothing."""
    config = AutoConfig.from_pretrained(FIXTURES / name)
    generator = torch.Generator().manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for key, weight in [*model.named_parameters(), *model.named_buffers()]:
            if key not in model.state_dict():
                continue
            noise = 0.3 * torch.randn(weight.shape, generator=generator)
            factors = weight.ndim == 1 and key.endswith(("weight", "scale", "scalar"))
            weight.copy_(1 + noise if factors else noise)
    return model


def logits(model, tokens: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.from_numpy(tokens)).logits.numpy()


def main() -> None:
    for name in sys.argv[1:] or sorted(folder.name for folder in FIXTURES.iterdir()):
        model = build(name)
        model.save_pretrained(FIXTURES / name)
        tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, (BATCH, LENGTH))
        texts = torch.from_numpy(tokens)
        mask = torch.ones_like(texts)  # no token is one of padding
        how = dict(attention_mask=mask, do_sample=False, eos_token_id=None, pad_token_id=0)
        greedy = model.generate(texts, max_new_tokens=GREEDY, **how)
        reference = {
            "tokens": tokens,
            "logits": logits(model, tokens),
            "greedy": greedy[:, LENGTH:].contiguous().numpy(),
        }
        save_file(reference, FIXTURES / name / "reference.safetensors")


if __name__ == "__main__":
    main()
