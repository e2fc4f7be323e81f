"""The commands of `jspec train`, which import JAX only to run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from jspec._validate.errors import InputError
from jspec.cli import train_settings
from jspec.cli.train_settings import takes

train_app = typer.Typer(help="Train draft models and heads.", no_args_is_help=True)

DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data", help="Folder that paths in the recipe are relative to.", show_default="."
    ),
]
Text = Annotated[
    list[str] | None,
    typer.Argument(
        help="Text or JSON-lines files, or folders of them; CLASS=PATH names the class of a text. "
        "Output of `jspec train data` is recognized."
    ),
]
Recipe = Annotated[
    Path | None,
    typer.Option(help="TOML file with settings; its texts are used if none are given."),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Continue the run in --out; settings that are not given again stay.",
    ),
]
_MORE = "Options override the recipe's settings, and these override the defaults."


@train_app.command("draft", epilog=_MORE)
@takes(train_settings.DRAFT)
def draft(
    out: Annotated[
        Path, typer.Option(help="Folder for checkpoints, learning curve and trained model.")
    ],
    changes: Mapping[str, Any],
    text: Text = None,
    recipe: Recipe = None,
    data: DataFolder = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="The model that it drafts for: bundled name, smollm2-135m, folder or hub id.",
            show_default="required",
        ),
    ] = None,
    states: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps the target's distributions for further epochs."),
    ] = None,
    resume: Resume = False,
) -> None:
    """Train a draft model: some layers of a target, which learn its distributions.

    It has the target's tokenizer and is saved in Hugging Face layout.
    """
    from jspec.cli import train_draft, train_resume

    paths = {"recipe": recipe, "data": data, "states": states}
    names = {"target": target and train_resume.absolute(target)}
    train_draft.run(
        train_resume.resume_arguments(out, resume, text, paths, names, changes), out, resume
    )


@train_app.command("head", epilog=_MORE)
@takes(train_settings.union(train_settings.HEADS))
def head(
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for checkpoints, learning curve and trained head; with ngrams, a file."
        ),
    ],
    changes: Mapping[str, Any],
    kind: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(train_settings.HEADS)}.")
    ] = None,
    text: Text = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="The target: bundled name, smollm2-135m, folder, GGUF file or hub id.",
            show_default="the bundled model",
        ),
    ] = None,
    recipe: Recipe = None,
    data: DataFolder = None,
    resume: Resume = False,
    states: Annotated[
        Path | None,
        typer.Option(
            help="Folder that keeps the target's outputs on the text (hidden states, likeliest "
            "tokens), which are otherwise computed again in every step."
        ),
    ] = None,
    states_dtype: Annotated[
        str | None, typer.Option(help="Dtype of the stored states.", show_default="bfloat16")
    ] = None,
    begin_with: Annotated[
        str | None,
        typer.Option(
            help="Trained head to start from: a bundled name or a folder.",
            show_default="random weights",
        ),
    ] = None,
) -> None:
    """Train a draft head for a model, or the table of n-grams that `auto` begins with.

    eagle: a layer that predicts the next hidden state from a state and a token. lyanna: a layer
    that predicts a chain of states, with scores corrected by the token before. medusa: heads that
    each predict the token at one distance. ngrams: what the model expects after two tokens. Text
    that the model itself generated works best.
    """
    from jspec.cli import train_heads, train_ngrams, train_resume

    paths = {"recipe": recipe, "data": data, "states": states}
    names = {"kind": kind, "states_dtype": states_dtype}
    arguments = {
        **names,
        "model": model and train_resume.absolute(model),
        "begin_with": begin_with and train_resume.absolute(begin_with),
    }
    request = train_resume.resume_arguments(out, resume, text, paths, arguments, changes)
    kind_name = request["kind"]
    if kind_name not in train_settings.HEADS:
        kinds = ", ".join(train_settings.HEADS)
        raise InputError(f"--kind is {kind_name!r}; use one of {kinds}" if kind_name else
                         f"no --kind was given; use one of {kinds}")  # fmt: skip
    options = {option.name: option for option in train_settings.HEADS[kind_name]}
    flags = {
        setting.name: setting.argument for setting in train_settings.union(train_settings.HEADS)
    }
    foreign = [flags[name] for name in request["changes"] if name not in options]
    if kind_name == "ngrams":
        of_heads = {"begin_with": request["begin_with"], "states_dtype": request["states_dtype"]}
        foreign += [name for name, value in {**of_heads, "resume": resume or None}.items() if value]
    if foreign:
        option = foreign[0].replace("_", "-")
        raise InputError(f"--{option} does not apply to --kind {kind_name}; leave it out")
    (train_ngrams if kind_name == "ngrams" else train_heads).run(request, out, resume)


@train_app.command("data")
def data(
    out: Annotated[Path, typer.Option(help="JSON-lines file to write; its rows are kept.")],
    text: Text = None,
    recipe: Recipe = None,
    folder: DataFolder = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="The model that writes: folder or hub id.", show_default="the bundled model"
        ),
    ] = None,
    count: Annotated[int, typer.Option(help="Total number of rows.")] = 1000,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum length of an output.")] = 192,
    shortest: Annotated[int, typer.Option(help="Minimum number of tokens of a prompt.")] = 8,
    longest: Annotated[
        int | None,
        typer.Option(help="Maximum length of a prompt.", show_default="64, or 256 with --chat"),
    ] = None,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat",
            help="Ask the JSON rows as questions (messages, instruction, question, prompt or "
            "text), in the model's chat template.",
        ),
    ] = False,
    temperature: Annotated[
        str, typer.Option(help="Temperatures, each with its share of the rows.")
    ] = "0:0.6,0.7:0.2,1:0.2",
    batch_size: Annotated[int, typer.Option(help="Rows decoded together.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of the prompts and of the sampling.")] = 0,
) -> None:
    """Let a model continue texts, to train its draft heads on its own output.

    The same command, given again, continues a run that ended early.
    """
    from jspec.cli import train_data, train_texts
    from jspec.training import distill

    if text and recipe:
        raise InputError(f"{text[0]} was given with a recipe, which names its own texts")
    texts = train_texts.find_texts(text or [], recipe, folder or Path())
    kinds = train_data.temperatures(temperature)
    prompts = train_data.ASKED if chat else train_data.CONTINUED
    max_prompt = (256 if chat else 64) if longest is None else longest
    rows = distill.RowsRecipe(max_new_tokens, shortest, max_prompt, kinds, seed)
    train_data.run(texts, model, out, rows, count, batch_size, prompts)
