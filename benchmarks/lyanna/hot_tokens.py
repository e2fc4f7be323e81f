"""Lyanna (Chen et al. 2026), Fig. 7: the share of a text that is its most frequent tokens.

python -m benchmarks.lyanna.hot_tokens                        # the bundled model, shared texts
python -m benchmarks.lyanna.hot_tokens --model DIR TEXT...    # files of one's own
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from jaxtyping import Int
from rich import box
from rich.table import Table

from benchmarks import options
from benchmarks.harness import SHARED, command, console, headline
from jspec.methods import BUNDLED
from jspec.models import Loaded, load

SHARES = (0.0625, 0.125, 0.25, 0.5, 0.75, 1.0)
"""Of the vocabulary, the most frequent tokens first."""
PAPER = {0.25: "94.34%"}
"""LLaMA-2-7B's tokens in a corpus of a billion."""
TEXTS = (
    "tinystories/stories.txt", "books/sherlock_holmes.txt", "speeches/inaugural.txt",
    "wikitext2/valid.txt",
)  # fmt: skip


def main(
    texts: Annotated[
        list[Path] | None, typer.Argument(help="files of text", show_default="shared ones")
    ] = None,
    model: options.Model = None,
) -> None:
    """Counts tokens; nothing is decoded."""
    files = texts or [SHARED / "data" / name for name in TEXTS]
    target = load(model or BUNDLED)
    headline(f"hot tokens: {model or BUNDLED}, {len(files)} files")
    counted = counts(target, [file.read_text("utf-8", errors="replace") for file in files])
    covered = np.cumsum(np.sort(counted)[::-1]) / counted.sum()
    shown = Table("of the vocabulary", "tokens", "of the text", "the paper", box=box.MARKDOWN)
    for share in SHARES:
        number = max(1, round(share * len(counted)))
        cells = f"{share:.2%}", f"{number:,}", f"{covered[number - 1]:.2%}"
        shown.add_row(*cells, PAPER.get(share, ""))
    console.print(shown)
    console.print(f"{counted.sum():,} tokens of text, {(counted > 0).sum():,} different ones.")


def counts(target: Loaded, texts: Sequence[str]) -> Int[np.ndarray, " V"]:
    """Returns how often each token of the vocabulary occurs."""
    encoded = [target.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    return np.bincount(np.concatenate(encoded), minlength=target.model.vocab_size)


if __name__ == "__main__":
    command(main)
