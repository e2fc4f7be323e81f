"""`jspec train`: the commands. The work is in files of its own, so that `--help` needs no JAX."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

train_app = typer.Typer(help="Train models and draft heads.", no_args_is_help=True)


@train_app.command("lm")
def lm(
    out: Annotated[Path, typer.Option(help="Folder of the run: checkpoints, curve, model.")],
    text: Annotated[
        list[str] | None,
        typer.Argument(help="Text or JSON-lines files, or folders; CLASS=PATH names a class."),
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option(help="TOML file with the texts and settings of --model.")
    ] = None,
    data: Annotated[Path, typer.Option(help="Folder that the recipe's paths start from.")] = Path(),
    model: Annotated[str, typer.Option(help="Which of the recipe's models to train.")] = "",
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder with a tokenizer.json; else one is trained.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Continue the run that --out holds.")] = False,
    steps: Annotated[int | None, typer.Option(help="Updates in all.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Sequences per update.")] = None,
    sequence: Annotated[int | None, typer.Option(help="Tokens per sequence.")] = None,
    lr: Annotated[float | None, typer.Option(help="Highest learning rate.")] = None,
    warmup: Annotated[int | None, typer.Option(help="Updates until then.")] = None,
    cooldown: Annotated[
        float | None, typer.Option(help="Share of the run over which it falls again.")
    ] = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Updates per checkpoint.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the weights and the data order.")] = None,
    heldout: Annotated[
        float | None, typer.Option(help="Share of each class that is only evaluated on.")
    ] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Of the tokenizer to train.")] = None,
    hidden_size: Annotated[int | None, typer.Option(help="Width.")] = None,
    intermediate_size: Annotated[int | None, typer.Option(help="Width inside the MLP.")] = None,
    layers: Annotated[int | None, typer.Option(help="Depth.")] = None,
    heads: Annotated[int | None, typer.Option(help="Query heads.")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="Key-value heads.")] = None,
    head_dim: Annotated[int | None, typer.Option(help="Size of a head.")] = None,
    context: Annotated[int | None, typer.Option(help="Most positions the model may see.")] = None,
) -> None:
    """Train a Llama-style language model from text, and save it in Hugging Face layout."""
    changes = {
        "steps": steps,
        "batch_size": batch_size,
        "sequence": sequence,
        "learning_rate": lr,
        "warmup": warmup,
        "cooldown": cooldown,
        "checkpoint_every": checkpoint_every,
        "seed": seed,
        "heldout": heldout,
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "context": context,
    }
    from jspec.app import train_lm

    with _told("lm"):
        job = train_lm.job(
            text or [], recipe, data, model, {k: v for k, v in changes.items() if v is not None}
        )
        train_lm.run(job, out, tokenizer, resume)


@train_app.command("data")
def data(
    out: Annotated[Path, typer.Option(help="JSON-lines file; rows that it holds are kept.")],
    text: Annotated[
        list[str] | None,
        typer.Argument(help="Text or JSON-lines files, or folders; CLASS=PATH names a class."),
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option(help="TOML file with the texts and their weights.")
    ] = None,
    folder: Annotated[
        Path, typer.Option("--data", help="Folder that the recipe's paths start from.")
    ] = Path(),
    model: Annotated[
        str | None, typer.Option(help="Folder or hub id.", show_default="the bundled model")
    ] = None,
    count: Annotated[int, typer.Option(help="Rows in all.")] = 1000,
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens after a prompt.")] = 192,
    shortest: Annotated[int, typer.Option(help="Least tokens of a prompt.")] = 8,
    longest: Annotated[int, typer.Option(help="Most tokens of a prompt.")] = 64,
    temperature: Annotated[
        str, typer.Option(help="Temperatures with their shares of the rows.")
    ] = "0:0.6,0.7:0.2,1:0.2",
    batch_size: Annotated[int, typer.Option(help="Rows that are decoded together.")] = 32,
    seed: Annotated[int, typer.Option(help="Of the prompts and of the sampling.")] = 0,
) -> None:
    """Let a model continue the beginnings of texts, to train its draft heads on what it writes.

    A run that ended early goes on when the same command is given again.
    """
    from jspec.app import train_data
    from jspec.training import distill

    with _told("data"):
        job = train_data.texts(text or [], recipe, folder)
        kinds = train_data.temperatures(temperature)
        rows = distill.Recipe(max_new_tokens, shortest, longest, kinds, seed)
        train_data.run(job, model, out, rows, count, batch_size)


@contextmanager
def _told(command: str) -> Iterator[None]:
    """Says in one sentence what was wrong with the input, or why a run stopped."""
    try:
        yield
    except (ValueError, OSError) as error:
        typer.echo(f"jspec train {command}: {error}", err=True)
        raise typer.Exit(2) from None
    except RuntimeError as error:  # TrainingError, CheckpointError and others of a run that stopped
        typer.echo(f"jspec train {command}: {error}", err=True)
        raise typer.Exit(1) from None
