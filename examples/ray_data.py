"""A file of prompts, decoded by replicas on Ray Data; a run that was killed goes on where it was.

python examples/ray_data.py                               # some prompts of its own
python examples/ray_data.py prompts.jsonl texts --replicas 8 --gpus 1

A line of the file is {"id": 7, "prompt": "..."}, and the folder gets {"id", "prompt", "text"} of
each. The noise of a row comes from its id, so that its text does not depend on the number of
replicas or on how often the run was started. Ray Data writes down which rows are in the folder.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

try:
    import ray
    from ray.data.checkpoint import CheckpointConfig
except ImportError as error:
    sys.exit(f"this example needs Ray ({error}); pip install 'jspec-jax[ray]'")

BATCH, TOKENS = 8, 48


class Decoder:
    """One replica: a model on its own device, and the text that its drafter has seen there."""

    def __init__(self, model: str, method: str, seed: int):
        import jspec
        from jspec import models
        from jspec.sessions import compilation

        compilation.keep_on_disk()
        self.target, self.seed, self.memory = models.load(model), seed, None
        self.built = jspec.methods.build(method, self.target)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        import numpy as np

        import jspec

        encoded = self.target.tokenizer.encode_batch(batch["prompt"].tolist())
        rows = [one.ids for one in encoded]
        # A short batch is filled up with rows that write nothing: all batches are one program.
        filled = rows + [rows[0]] * (BATCH - len(rows))
        prompt = np.zeros((BATCH, max(map(len, filled))), np.int32)
        for row, ids in enumerate(filled):
            prompt[row, : len(ids)] = ids
        result = jspec.decode(
            self.built.model, self.target.params, prompt, np.array([len(ids) for ids in filled]),
            drafter=self.built.drafter, drafter_params=self.built.drafter_params,
            drafter_state=self.memory, eos=self.target.eos, max_new_tokens=TOKENS,
            limits=np.where(np.arange(BATCH) < len(rows), TOKENS, 0),
            sampling=jspec.Sampling(temperature=0.8), key=self.seed,
            ids=np.resize(batch["id"], BATCH),
        )  # fmt: skip
        self.memory = result.drafter_state
        texts = [
            self.target.tokenizer.decode(tokens[:length].tolist())
            for tokens, length in zip(np.asarray(result.tokens), result.lengths, strict=True)
        ]
        return {"id": batch["id"], "prompt": batch["prompt"], "text": texts[: len(rows)]}


def run(file: Path, folder: Path, given: argparse.Namespace) -> None:
    """Decodes the rows of a file that are not in the folder yet."""
    ray.data.DataContext.get_current().checkpoint_config = CheckpointConfig(
        "id", str(folder / "written"), delete_checkpoint_on_success=False
    )
    (
        ray.data.read_json(str(file))
        .repartition(target_num_rows_per_block=BATCH)  # so many rows are lost at most
        .map_batches(
            Decoder,
            fn_constructor_args=(given.model, given.method, given.seed),
            batch_size=BATCH,
            concurrency=given.replicas,
            num_gpus=given.gpus,
        )
        .write_json(str(folder / "rows"))
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path, nargs="?", help="JSON Lines")
    parser.add_argument("folder", type=Path, nargs="?", help="on a disk that all nodes have")
    parser.add_argument("--model", default="jspec-800k")
    parser.add_argument("--method", default="suffix")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--gpus", type=float, default=0, help="of a replica")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    # On a machine alone, reading and writing have their turn however few cores it has.
    cores = None if "RAY_ADDRESS" in os.environ else given.replicas + 4
    ray.init(num_cpus=cores, include_dashboard=False)
    with tempfile.TemporaryDirectory() as own:
        file, folder = given.file, given.folder or Path(own) / "texts"
        if file is None:
            file = Path(own) / "prompts.jsonl"
            begins = ["Once upon a time", "The little dog", "Tom had", "One day"] * 5
            rows = [{"id": row, "prompt": begin} for row, begin in enumerate(begins)]
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        run(file, folder.absolute(), given)
        written = sorted((folder / "rows").glob("*.json"))
        lines = [json.loads(line) for part in written for line in part.open()]
        print(f"{len(lines)} rows in {folder}")
        for line in sorted(lines, key=lambda line: line["id"])[:4]:
            print(f"{line['id']}: {line['prompt']!r}: {line['text']!r}")


if __name__ == "__main__":
    main()
