"""Adapters alongside a base are that base with the adapter merged into its weights."""

import json
import warnings

import adapters
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from adapters import CONFIG
from safetensors.numpy import load_file, save_file

import jspec
from jspec import models
from jspec.models.export import save_hf
from jspec.models.fingerprint import fingerprint

ATTENTION = ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj")
MLP = ("mlp.gate_proj", "mlp.down_proj")
LENGTHS = tiny.LENGTHS


def saved(folder, seed, modules, rank, layers=(0, 1), **config):
    """An adapter, and what it adds to each weight of the base."""
    held = load_file(folder.parent / "base" / "model.safetensors")
    names = [f"model.layers.{layer}.{module}" for layer in layers for module in modules]
    shapes = {name: held[f"{name}.weight"].shape for name in names}
    return adapters.save(folder, shapes, seed, rank, **config)


def merged(folder, base, added):
    """A checkpoint of the base with an adapter in its weights."""
    held = load_file(base / "model.safetensors")
    folder.mkdir()
    save_file(
        {name: (w + added.get(name, 0)).astype(np.float32) for name, w in held.items()},
        folder / "model.safetensors", metadata={"format": "pt"},
    )  # fmt: skip
    (folder / "config.json").write_text((base / "config.json").read_text("utf-8"))
    return models.load(folder, dtype="float32", with_tokenizer=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("lora")
    model = tiny.model(num_layers=3)
    save_hf(model, tiny.params(model), root / "base", dtype=jnp.float32)
    one = saved(root / "one", 1, ATTENTION, 2)
    alphas = {"layers.2.mlp.down_proj": 2, "down_proj": 9, "k_proj": 4.5}
    two = saved(
        root / "two", 2, (*MLP, "self_attn.k_proj"), 3, layers=(1, 2), use_rslora=True,
        alpha_pattern=alphas,
    )  # fmt: skip
    for name, added in (("one", one), ("two", two)):
        merged(root / f"merged_{name}", root / "base", added)
    return root


def load(folder, name, **options):
    return models.load(folder / name, dtype="float32", with_tokenizer=False, **options)


@pytest.fixture(scope="module")
def alone(folder):
    """Base and merged models, in the order of the adapters' numbers."""
    return [load(folder, name) for name in ("base", "merged_one", "merged_two")]


@pytest.fixture(
    scope="module",
    params=[pytest.param(False, marks=pytest.mark.slow), True],
    ids=["layers", "scanned"],
)
def adapted(folder, request):
    both = {name: folder / name for name in ("one", "two")}
    return load(folder, "base", adapters=both, scan_layers=request.param)


def test_each_row_has_the_logits_of_its_merged_model(adapted, alone):
    tokens = np.random.default_rng(0).integers(0, tiny.VOCAB, (4, 9))
    ids = [2, 0, 1, 2]
    # By which drafters of the base are found for its adapters.
    assert fingerprint(adapted.params) == fingerprint(alone[0].params)
    params = adapted.model.choose(adapted.params, ids)
    found = tiny.forward(adapted.model, params, tokens).logits
    for row, number in enumerate(ids):
        own = alone[number]
        want = tiny.forward(own.model, own.params, tokens).logits
        np.testing.assert_allclose(found[row], want[row], atol=1e-4)
        other = alone[(number + 1) % 3]
        apart = tiny.forward(other.model, other.params, tokens).logits
        assert abs(found[row] - apart[row]).max() > 0.1, "another adapter says something else"


def test_requests_of_a_server_have_their_adapters_and_compile_nothing(adapted, alone):
    from jspec.request import Request
    from jspec.serve.device import EngineDevice
    from jspec.serve.jobs import PROMPT

    engine = jspec.Engine(adapted.model, num_slots=2, capacity=40)
    device = EngineDevice(engine, adapted.params, None, eos=(), rounds=4)

    def answers(numbers):
        for slot, number in enumerate(numbers):
            begun = device.read([5, 3], PROMPT, None, number)
            device.insert(slot, device.read([9, 1], Request(max_tokens=8), begun, number))
        written: list[list[int]] = [[], []]
        while min(map(len, written)) < 8:
            for own, delta in zip(written, device.deltas(device.step(False), [0, 1]), strict=True):
                own += delta.tokens
        return written

    wanted = [
        jspec.decode(one.model, one.params, [[5, 3, 9, 1]], max_new_tokens=8).tokens[0].tolist()
        for one in alone
    ]
    assert answers([1, 0]) == [wanted[1], wanted[0]]
    with jspec.no_recompile():
        assert answers([0, 2]) == [wanted[0], wanted[2]]


def test_names_and_numbers_of_adapters_are_checked(adapted):
    model, params = adapted.model, adapted.params
    for given, told in (
        (["three"], "adapters holds 'three'; pass None for none, or one of one, two"),
        ([3], r"adapters holds 3; pass 0 for none, or a number in 1 \.\. 2"),
        ([[1]], r"adapters holds \[1\]; pass None for none"),
        (np.ones((1, 1), int), r"adapters has shape \(1, 1\) and dtype int64; pass one per row"),
    ):
        with pytest.raises(jspec.InputError, match=told):
            model.choose(params, given)
    with pytest.raises(jspec.InputError, match="adapters were chosen for 2 rows and there are 3"):
        jspec.decode(model, model.choose(params, [1, 2]), tiny.PROMPTS, LENGTHS, max_new_tokens=2)


LAYER, BASE = "model.layers.0.", "was trained for another base"
Q = f"{LAYER}self_attn.q_proj"
WRONG = [
    (dict(use_dora=True), {}, "use_dora: DoRA's magnitudes, which jspec does not implement"),
    (dict(modules_to_save=["lm_head"]), {}, "modules_to_save: whole modules next to"),
    (dict(alpha_pattern={"(q": 3}), {}, r"\(\(q\)', which is not a regular expression"),
    (dict(alpha_pattern={"q_proj": "a"}), {}, "has q_proj = 'a'; it has to be above 0"),
    (dict(layer_replication=[[0, 2]]), {}, "layer_replication: layers that replace"),
    (dict(alora_invocation_tokens=[3]), {}, "alora_invocation_tokens: an adapter that a token"),
    (dict(target_parameters=["mlp.experts.gate_up_proj"]), {}, "target_parameters: adapters of"),
    (dict(init_lora_weights="pissa"), {}, "init_lora_weights = 'pissa', which changes the base"),
    (dict(bias="all"), {}, "bias = 'all'"),
    (dict(peft_type="IA3"), {}, "is a 'IA3' adapter; jspec implements LORA"),
    (dict(lora_alpha=0), {}, "lora_alpha = 0; it has to be above 0"),
    ({}, {"model.embed_tokens.lora_A": (2, 4)}, r"adapts 1 tensor \(base_model.model.model.em"),
    ({}, {"model.layers.9.self_attn.q_proj.lora_A": (2, 16)}, "for which this model has no"),
    ({}, {"lm_head.lora_A": (2, 16)}, r"adapts 1 tensor \(base_model.model.lm_head.lora_A.we"),
    ({}, {f"{LAYER}input_layernorm.lora_A": (2, 16)}, "for which this model has no"),
    ({}, {f"{LAYER}mlp.experts.0.w1.lora_A": (2, 16)}, "for which this model has no"),
    ({}, {f"{Q}.lora_magnitude_vector": (16,)}, "for which this"),
    *(({}, {f"{Q}.{half}": shape}, BASE) for half, shape in (
        ("lora_A", (2, 12)), ("lora_B", (12, 2)), ("lora_B", (16, 3)), ("lora_A", ()))),
    ({}, {f"{Q}.lora_A": (0, 16), f"{Q}.lora_B": (16, 0)}, BASE),
    ({}, {f"{LAYER}mlp.up_proj.lora_A": (2, 16)}, "lacks lora_B of model.layers.0.mlp"),
    ({}, {f"{Q}.lora_B": None}, "holds no numbers in model.layers"),
]  # fmt: skip
"""An adapter's config, its tensors, and the error about it."""


def test_an_adapter_of_another_base_is_refused(folder, tmp_path):
    one = load_file(folder / "one" / "adapter_model.safetensors")
    for config, change, told in WRONG:
        held = dict(one)
        for name, shape in change.items():
            full = f"base_model.model.{name}.weight"
            held[full] = held[full] * np.nan if shape is None else np.zeros(shape, np.float32)
        save_file(held, tmp_path / "adapter_model.safetensors")
        (tmp_path / "adapter_config.json").write_text(json.dumps(CONFIG | config))
        with pytest.raises(jspec.InputError, match=told):
            load(folder, "base", adapters={"other": tmp_path})


def test_an_adapter_of_experts_is_refused(tmp_path, fixtures):
    adapters.save(tmp_path / "one", {"model.layers.0.block_sparse_moe.experts.0.w1": (32, 16)})
    with pytest.raises(jspec.InputError, match=r"adapts 2 tensors .*for which this model has no"):
        load(fixtures, "mixtral", adapters={"one": tmp_path / "one"})


def test_a_folder_without_an_adapter_and_a_mesh_are_refused(folder, tmp_path):
    with pytest.raises(jspec.InputError, match=r"has no adapter_config.json; name a folder that"):
        load(folder, "base", adapters={"none": tmp_path})
    (tmp_path / "adapter_config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(jspec.InputError, match=r"has no adapter_model.safetensors; name a folder"):
        load(folder, "base", adapters={"none": tmp_path})
    whole = (folder / "one" / "adapter_model.safetensors").read_bytes()
    for size in (0, 7, 100, len(whole) - 1):
        (tmp_path / "adapter_model.safetensors").write_bytes(whole[:size])
        with pytest.raises(jspec.InputError, match=r"adapter_model\.safetensors"):
            load(folder, "base", adapters={"cut": tmp_path})
    mesh = models.sharding.mesh(1) if hasattr(models.sharding, "mesh") else object()
    with pytest.raises(jspec.InputError, match="adapters on a mesh are not implemented"):
        load(folder, "base", adapters={"one": folder / "one"}, mesh=mesh)


PEFT_SHAPE = dict(
    vocab_size=49, hidden_size=36, intermediate_size=64, num_hidden_layers=3,
    num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=64,
    tie_word_embeddings=True,
)  # fmt: skip
PEFT = {
    "one": dict(r=4, lora_alpha=12, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]),
    "two": dict(
        r=6, lora_alpha=9, target_modules=["v_proj", "gate_proj", "down_proj"], use_rslora=True,
        rank_pattern={"down_proj": 2}, layers_to_transform=[0, 2],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def by_peft(tmp_path_factory):
    """PEFT's model with both adapters, and the folder that it saved them and the base in."""
    torch = pytest.importorskip("torch", reason="needs torch, which the project does not require")
    peft = pytest.importorskip("peft", reason="needs peft, which the project does not require")
    from transformers import LlamaConfig, LlamaForCausalLM

    root = tmp_path_factory.mktemp("peft")
    torch.manual_seed(0)
    base = LlamaForCausalLM(LlamaConfig(**PEFT_SHAPE, initializer_range=0.2)).eval()
    base.save_pretrained(root / "base")
    one, *others = PEFT
    config = {name: peft.LoraConfig(task_type="CAUSAL_LM", **PEFT[name]) for name in PEFT}
    model = peft.get_peft_model(base, config[one], adapter_name=one)
    for name in others:
        model.add_adapter(name, config[name])
    for name, weight in model.named_parameters():
        if "lora_" in name:  # PEFT begins with B = 0
            torch.nn.init.normal_(weight, 0, 0.2)
    model.save_pretrained(root)
    return model.eval(), root


@pytest.mark.parametrize("scan_layers", [False, True], ids=["layers", "scanned"])
def test_logits_are_those_of_peft(by_peft, scan_layers):
    torch, (model, root) = pytest.importorskip("torch"), by_peft
    tokens = np.random.default_rng(0).integers(0, PEFT_SHAPE["vocab_size"], (3, 11))
    wanted = []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for row, name in enumerate((None, *PEFT)):
            ids = torch.tensor(tokens[row : row + 1])
            if name is None:
                with model.disable_adapter():
                    wanted.append(model(ids).logits[0].numpy())
            else:
                model.set_adapter(name)
                wanted.append(model(ids).logits[0].numpy())
    found = models.load(
        root / "base", dtype="float32", with_tokenizer=False, scan_layers=scan_layers,
        adapters={name: root / name for name in PEFT},
    )  # fmt: skip

    def logits(chosen):
        params = found.model.choose(found.params, chosen)
        return tiny.forward(found.model, params, tokens).logits

    np.testing.assert_allclose(logits([None, *PEFT]), wanted, atol=1e-4)
    # The adapters differ from each other and from the base by far more than that.
    others = np.asarray(logits([*PEFT, None]))
    assert (abs(others - np.stack(wanted)).max((1, 2)) > 0.1).all()
