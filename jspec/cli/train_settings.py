"""The settings of `jspec train` as options, each declared once, without JAX."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer


@dataclass(frozen=True)
class JobOption:
    """One setting of a job."""

    part: str
    name: str
    default: bool | int | float | str | None
    help: str
    flag: str | None = None
    shown: str = ""

    @property
    def argument(self) -> str:
        """The name under which the option arrives."""
        return self.flag or self.name

    @property
    def told(self) -> str:
        """The default as `--help` shows it."""
        return self.shown or str(self.default).lower()

    def parameter(self) -> inspect.Parameter:
        """Returns the option as typer reads it; None if it is not given."""
        kind: Any = int if self.default is None else type(self.default)
        option = typer.Option(help=self.help, show_default=self.told)
        annotation = Annotated[kind | None, option]
        only = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(self.argument, only, default=None, annotation=annotation)


def takes(settings: Iterable[JobOption]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command options: its argument `changes` becomes those that were given, by name."""
    options = list(settings)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def called(**arguments: Any) -> None:
            values = {setting.name: arguments.pop(setting.argument) for setting in options}
            command(**arguments, changes={k: v for k, v in values.items() if v is not None})

        base = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(command).parameters.values()
            if parameter.name != "changes"
        ]
        parameters = [*base, *(setting.parameter() for setting in options)]
        called.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        called.__doc__ = command.__doc__
        return called

    return decorate


def union(kinds: Mapping[str, Iterable[JobOption]]) -> list[JobOption]:
    """Returns the options of one command for several kinds; one that few have says which."""
    by_name: dict[str, dict[str, JobOption]] = {}
    for kind, options in kinds.items():
        for option in options:
            by_name.setdefault(option.name, {})[kind] = option
    return [_join(by_kind, len(kinds)) for by_kind in by_name.values()]


def _join(by_kind: Mapping[str, JobOption], count: int) -> JobOption:
    first = next(iter(by_kind.values()))
    of = "" if len(by_kind) >= count - 1 else f"{', '.join(by_kind)}: "
    by_default: dict[str, list[str]] = {}
    for kind, option in by_kind.items():
        by_default.setdefault(option.told, []).append(kind)
    several = "; ".join(f"{', '.join(kinds)}: {value}" for value, kinds in by_default.items())
    return replace(
        first, help=of + first.help, shown=several if len(by_default) > 1 else first.told
    )


def _run(steps: int, sequence: int, rate: float) -> tuple[JobOption, ...]:
    return (
        JobOption("recipe", "steps", steps, "Total number of updates."),
        JobOption("job", "batch_size", 8, "Sequences per update."),
        JobOption("job", "sequence", sequence, "Tokens per sequence."),
        JobOption("recipe", "learning_rate", rate, "Highest learning rate.", flag="lr"),
        JobOption("recipe", "warmup", 100, "Updates in which the learning rate rises."),
        JobOption("recipe", "cooldown", 1.0, "Share of updates in which the learning rate falls."),
        JobOption("recipe", "checkpoint_every", 200, "Updates between checkpoints."),
        JobOption("job", "seed", 0, "Seed of the weights and the data order."),
        JobOption("job", "heldout", 0.05, "Share of the text that is scored, not trained on."),
    )


DRAFT = (
    *_run(1000, 512, 2e-3),
    JobOption(
        "shape", "keep_layers", "", "Layers of the target to begin with, such as 0,15,29.",
        shown="required",
    ),
    JobOption("loss", "num_target_tokens", 32, "Tokens kept of each distribution."),
    JobOption(
        "loss", "sequences", 0, "Train on at most this many sequences, repeatedly; 0: all."
    ),
)  # fmt: skip


def _head(rate: float = 2e-3) -> tuple[JobOption, ...]:
    return (
        *_run(2000, 256, rate),
        JobOption("recipe", "schedule", "cosine", "Decay of the learning rate: cosine or linear."),
        JobOption("recipe", "floor", 0.05, "Final learning rate, as a share of the highest."),
        JobOption("recipe", "weight_decay", 0.1, "Weight decay of AdamW; 0: Adam."),
        JobOption("job", "epochs", 0.0, "Passes over the text, instead of --steps."),
        JobOption("job", "scores", 0, "How often held-out text is scored during training."),
        JobOption("loss", "decay", 0.8, "Weight of a draft step relative to the one before."),
        JobOption(
            "loss", "places", None,
            "Positions of a sequence at which tokens are scored, drawn anew in each step; 0: all.",
            shown="32 if the vocabulary exceeds 40000, else all",
        ),
    )  # fmt: skip


def _hot(count: int) -> JobOption:
    return JobOption(
        "shape", "hot_tokens", None,
        "Draft only this many most frequent tokens (lyanna: correct scores only for these); "
        "0: all.",
        shown=f"{count} if the vocabulary exceeds 40000, else all",
    )  # fmt: skip


_UNROLLED = (
    JobOption("loss", "unroll", 3, "Draft steps trained on the head's own predicted states."),
    JobOption("loss", "state_loss", "squared", "Loss of the states: squared or smooth."),
    JobOption("loss", "state_weight", 1.0, "Weight of the states' loss."),
    JobOption("loss", "token_weight", 0.1, "Weight of the tokens' cross-entropy."),
)
HEADS = {
    "eagle": (*_head(), *_UNROLLED, _hot(8192)),
    "lyanna": (
        *_head(),
        *_UNROLLED,
        _hot(32000),
        JobOption("shape", "rank", 64, "Rank of the score correction; 0 leaves it out."),
        JobOption("shape", "first_token", True, "Give the first draft step the last token."),
    ),
    "medusa": (
        *_head(1e-3),
        _hot(8192),
        JobOption("shape", "num_heads", 4, "Heads, each for one distance.", flag="heads"),
        JobOption("shape", "num_layers", 1, "Residual blocks of a head.", flag="layers"),
    ),
    "ngrams": (
        JobOption("job", "batch_size", 8, "Sequences read at once."),
        JobOption("job", "sequence", 256, "Tokens per sequence."),
        JobOption("job", "heldout", 0.05, "Share of the text that is scored, not trained on."),
        JobOption("shape", "candidates", 6, "Tokens kept after each context."),
    ),
}
"""The settings of each kind of head, and of tables of n-grams."""
