"""A drafting method as a record: its name, its options, and its builder for a target."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jspec._validate.errors import InputError
from jspec._validate.options import Option, unknown
from jspec.methods.llm import LLM, read_model

if TYPE_CHECKING:
    from jspec.models import Loaded

BUNDLED = "jspec-7m"
"""The bundled target."""
BUNDLED_DRAFT = "jspec-800k"
"""The bundled draft model, which has the vocabulary of the bundled target."""


@dataclass(frozen=True)
class Models:
    """The models that a drafter is built from."""

    target: "Loaded"
    draft: "Loaded | None" = None
    """The draft model, given if the method needs one; its vocabulary is the target's."""
    head: Any = None
    """The trained head, found if the method needs one."""


Maker = Callable[..., LLM]
"""The function `make(models, **options)` that builds a drafter from checked options."""


@dataclass(frozen=True)
class Method:
    """A way to draft, by its name.

    Args:
        name: for `jspec.LLM` and `--method`.
        summary: its proposals, in a few words.
        make: gets the options that were given. For the others the drafter's own defaults hold, or
            what `jspec.methods.device_defaults` finds to fit the device.
        read_options: gives the options by name, from the annotations of the drafter and of what
            builds it; it imports both, and JAX.
        most: gives the nodes that it offers as a merge's member, if its options bound them.
        needs_draft_model: whether it drafts with a second, smaller model.
        takes_draft_model: whether it does so if there is one, and drafts without one too.
        needs_training: whether its weights are trained for one target.
        drafts: whether it drafts at all; plain decoding does not.
        exact: whether sampled tokens follow the target's distribution exactly.
    """

    name: str
    summary: str
    make: Maker
    read_options: Callable[[], Mapping[str, Option]] = dict
    most: Callable[..., int] | None = None
    needs_draft_model: bool = False
    takes_draft_model: bool = False
    needs_training: bool = False
    drafts: bool = True
    exact: bool = True

    @property
    def options(self) -> tuple[Option, ...]:
        """The options it takes, which are the keys of `--speculative-config`."""
        return tuple(self.read_options().values())

    @property
    def needs_options(self) -> bool:
        """True if the method cannot be built from models alone."""
        return any(option.required for option in self.options)

    def check(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the options as the drafter wants them; nothing is compiled for that.

        Args:
            options: values by name, lists for tuples as JSON has them.

        Returns:
            The checked values, which may be checked again.

        Raises:
            InputError: if one is unknown, of the wrong kind, out of range, or missing.
        """
        by_name = self.read_options()
        for name in options:
            if name not in by_name:
                raise unknown(f"{self.name}'s option", name, by_name)
        for option in by_name.values():
            if option.required and option.name not in options:
                raise InputError(
                    f"method {self.name} needs {option.name}, {option.help}; "
                    f"pass {option.name}: {option.kind.what}"
                )
        return {name: by_name[name].read(value) for name, value in options.items()}

    def build(
        self,
        target: "Loaded | str | Path",
        draft: "Loaded | str | Path | None" = None,
        **options: Any,
    ) -> LLM:
        """Builds the model and drafter of this method, as `jspec.LLM` does."""
        if "draft_model" in options:
            raise InputError(
                "draft_model is an option of the command line; pass draft=.., a name or what "
                "jspec.models.load gives"
            )
        checked = self.check(options)
        model = read_model("model", target)
        second = None if draft is None else read_model("draft", draft)
        return self.make(Models(model, self._draft(model, second)), **checked)

    def _draft(self, target: "Loaded", draft: "Loaded | None") -> "Loaded | None":
        """Returns the draft model that serves, or None for a method without one."""
        if draft is None and not self.needs_draft_model:
            return None
        if not (self.needs_draft_model or self.takes_draft_model):
            raise InputError(
                f"a draft model was given and method {self.name} uses none; leave it out"
            )
        if draft is not None:
            if wrong := _other_vocabulary(target, draft):
                raise InputError(f"{wrong}; name one that was made for the target's tokenizer")
            return _resize(draft, target)
        from jspec.models import load

        model: Any = target.model
        bundled = load(BUNDLED_DRAFT, getattr(model, "dtype", None))
        if _other_vocabulary(target, bundled):
            raise InputError(
                f"method {self.name} needs a draft model and none was given; pass "
                "draft=jspec.models.load(..) of a model with the target's vocabulary"
            )
        return bundled


def _resize(draft: "Loaded", target: "Loaded") -> "Loaded":
    """Returns the draft model with the target's number of scores."""
    from jspec.drafters.draft_model.padded_vocabulary import PaddedVocabulary

    size = target.model.vocab_size
    if draft.model.vocab_size == size:
        return draft
    return replace(draft, model=PaddedVocabulary(draft.model, size))


def _other_vocabulary(target: "Loaded", draft: "Loaded") -> str:
    """Returns the difference of two vocabularies in words; empty if they agree."""
    ours, theirs = target.model.vocab_size, draft.model.vocab_size
    if target.tokenizer is None or draft.tokenizer is None:  # loaded without: the caller knows
        is_same = ours == theirs
    else:
        words, other_words = (
            {token: word for word, token in tokenizer.get_vocab().items()}
            for tokenizer in (target.tokenizer, draft.tokenizer)
        )
        shared = words.keys() & other_words.keys()
        other = {token for token in shared if words[token] != other_words[token]}
        for tokenizer in (target.tokenizer, draft.tokenizer) if other else ():
            other -= tokenizer.get_added_tokens_decoder().keys()
        is_same = not other and any(words[token] == other_words[token] for token in shared)
    if is_same:
        return ""
    if ours != theirs:
        return f"the draft model has a vocabulary of {theirs} tokens and the target one of {ours}"
    return f"the draft model has as many tokens as the target, {ours}, but other ones"
