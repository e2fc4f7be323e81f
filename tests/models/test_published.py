"""Published heads, small and in their layout, against the authors' forward pass in torch."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from published_heads import IDS, LLAMA, MODEL, TARGET, check_decoding, check_saving, other

import jspec
import jspec.models
from jspec.models import heads
from jspec.models.heads import published

torch = pytest.importorskip("torch")

V, E, HEADS, KV, D, INNER, DRAFT = 23, 16, 4, 2, 4, 24, 9
THETA, EPS = 5000.0, 1e-5
EMBED, HEAD = (torch.tensor(np.array(TARGET.params["params"][name])) for name in ("embed", "head"))


def normal(*shape, seed=0):
    made = torch.Generator().manual_seed(1000 * seed + sum(shape))
    return 0.3 * torch.randn(*shape, generator=made)


def layer(name, inputs, third=False):
    wide = {"q_proj": HEADS * D, "k_proj": KV * D, "v_proj": KV * D}
    tensors = {
        f"{name}.self_attn.{part}.weight": normal(out, inputs, seed=i)
        for i, (part, out) in enumerate(wide.items())
    }
    norms = ["post_attention_layernorm", *(["input_layernorm", "hidden_norm"] if third else [])]
    return {
        **tensors,
        f"{name}.self_attn.o_proj.weight": normal(E, HEADS * D),
        f"{name}.mlp.gate_proj.weight": normal(INNER, E, seed=4),
        f"{name}.mlp.up_proj.weight": normal(INNER, E, seed=5),
        f"{name}.mlp.down_proj.weight": normal(E, INNER),
        **{f"{name}.{norm}.weight": 1 + normal(E, seed=6 + i) for i, norm in enumerate(norms)},
    }


def eagle(bias=True):
    first = {"fc.weight": normal(E, 2 * E), **({"fc.bias": normal(E, seed=9)} if bias else {})}
    return {"embed_tokens.weight": EMBED, **first, **layer("layers.0", E)}


def eagle3():
    scored = torch.zeros(V, dtype=torch.bool)
    scored[IDS] = True
    return {
        "d2t": torch.tensor(IDS) - torch.arange(DRAFT),
        "t2d": scored,
        "fc.weight": normal(E, 3 * E),
        **layer("midlayer", 2 * E, third=True),
        "norm.weight": 1 + normal(E, seed=11),
        "lm_head.weight": normal(DRAFT, E),
    }


def medusa(count=3, layers=2, prefix=""):
    tensors = {}
    for head in range(count):
        for block in range(layers):
            tensors[f"{prefix}{head}.{block}.linear.weight"] = normal(E, E, seed=10 * head + block)
            tensors[f"{prefix}{head}.{block}.linear.bias"] = normal(E, seed=10 * head + block)
        tensors[f"{prefix}{head}.{layers}.weight"] = normal(V, E, seed=head)
    return tensors


FILES = {
    "eagle": ("pytorch_model.bin", eagle),
    "eagle3": ("pytorch_model.bin", eagle3),
    "medusa": ("medusa_lm_head.pt", medusa),
}


def write(folder, tensors, file="pytorch_model.bin", **config):
    folder.mkdir(exist_ok=True)
    if file.endswith(".safetensors"):
        from safetensors.torch import save_file

        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / file)
    else:
        torch.save(tensors, folder / file)
    (folder / "config.json").write_text(json.dumps(LLAMA | config))
    return folder


@pytest.fixture(params=FILES)
def kind(request):
    return request.param


@pytest.fixture
def folder(kind, tmp_path):
    file, tensors = FILES[kind]
    config = {"medusa_num_heads": 2} if kind == "medusa" else {}  # wrong, as in published ones
    return write(tmp_path / kind, tensors(), file, **config)


def norm(x, weight):
    return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)


def attention(x, tensors, name, positions):
    """Causal attention of one sequence [N, inputs], as in Hugging Face's Llama."""
    q, k, v = (
        (x @ tensors[f"{name}.self_attn.{part}_proj.weight"].T).view(len(x), -1, D).transpose(0, 1)
        for part in "qkv"
    )
    angles = positions[:, None] * THETA ** -(torch.arange(0, D, 2) / D)
    cos, sin = (torch.cat([f(angles)] * 2, -1) for f in (torch.cos, torch.sin))

    def turn(y):
        return y * cos + torch.cat([-y[..., D // 2 :], y[..., : D // 2]], -1) * sin

    k, v = (part.repeat_interleave(HEADS // KV, dim=0) for part in (turn(k), v))
    scores = turn(q) @ k.transpose(1, 2) / D**0.5
    hidden = torch.full(scores.shape[1:], -torch.inf).triu(1)
    mixed = (scores + hidden).softmax(-1) @ v
    return mixed.transpose(0, 1).reshape(len(x), -1) @ tensors[f"{name}.self_attn.o_proj.weight"].T


def mlp(x, tensors, name):
    read = norm(x, tensors[f"{name}.post_attention_layernorm.weight"])
    gate, up, down = (tensors[f"{name}.mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
    return (torch.nn.functional.silu(read @ gate.T) * (read @ up.T)) @ down.T


def forward_eagle(tensors, states, tokens):
    """cnets1.py: embedding first, no norm at the entrance, the target's head on the output."""
    pair = torch.cat([EMBED[tokens], states], -1)
    x = pair @ tensors["fc.weight"].T + tensors.get("fc.bias", 0)
    x = x + attention(x, tensors, "layers.0", torch.arange(len(x)))
    x = x + mlp(x, tensors, "layers.0")
    return x, x @ HEAD.T


def forward_eagle3(tensors, states, tokens):
    """cnets.py: three states or one's own, the residual from the state, the head's own norm."""
    x = states @ tensors["fc.weight"].T if states.shape[-1] != E else states
    read = torch.cat(
        [
            norm(EMBED[tokens], tensors["midlayer.input_layernorm.weight"]),
            norm(x, tensors["midlayer.hidden_norm.weight"]),
        ],
        -1,
    )
    x = x + attention(read, tensors, "midlayer", torch.arange(len(x)))
    x = x + mlp(x, tensors, "midlayer")
    logits = torch.full((len(x), V), -torch.inf)
    logits[:, IDS] = norm(x, tensors["norm.weight"]) @ tensors["lm_head.weight"].T
    return x, logits


def apply(head, variables, states, tokens):
    states = jnp.asarray(states.numpy())[None]
    return head.apply(variables, states, *tiny.causal(tokens[None].numpy()), None)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
@pytest.mark.parametrize(
    ("tensors", "forward"),
    [(eagle(), forward_eagle), (eagle(bias=False), forward_eagle), (eagle3(), forward_eagle3)],
    ids=["eagle", "eagle_without_bias", "eagle3"],
)
def test_a_head_of_pairs_computes_what_the_authors_does(tmp_path, tensors, forward, file):
    head, variables = published.read(write(tmp_path / "head", tensors, file), TARGET)
    states = normal(7, head.features, seed=3)
    tokens = torch.tensor([4, 1, 22, 0, 9, 9, 13])
    x, logits = forward(tensors, states, tokens)
    output = apply(head, variables, states, tokens)
    np.testing.assert_allclose(output.hidden[0], x, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(output.logits[0], logits, rtol=2e-4, atol=2e-4)
    # And from its own states.
    again, logits = forward(tensors, x, tokens)
    output = apply(head, variables, x, tokens)
    np.testing.assert_allclose(output.hidden[0], again, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(output.logits[0], logits, rtol=2e-4, atol=2e-4)
    assert variables["target"]["embed"] is TARGET.params["params"]["embed"]


@pytest.mark.parametrize("prefix", ["", "medusa_head."])
@pytest.mark.parametrize("file", ["medusa_lm_head.pt", "medusa_lm_head.safetensors"])
def test_medusa_heads_compute_what_the_authors_do(tmp_path, file, prefix):
    tensors = medusa(prefix=prefix)
    folder = write(tmp_path / "head", tensors, file, medusa_num_heads=2)
    head, variables = published.read(folder, TARGET)
    states = normal(5, E, seed=3)
    scores = head.apply(variables, jnp.asarray(states.numpy())[None])
    for i in range(3):
        x = states
        for block in range(2):
            weight, bias = (tensors[f"{prefix}{i}.{block}.linear.{n}"] for n in ("weight", "bias"))
            x = x + torch.nn.functional.silu(x @ weight.T + bias)
        want = x @ tensors[f"{prefix}{i}.2.weight"].T
        np.testing.assert_allclose(scores[0, :, i], want, rtol=2e-4, atol=2e-4)


def test_a_published_head_decodes_and_is_saved_in_our_format(kind, folder, tmp_path):
    loaded = head, variables, target = heads.load(folder, TARGET, only=kind)
    assert target.model.taps == ((2, 3, 3) if kind == "eagle3" else ())
    small = jspec.Template(((0,), (1,), (0, 0)))
    drafter = (jspec.Medusa if kind == "medusa" else jspec.EAGLE)(head, small)
    check_decoding(drafter, loaded, max_new_tokens=12)
    check_saving(tmp_path / "saved", head, variables)


def test_taps_are_the_states_that_enter_layers(tmp_path):
    head, _, target = heads.load(write(tmp_path / "head", eagle3()), TARGET)
    assert head.config.taps == (2, 3, 3)
    read = *tiny.causal(tiny.PROMPTS[:1]), None
    run = target.model.apply(TARGET.params, *read)
    # A model cut below a layer, its last norm undone, ends with what enters that layer.
    for place, tap in enumerate(head.config.taps):
        cut = tiny.model(num_layers=tap)
        params = TARGET.params["params"] | {"norm": {"scale": jnp.ones(E)}}
        last = cut.apply({"params": params}, *read).hidden
        found = run.hidden[..., place * E : (place + 1) * E]
        found = found / jnp.sqrt(jnp.square(found).mean(-1, keepdims=True) + EPS)
        np.testing.assert_allclose(found, last, rtol=1e-5, atol=1e-5)
    plain = MODEL.apply(TARGET.params, *read)
    np.testing.assert_array_equal(run.logits, plain.logits)
    given = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}}
    head, _ = published.read(write(tmp_path / "other", eagle3(), **given), TARGET)
    assert head.config.taps == (1, 3, 5)
    taps = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}
    for number, given in enumerate((taps, taps | {"eagle_config": {next(iter(taps)): []}})):
        head, _ = published.read(write(tmp_path / str(number), eagle3(), **given), TARGET)
        assert head.config.taps == (1, 3, 4)
    with pytest.raises(ValueError, match="parallel_drafting = True, which jspec does not"):
        published.read(write(tmp_path / "p", eagle3(), parallel_drafting=True), TARGET)
    with pytest.raises(ValueError, match=r"taps has layer 6 and the model has layers 0 \.\. 5"):
        MODEL.clone(taps=(6,))


def test_a_head_of_the_wrong_kind_is_refused(kind, folder):
    other = "eagle" if kind != "eagle" else "eagle3"
    with pytest.raises(ValueError, match=f"holds a head of kind {kind} and one of kind {other} is"):
        heads.load(folder, TARGET, only=other)


def test_a_head_of_another_target_is_refused(kind, folder):
    with pytest.raises(ValueError, match="for a vocabulary of 23 tokens and the target has 29"):
        heads.load(folder, other(vocab_size=29))
    with pytest.raises(ValueError, match=r"reads states of width \d+ and the target's have"):
        heads.load(folder, other(hidden_size=20))


def test_a_copy_of_other_embeddings_tells_another_model(tmp_path):
    folder = write(tmp_path / "head", eagle())
    with pytest.warns(UserWarning, match=r"embeddings of its own, \d+% away .*another model"):
        heads.load(folder, other())
    half = eagle() | {"embed_tokens.weight": EMBED.half()}
    heads.load(write(tmp_path / "half", half), TARGET)
    short = eagle() | {"embed_tokens.weight": EMBED[:-1]}
    with pytest.raises(ValueError, match=r"embeddings of shape \[22, 16\] and the target's have"):
        heads.load(write(tmp_path / "short", short), TARGET)


def test_tensors_that_do_not_fit_are_refused(tmp_path):
    for tensors, why in (
        ({**eagle(), "layers.1.mlp.up_proj.weight": EMBED}, r"1 tensor \(layers\.1.* no place"),
        ({**eagle(), "fc.weight": normal(E, 3 * E)}, r"fc\.weight .* \[16, 48\], .*\[16, 32\]"),
        ({**eagle3(), "d2t": torch.arange(DRAFT) + 10}, "maps draft tokens to ids 10 .. 26"),
        ({n: t for n, t in eagle3().items() if n != "norm.weight"}, "lacks 1 tensor .norm.weight"),
        ({"0.0.linear.weight": EMBED, "0.0.linear.bias": EMBED}, "lacks 0.0.weight, the last"),
        ({"model.embed_tokens.weight": EMBED}, "holds no draft head that is known"),
        ({"fc.weight": torch.nn.Linear(2, 2)}, r"not a plain state dict \(it asks for torch"),
    ):
        with pytest.raises(ValueError, match=why):
            heads.load(write(tmp_path / "head", tensors), TARGET)


def test_damaged_files_are_refused(tmp_path):
    folder = write(tmp_path / "head", eagle())
    file = folder / "pytorch_model.bin"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"not a whole archive of torch\.save"):
        heads.load(folder, TARGET)
    file.unlink()
    with pytest.raises(ValueError, match="has no weights"):
        heads.load(folder, TARGET)
    file.write_bytes(whole)
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"has no config\.json; download"):
        heads.load(folder, TARGET)
    with pytest.raises(ValueError, match="is not a folder"):
        heads.load(tmp_path / "none", TARGET)
