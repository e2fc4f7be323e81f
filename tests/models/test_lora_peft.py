"""Adapters that PEFT saved, against PEFT's own forward pass; needs `peft` and torch."""

import warnings

import numpy as np
import pytest
import tiny

from jspec import models

torch = pytest.importorskip("torch", reason="needs torch, which the project does not require")
peft = pytest.importorskip("peft", reason="needs peft, which the project does not require")

SHAPE = dict(
    vocab_size=49, hidden_size=36, intermediate_size=64, num_hidden_layers=3,
    num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=64,
    tie_word_embeddings=True,
)  # fmt: skip
ADAPTERS = {
    "one": dict(r=4, lora_alpha=12, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]),
    "two": dict(
        r=6, lora_alpha=9, target_modules=["v_proj", "gate_proj", "down_proj"], use_rslora=True,
        rank_pattern={"down_proj": 2}, layers_to_transform=[0, 2],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """PEFT's model with both adapters, and the folder that it saved them and the base in."""
    from transformers import LlamaConfig, LlamaForCausalLM

    root = tmp_path_factory.mktemp("peft")
    torch.manual_seed(0)
    base = LlamaForCausalLM(LlamaConfig(**SHAPE, initializer_range=0.2)).eval()
    base.save_pretrained(root / "base")
    one, *others = ADAPTERS
    config = {name: peft.LoraConfig(task_type="CAUSAL_LM", **ADAPTERS[name]) for name in ADAPTERS}
    model = peft.get_peft_model(base, config[one], adapter_name=one)
    for name in others:
        model.add_adapter(name, config[name])
    for name, weight in model.named_parameters():
        if "lora_" in name:  # PEFT begins with B = 0
            torch.nn.init.normal_(weight, 0, 0.2)
    model.save_pretrained(root)
    return model.eval(), root


@pytest.mark.parametrize("scan_layers", [False, True], ids=["layers", "scanned"])
def test_logits_are_those_of_peft(saved, scan_layers):
    model, root = saved
    tokens = np.random.default_rng(0).integers(0, SHAPE["vocab_size"], (3, 11))
    wanted = []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for row, name in enumerate((None, *ADAPTERS)):
            ids = torch.tensor(tokens[row : row + 1])
            if name is None:
                with model.disable_adapter():
                    wanted.append(model(ids).logits[0].numpy())
            else:
                model.set_adapter(name)
                wanted.append(model(ids).logits[0].numpy())
    found = models.load(
        root / "base", dtype="float32", with_tokenizer=False, scan_layers=scan_layers,
        adapters={name: root / name for name in ADAPTERS},
    )  # fmt: skip

    def logits(chosen):
        params = found.model.choose(found.params, chosen)
        return tiny.forward(found.model, params, tokens).logits

    np.testing.assert_allclose(logits([None, *ADAPTERS]), wanted, atol=1e-4)
    # The adapters differ from each other and from the base by far more than that.
    others = np.asarray(logits([*ADAPTERS, None]))
    assert (abs(others - np.stack(wanted)).max((1, 2)) > 0.1).all()
