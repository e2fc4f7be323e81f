"""The target of the small published heads, their files, and what is checked of each of them."""

import dataclasses
import json
import zipfile

import jax
import numpy as np
import tiny
from safetensors.numpy import save_file

import jspec
import jspec.models
from jspec.models import heads
from jspec.models.huggingface.pickles import DTYPES

LAYERS, E = 6, 16
MODEL = tiny.model(num_layers=LAYERS)
TARGET = jspec.models.Loaded(MODEL, tiny.params(MODEL), None, (), None)
EMBED, HEAD = (np.array(TARGET.params["params"][name]) for name in ("embed", "head"))
SHAPE = dict(
    vocab_size=tiny.VOCAB, hidden_size=MODEL.config.hidden_size, intermediate_size=24,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5,
    rope_theta=5000.0,
)  # fmt: skip
"""Of a head's layers."""
LLAMA = dict(architectures=["LlamaForCausalLM"], model_type="llama", num_hidden_layers=1) | SHAPE
IDS = [0, 2, 3, 7, 8, 11, 15, 20, 22]
"""The tokens that a head scores, if these are not all."""


def normal(*shape, seed=0, scale=0.3):
    return (scale * np.random.default_rng([seed, *shape]).normal(size=shape)).astype(np.float32)


def without(held, *names):
    return {name: value for name, value in held.items() if name not in names}


def layer_tensors(inputs, norms):
    sizes = {"q": E, "k": E // 2, "v": E // 2}
    attention = {f"self_attn.{part}_proj.weight": normal(out, inputs, seed=1 + number)
                 for number, (part, out) in enumerate(sizes.items())}  # fmt: skip
    mlp = {"gate": normal(24, E, seed=4), "up": normal(24, E, seed=5), "down": normal(E, 24)}
    rest = {"self_attn.o_proj.weight": normal(E, E)}
    rest |= {f"mlp.{part}_proj.weight": matrix for part, matrix in mlp.items()}
    rest |= {f"{name}.weight": 1 + normal(E, seed=6 + n) for n, name in enumerate(norms)}
    return {f"layers.0.{name}": matrix for name, matrix in (attention | rest).items()}


def eagle_tensors(bias=True):
    tensors = {"fc.weight": normal(E, 2 * E), **layer_tensors(E, ["post_attention_layernorm"])}
    return tensors | ({"fc.bias": normal(E, seed=9)} if bias else {})


def write(folder, tensors, config, file="model.safetensors"):
    """The folder of a head in the layout in which it is published."""
    folder.mkdir(exist_ok=True)
    if file.endswith(".safetensors"):
        save_file({n: np.ascontiguousarray(x) for n, x in tensors.items()}, folder / file)
    else:
        save_pickle(folder / file, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def text(word):
    return b"X" + len(word).to_bytes(4, "little") + word.encode()


def numbers(each):
    return b"(" + b"".join(b"J" + int(n).to_bytes(4, "little") for n in each) + b"t"


def save_pickle(file, tensors):
    """Writes what torch.save writes, without torch: each tensor is a call of its functions."""
    said = b"\x80\x02}"
    with zipfile.ZipFile(file, "w") as archive:
        for key, (name, array) in enumerate(tensors.items()):
            kind = next(kind for kind, dtype in DTYPES.items() if array.dtype == dtype)
            steps = np.array(array.strides) // array.itemsize
            said += text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n("
            said += b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(str(key))
            said += text("cpu") + b"J" + array.size.to_bytes(4, "little") + b"tQK\x00"
            said += numbers(array.shape) + numbers(steps)
            said += b"\x89ccollections\nOrderedDict\n)RtRs"
            archive.writestr(f"a/data/{key}", array.tobytes())
        archive.writestr("a/data.pkl", said + b".")


def norm(x, weight):
    return weight * x / np.sqrt(np.square(x).mean(-1, keepdims=True) + SHAPE["rms_norm_eps"])


def other(**shape):
    """Another target, of this shape where it differs."""
    model = tiny.model(**{"num_layers": LAYERS, **shape})
    return dataclasses.replace(TARGET, model=model, params=tiny.params(model, seed=5))


def check_saving(folder, head, variables, target=TARGET):
    """Checks that a head is the same when it is read in jspec's own format."""
    heads.save(folder, head, variables, target, {"from": "elsewhere"})
    again, held, _ = heads.load(folder, target)
    assert again == head
    jax.tree.map(np.testing.assert_array_equal, held, variables)
