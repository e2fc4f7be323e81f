"""The settings of training that `jspec train` takes as options, each declared once, without JAX."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer


@dataclass(frozen=True)
class JobOption:
    """One setting of a job.

    Args:
        name: of the job's setting, as recipes have it.
        default: the job's own; `--help` shows it, and a test compares the two.
        help: its meaning, in a few words.
        kind: its type, if the default does not tell.
        flag: name of the option, if another than the setting's.
    """

    name: str
    default: bool | int | float | str
    help: str
    kind: type | None = None
    flag: str | None = None

    @property
    def argument(self) -> str:
        """The name under which the option arrives."""
        return self.flag or self.name

    def parameter(self) -> inspect.Parameter:
        """The option as typer reads it; None if it is not given."""
        kind: Any = self.kind or type(self.default)
        shown = str(self.default).lower() if kind is bool else str(self.default)
        option = typer.Option(help=self.help, show_default=shown)
        return inspect.Parameter(
            self.argument,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[kind | None, option],
        )


def takes(*settings: JobOption) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command options: its argument `changes` becomes those that were given, by name."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def called(**given: Any) -> None:
            values = {setting.name: given.pop(setting.argument) for setting in settings}
            command(**given, changes={k: v for k, v in values.items() if v is not None})

        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(command).parameters.values()
            if parameter.name != "changes"
        ]
        parameters = [*own, *(setting.parameter() for setting in settings)]
        called.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        called.__doc__ = command.__doc__
        return called

    return decorate


_OPTIMISER = (
    JobOption("learning_rate", 2e-3, "Highest learning rate.", flag="lr"),
    JobOption("warmup", 100, "Updates until the learning rate is highest."),
    JobOption("cooldown", 1.0, "Share of the run over which the learning rate falls again."),
    JobOption("checkpoint_every", 200, "Updates per checkpoint."),
)
_SEED = JobOption("seed", 0, "Seed of the weights and the data order.")

LM = (
    JobOption("steps", 1000, "Updates in all."),
    JobOption("batch_size", 8, "Sequences per update."),
    JobOption("sequence", 512, "Tokens per sequence."),
    *_OPTIMISER,
    _SEED,
    JobOption("heldout", 0.05, "Share of each class that is only evaluated on."),
    JobOption("vocab_size", 4096, "Tokens of the tokenizer to train."),
    JobOption("hidden_size", 256, "Width of the hidden states."),
    JobOption("intermediate_size", 688, "Width inside the MLP."),
    JobOption("num_layers", 8, "Layers of the model.", flag="layers"),
    JobOption("num_heads", 4, "Query heads.", flag="heads"),
    JobOption("num_kv_heads", 2, "Key-value heads.", flag="kv_heads"),
    JobOption("head_dim", 64, "Width of an attention head."),
    JobOption("context", 1024, "Most positions the model may see."),
    JobOption(
        "num_target_tokens", 32, "With --target: tokens of its probabilities that are learnt."
    ),
    JobOption(
        "sequences", 0, "With --target: most sequences that are read, again and again; 0 is all."
    ),
)

_HEAD = (
    JobOption("steps", 2000, "Updates in all."),
    JobOption("batch_size", 8, "Sequences per update."),
    JobOption("sequence", 256, "Tokens per sequence."),
    *_OPTIMISER,
    JobOption("schedule", "cosine", "How the learning rate falls: cosine or linear."),
    JobOption("floor", 0.05, "Where it ends, as a share of the highest."),
    JobOption("weight_decay", 0.1, "Decay of the weights, as AdamW has it; 0 is Adam."),
    JobOption("epochs", 0.0, "Passes over the text, instead of --steps."),
    JobOption("scores", 0, "Times that held-out text is scored on the way."),
    _SEED,
    JobOption("heldout", 0.05, "Share of the text that is only scored."),
)
_PLACES = JobOption(
    "places",
    "32 of more than 40000 tokens, else all",
    "Places of a sequence that tokens are scored at; 0 is all.",
    kind=int,
)
_UNROLLED = (
    JobOption("unroll", 3, "Draft steps on the head's own states."),
    JobOption("state_loss", "squared", "Loss of the states: squared or smooth."),
    JobOption("state_weight", 1.0, "Weight of the states' loss."),
    JobOption("token_weight", 0.1, "Weight of the tokens' cross-entropy."),
    JobOption("decay", 0.8, "Weight of a draft step relative to the one before."),
    _PLACES,
)


def _with(settings: tuple[JobOption, ...], defaults: Mapping[str, Any]) -> tuple[JobOption, ...]:
    return tuple(
        replace(setting, default=defaults.get(setting.name, setting.default))
        for setting in settings
    )


_DRAFTED = JobOption(
    "hot_tokens",
    "8192 of more than 40000, else all",
    "Most frequent tokens, which alone it drafts; 0 is all.",
    kind=int,
)
EAGLE = (*_HEAD, *_UNROLLED, _DRAFTED)
LYANNA = (
    *_HEAD,
    *_UNROLLED,
    JobOption("rank", 64, "Width of the token info; 0 leaves it out."),
    JobOption(
        "hot_tokens",
        "32000 of more than 40000, else all",
        "Most frequent tokens that have token info; 0 is all.",
        kind=int,
    ),
    JobOption("first_token", True, "Tell the first draft step the token."),
)
MEDUSA = (
    *_with(_HEAD, {"learning_rate": 1e-3}),
    JobOption("decay", 0.8, "Weight of a head relative to the one before."),
    JobOption("num_heads", 4, "Heads, of which each drafts one place.", flag="heads"),
    JobOption("num_layers", 1, "Residual blocks of a head.", flag="layers"),
    JobOption(
        "hot_tokens",
        "8192 of more than 40000, else all",
        "Most frequent tokens, drafted by the target's own head; 0: all, by heads of their own.",
        kind=int,
    ),
    _PLACES,
)
