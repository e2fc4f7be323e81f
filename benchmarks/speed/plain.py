"""Plain decoding against `transformers.generate` on the same weights, and memory speed.

python -m benchmarks.speed.plain            # needs the parity extra: torch
"""

import tempfile
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.table import Table

import jspec
from benchmarks.harness import command, console, headline, paired, read_bandwidth, record
from jspec.models import Llama, LlamaConfig
from jspec.models.export import save_hf

SIZES = {
    "8M": LlamaConfig(4096, 256, 688, 8, 8, 8, 32, 1024, tied=True),
    "25M": LlamaConfig(8192, 512, 1376, 6, 8, 8, 64, 1024, tied=True),
    "110M": LlamaConfig(32000, 768, 2048, 12, 12, 12, 64, 1024, tied=True),
}


def main(
    sizes: Annotated[str, typer.Option(help="comma-separated, of 8M, 25M, 110M")] = "8M,110M",
    new_tokens: Annotated[int, typer.Option(min=1)] = 128,
    prompt_tokens: Annotated[int, typer.Option(min=1)] = 64,
    repeats: Annotated[int, typer.Option(min=1)] = 7,
    out: Annotated[Path | None, typer.Option(help="append JSON lines here")] = None,
) -> None:
    """Decodes greedily at batch 1 in float32, with random weights and no end token."""
    import torch
    from transformers import AutoModelForCausalLM

    headline("plain decoding, float32, batch 1: tokens per second (median)")
    table = Table(
        "model",
        "parameters",
        "jspec",
        "transformers",
        "ratio",
        "weights read once",
        "of that floor",
    )
    for name in sizes.split(","):
        model = Llama(SIZES[name])
        tokens = jnp.zeros((1, 2), jnp.int32)
        params = jax.jit(model.init)(
            jax.random.key(0), tokens, tokens, jnp.ones((1, 2, 2), bool), None
        )
        # Larger weights make a chain of distinct tokens and leave the work as it is.
        params = jax.tree.map(lambda leaf: leaf * 3 if leaf.ndim > 1 else leaf, params)
        with tempfile.TemporaryDirectory() as folder:
            save_hf(model, params, folder, dtype=jnp.float32)
            reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        prompt = np.random.default_rng(0).integers(3, 4096, (1, prompt_tokens))
        asked = torch.from_numpy(prompt)

        def ours(model=model, params=params, prompt=prompt):
            return jspec.decode(model, params, prompt, max_new_tokens=new_tokens).tokens

        def theirs(reference=reference, asked=asked):
            with torch.inference_mode():
                return reference.generate(
                    asked,
                    attention_mask=torch.ones_like(asked),
                    max_new_tokens=new_tokens,
                    min_new_tokens=new_tokens,
                    do_sample=False,
                    pad_token_id=0,
                )

        seconds = paired({"jspec": ours, "transformers": theirs}, repeats)
        floor = read_bandwidth(params)
        speed = {key: new_tokens / float(np.median(value)) for key, value in seconds.items()}
        ratio = float(np.median(seconds["transformers"] / seconds["jspec"]))
        size = sum(leaf.size for leaf in jax.tree.leaves(params))
        table.add_row(
            name,
            f"{size / 1e6:.1f}M",
            f"{speed['jspec']:.0f}",
            f"{speed['transformers']:.0f}",
            f"{ratio:.2f}x",
            f"{1e3 * floor:.2f} ms",
            f"{floor * speed['jspec']:.0%}",
        )
        record(
            out,
            {"bench": "plain", "model": name, "parameters": size, "floor_seconds": floor}
            | {f"{key}_seconds": value.tolist() for key, value in seconds.items()},
        )
    console.print(table)


if __name__ == "__main__":
    command(main)
