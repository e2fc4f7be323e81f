"""Block heads of random weights, and the same as the oracle reads them."""

import jax
import numpy as np
import tiny


def variables(head):
    """Random weights of a head for `tiny.model`, vectors too, alongside what it borrows of that."""
    target = tiny.params(tiny.model())["params"]
    made = tiny._drawn(head, 0, 12.0, head.features)
    own = jax.tree_util.tree_map_with_path(
        # Norms, biases and the trained vector are constant in `tiny`: here they count too.
        lambda path, leaf: (
            leaf
            if leaf.ndim > 1
            else leaf + 0.3 * np.random.default_rng(len(str(path))).normal(size=leaf.shape)
        ),
        made["params"],
    )
    return {"params": own, "target": {name: target[name] for name in ("embed", "head")}}


def plain_layers(config, own):
    """The decoder layers of a module's weights as the oracles read them."""
    size, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layers = []
    for number in range(config.num_layers):
        layer = own[f"layers_{number}"]
        q, k, v = np.split(layer["qkv"]["weight"], [size, size + kv])
        gate, up = np.split(layer["gate_up"]["weight"], 2)
        norms = {name: layer[name]["scale"] for name in layer if name.endswith("norm")}
        rest = dict(o=layer["output"]["weight"], down=layer["down"]["weight"])
        layers.append(dict(q=q, k=k, v=v, gate=gate, up=up, **rest, **norms))
    return layers


def plain_arrays(head, held):
    """The head as the oracle reads it: float64, torch's order."""
    config, own = head.config, jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), held)
    table, own = own["target"], own["params"]
    known = dict(
        fc=own["fuse"]["weight"],
        state_norm=own["state_norm"]["scale"],
        norm=own["norm"]["scale"],
        layers=plain_layers(config, own),
        mask=own["mask"] if config.mask_token < 0 else table["embed"][config.mask_token],
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        theta=config.rope_theta,
        eps=config.norm_eps,
        block=config.block_size,
        skipped=config.first_slot,
        causal=config.causal,
    )
    if config.markov_rank:
        known |= dict(first=own["markov_from"], second=own["markov_to"])
        certainty = own["certainty"]
        known |= dict(confidence=certainty["weight"][0], offset=certainty["bias"][0])
    return known, table
