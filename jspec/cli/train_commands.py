"""The commands of `jspec train`. The work is in files of its own, so that `--help` needs no JAX."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from jspec._validate.errors import InputError
from jspec.cli import train_settings
from jspec.cli.train_settings import JobOption, takes

train_app = typer.Typer(help="Train models and draft heads.", no_args_is_help=True)

DataFolder = Annotated[
    Path | None,
    typer.Option(help="Folder that the recipe's paths start from.", show_default="."),
]
Written = Annotated[
    list[str] | None,
    typer.Argument(
        help="Files of `jspec train data`, text files or folders; CLASS=PATH names one."
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        help="The target: bundled name, smollm2-135m, folder, GGUF file or hub id.",
        show_default="the bundled model",
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Continue the run that --out holds, with its own settings where none is given again.",
    ),
]


def _asked(
    out: Path,
    resume: bool,
    text: list[str] | None,
    paths: Mapping[str, Path | None],
    others: Mapping[str, str | None],
    changes: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Path]]:
    """The arguments of a run as it keeps them, and those that are paths and were given.

    They are kept so that they hold in any folder.
    """
    from jspec.cli import train_resume

    named = {name: path and str(path.absolute()) for name, path in paths.items()}
    given: dict[str, Any] = {**named, **others}
    given["text"] = [train_resume.absolute(part) for part in text] if text else None
    asked = train_resume.asked(out, resume, {**given, "changes": dict(changes)})
    return asked, {name: Path(asked[name]) for name in paths if asked[name] is not None}


@train_app.command("lm")
@takes(*train_settings.LM)
def lm(
    out: Annotated[Path, typer.Option(help="Folder of the run: checkpoints, curve, model.")],
    changes: Mapping[str, Any],
    text: Annotated[
        list[str] | None,
        typer.Argument(help="Text or JSON-lines files, or folders; CLASS=PATH names a class."),
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option(help="TOML file with the texts and settings of --model.")
    ] = None,
    data: DataFolder = None,
    model: Annotated[str | None, typer.Option(help="The recipe's model to train.")] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder with a tokenizer.json; else one is trained.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Make a draft model for this one: learn its distributions of the next token, in "
            "its tokens. Texts may be files of `jspec train data`.",
            show_default="learn the text alone",
        ),
    ] = None,
    states: Annotated[
        Path | None,
        typer.Option(help="With --target: keep its distributions there, for further steps."),
    ] = None,
    resume: Resume = False,
) -> None:
    """Train a Llama-style language model from text, and save it in Hugging Face layout.

    A recipe's setting comes before a default, and an option before both.
    """
    from jspec.cli import train_draft, train_lm, train_resume

    paths = {"recipe": recipe, "data": data, "tokenizer": tokenizer, "states": states}
    others = {"model": model, "target": target and train_resume.absolute(target)}
    asked, folders = _asked(out, resume, text, paths, others, changes)
    job = train_lm.job(
        asked["text"] or [],
        folders.get("recipe"),
        folders.get("data", Path()),
        asked["model"] or "",
        asked["changes"],
    )
    if asked["target"] is None:
        if asked["states"] is not None:
            raise InputError("--states keeps what a --target gives; name the target too")
        train_lm.run(job, out, folders.get("tokenizer"), resume, asked)
        return
    if asked["tokenizer"] is not None:
        raise InputError("--tokenizer was given beside --target, whose tokens are learnt; leave it")
    train_draft.run(job, asked["target"], out, resume, folders.get("states"), asked)


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
    shortest: Annotated[int, typer.Option(help="Fewest tokens of a prompt.")] = 8,
    longest: Annotated[
        int | None,
        typer.Option(help="Most tokens of a prompt.", show_default="64, or 256 with --chat"),
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
        str, typer.Option(help="Temperatures with their shares of the rows.")
    ] = "0:0.6,0.7:0.2,1:0.2",
    batch_size: Annotated[int, typer.Option(help="Rows that are decoded together.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of the prompts and of the sampling.")] = 0,
) -> None:
    """Let a model continue the beginnings of texts, to train its draft heads on what it writes.

    A run that ended early goes on when the same command is given again.
    """
    from jspec.cli import train_data
    from jspec.training import distill

    job = train_data.texts(text or [], recipe, folder)
    kinds = train_data.temperatures(temperature)
    prompts = train_data.ASKED if chat else train_data.CONTINUED
    most = (256 if chat else 64) if longest is None else longest
    rows = distill.RowsRecipe(max_new_tokens, shortest, most, kinds, seed)
    train_data.run(job, model, out, rows, count, batch_size, prompts)


def head_command(kind: str, summary: str, settings: tuple[JobOption, ...]) -> None:
    """Adds the command that trains a kind of head."""

    @takes(*settings)
    def train(
        out: Annotated[Path, typer.Option(help="Folder of the run: checkpoints, curve, head.")],
        changes: Mapping[str, Any],
        text: Written = None,
        model: Target = None,
        recipe: Annotated[
            Path | None,
            typer.Option(help="TOML file with settings in heads.NAME, and texts if none given."),
        ] = None,
        data: DataFolder = None,
        resume: Resume = False,
        states: Annotated[
            Path | None,
            typer.Option(
                help="Keep what the target makes of the text there (hidden states, likeliest "
                "tokens) instead of computing it at each step."
            ),
        ] = None,
        states_dtype: Annotated[
            str | None, typer.Option(help="The dtype of kept states.", show_default="bfloat16")
        ] = None,
        begin_with: Annotated[
            str | None,
            typer.Option(
                help="Begin with the weights of a trained head: bundled, or a folder.",
                show_default="weights drawn anew",
            ),
        ] = None,
    ) -> None:
        from jspec.cli import train_heads, train_resume

        paths = {"recipe": recipe, "data": data, "states": states}
        target = model and train_resume.absolute(model)
        others = {
            "model": target,
            "states_dtype": states_dtype,
            "begin_with": begin_with and train_resume.absolute(begin_with),
        }
        asked, folders = _asked(out, resume, text, paths, others, changes)
        job = train_heads.job(kind, folders.get("recipe"), asked["changes"])
        run = train_heads.prepare(
            kind,
            job,
            asked["model"],
            asked["begin_with"],
            arguments=asked["text"] or [],
            recipe=folders.get("recipe"),
            data=folders.get("data", Path()),
        )
        kept = asked["states_dtype"] or "bfloat16"
        train_heads.train(run, out, resume, folders.get("states"), kept, asked)

    more = "A recipe's setting comes before a default, and an option before both."
    train_app.command(kind, help=f"{summary}\n\n{more}")(train)


head_command(
    "eagle",
    "Train EAGLE's draft head: one layer from state and token to the next state.",
    train_settings.EAGLE,
)
head_command(
    "lyanna",
    "Train Lyanna's draft head: a chain of states, and token info on the scores.",
    train_settings.LYANNA,
)
head_command(
    "medusa",
    "Train Medusa's heads: from one state, the token at each of several places.",
    train_settings.MEDUSA,
)


@train_app.command("ngrams")
def ngrams(
    out: Annotated[Path, typer.Option(metavar="FILE", help="The table.")],
    text: Written = None,
    model: Target = None,
    recipe: Annotated[
        Path | None, typer.Option(help="TOML file with texts, if none given.")
    ] = None,
    folder: Annotated[
        Path, typer.Option("--data", help="Folder that the recipe's paths start from.")
    ] = Path(),
    states: Annotated[
        Path | None,
        typer.Option(
            help="Keep the target's distributions there: the same command goes on from them."
        ),
    ] = None,
    candidates: Annotated[int, typer.Option(min=1, help="Tokens kept after each context.")] = 6,
    sequence: Annotated[int, typer.Option(min=2, help="Tokens read at once.")] = 256,
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences read at once.")] = 8,
    heldout: Annotated[
        float, typer.Option(min=0.0, max=0.5, help="Share of the text that is only scored.")
    ] = 0.05,
) -> None:
    """Make a table of what a model thinks likely after two tokens, for auto to begin with.

    It is made of text that the model has read, best of what it wrote itself (jspec train data).
    """
    from jspec.cli import train_ngrams

    asked = train_ngrams.NGramText(text or [], recipe, folder, sequence, heldout)
    train_ngrams.run(asked, model, out, states, candidates, batch_size)
