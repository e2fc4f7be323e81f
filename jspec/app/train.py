"""`jspec train`: the commands. The work is in files of its own, so that `--help` needs no JAX."""

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

    try:
        job = train_lm.job(
            text or [], recipe, data, model, {k: v for k, v in changes.items() if v is not None}
        )
        train_lm.run(job, out, tokenizer, resume)
    except (ValueError, OSError) as error:
        typer.echo(f"jspec train lm: {error}", err=True)
        raise typer.Exit(2) from None
    except RuntimeError as error:  # TrainingError and CheckpointError: a run that stopped
        typer.echo(f"jspec train lm: {error}", err=True)
        raise typer.Exit(1) from None
