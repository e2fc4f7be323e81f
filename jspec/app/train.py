"""`jspec train`: the commands. The work is in files of its own, so that `--help` needs no JAX."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

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


Texts = Annotated[
    list[str] | None,
    typer.Argument(
        help="Files of `jspec train data`, text files or folders; CLASS=PATH names one."
    ),
]
Out = Annotated[Path, typer.Option(help="Folder of the run: checkpoints, curve, head.")]
Target = Annotated[
    str | None,
    typer.Option(help="The target: folder or hub id.", show_default="the bundled model"),
]
TargetRecipe = Annotated[
    Path | None, typer.Option(help="TOML file with [heads.NAME] settings, and texts if none given.")
]
Folder = Annotated[Path, typer.Option("--data", help="Folder that the recipe's paths start from.")]
Resume = Annotated[bool, typer.Option(help="Continue the run that --out holds.")]
StatesFolder = Annotated[
    Path | None,
    typer.Option(help="Keep the target's states there instead of computing them at each step."),
]
StatesType = Annotated[str, typer.Option(help="That states are kept in.")]
Steps = Annotated[int | None, typer.Option(help="Updates in all.")]
BatchSize = Annotated[int | None, typer.Option(help="Sequences per update.")]
Sequence = Annotated[int | None, typer.Option(help="Tokens per sequence.")]
Rate = Annotated[float | None, typer.Option(help="Highest learning rate.")]
Warmup = Annotated[int | None, typer.Option(help="Updates until then.")]
Cooldown = Annotated[float | None, typer.Option(help="Share of the run over which it falls again.")]
Every = Annotated[int | None, typer.Option(help="Updates per checkpoint.")]
Decay = Annotated[float | None, typer.Option(help="Of the weights, as AdamW has it.")]
Seed = Annotated[int | None, typer.Option(help="Of the weights and the data order.")]
Heldout = Annotated[float | None, typer.Option(help="Share of the text that is only scored.")]
Unroll = Annotated[int | None, typer.Option(help="Draft steps on the head's own states.")]
StateLoss = Annotated[str | None, typer.Option(help="Of the states: squared or smooth.")]
StateWeight = Annotated[float | None, typer.Option(help="Of that loss.")]
TokenWeight = Annotated[float | None, typer.Option(help="Of the cross-entropy of the tokens.")]
StepDecay = Annotated[float | None, typer.Option(help="Weight of a draft step to the one before.")]


@train_app.command("eagle")
def eagle(
    out: Out,
    text: Texts = None,
    model: Target = None,
    recipe: TargetRecipe = None,
    folder: Folder = Path(),
    resume: Resume = False,
    states: StatesFolder = None,
    states_dtype: StatesType = "bfloat16",
    steps: Steps = None,
    batch_size: BatchSize = None,
    sequence: Sequence = None,
    lr: Rate = None,
    warmup: Warmup = None,
    cooldown: Cooldown = None,
    checkpoint_every: Every = None,
    weight_decay: Decay = None,
    seed: Seed = None,
    heldout: Heldout = None,
    unroll: Unroll = None,
    state_loss: StateLoss = None,
    state_weight: StateWeight = None,
    token_weight: TokenWeight = None,
    decay: StepDecay = None,
) -> None:
    """Train EAGLE's draft head: one layer from state and token to the next state."""
    _train_head("eagle", locals())


@train_app.command("lyanna")
def lyanna(
    out: Out,
    text: Texts = None,
    model: Target = None,
    recipe: TargetRecipe = None,
    folder: Folder = Path(),
    resume: Resume = False,
    states: StatesFolder = None,
    states_dtype: StatesType = "bfloat16",
    steps: Steps = None,
    batch_size: BatchSize = None,
    sequence: Sequence = None,
    lr: Rate = None,
    warmup: Warmup = None,
    cooldown: Cooldown = None,
    checkpoint_every: Every = None,
    weight_decay: Decay = None,
    seed: Seed = None,
    heldout: Heldout = None,
    unroll: Unroll = None,
    state_loss: StateLoss = None,
    state_weight: StateWeight = None,
    token_weight: TokenWeight = None,
    decay: StepDecay = None,
    rank: Annotated[
        int | None, typer.Option(help="Width of the token info; 0 leaves it out.")
    ] = None,
    hot_tokens: Annotated[
        int | None, typer.Option(help="Most frequent tokens that have token info; 0 is all.")
    ] = None,
    first_token: Annotated[
        bool | None, typer.Option(help="Whether the first draft step is told the token.")
    ] = None,
) -> None:
    """Train Lyanna's draft head: a chain of states, and token info on the scores."""
    _train_head("lyanna", locals())


@train_app.command("medusa")
def medusa(
    out: Out,
    text: Texts = None,
    model: Target = None,
    recipe: TargetRecipe = None,
    folder: Folder = Path(),
    resume: Resume = False,
    states: StatesFolder = None,
    states_dtype: StatesType = "bfloat16",
    steps: Steps = None,
    batch_size: BatchSize = None,
    sequence: Sequence = None,
    lr: Rate = None,
    warmup: Warmup = None,
    cooldown: Cooldown = None,
    checkpoint_every: Every = None,
    weight_decay: Decay = None,
    seed: Seed = None,
    heldout: Heldout = None,
    decay: Annotated[float | None, typer.Option(help="Weight of a head to the one before.")] = None,
    heads: Annotated[int | None, typer.Option(help="How many; each drafts one place.")] = None,
    layers: Annotated[int | None, typer.Option(help="Residual blocks of a head.")] = None,
) -> None:
    """Train Medusa's heads: from one state, the token at each of several places."""
    _train_head("medusa", locals())


_NAMES = {"lr": "learning_rate", "heads": "num_heads", "layers": "num_layers"}
_PLACES = ("out", "text", "model", "recipe", "folder", "resume", "states", "states_dtype")


def _train_head(kind: str, given: dict[str, Any]) -> None:
    """Runs the command of a kind; what is no place is one of the job's settings."""
    from jspec.app import train_heads

    places = {name: given.pop(name) for name in _PLACES}
    changes = {_NAMES.get(k, k): value for k, value in given.items() if value is not None}
    with _told(kind):
        job = train_heads.job(kind, places["recipe"], changes)
        run = train_heads.prepare(
            kind,
            job,
            places["model"],
            arguments=places["text"] or [],
            recipe=places["recipe"],
            data=places["folder"],
        )
        train_heads.train(
            run, places["out"], places["resume"], places["states"], places["states_dtype"]
        )


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
