"""The texts of `jspec train`: those that a command names, as sequences of a model's tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jspec._validate.errors import InputError
from jspec.models.load import Loaded
from jspec.training import corpus, jobs, sequences
from jspec.training.sequences import Sequences


@dataclass(frozen=True)
class TrainingText:
    """The sequences that are trained and scored on, by class."""

    train: dict[str, Sequences]
    heldout: dict[str, Sequences]
    weights: dict[str, float]


def source(argument: str) -> corpus.CorpusSource:
    """CLASS=PATH, or a path whose class is its name."""
    label, equals, path = argument.partition("=")
    if equals and not Path(argument).exists():
        return corpus.CorpusSource(label, Path(path))
    return corpus.CorpusSource(Path(argument).stem, Path(argument))


def find_texts(text: Sequence[str], recipe: Path | None, data: Path) -> jobs.Texts:
    """Returns the texts of a command's options, with weights; else those of its recipe."""
    if text:
        return jobs.Texts(tuple(map(source, text)))
    if recipe is None:
        raise InputError("no text was given; name files or folders, or a --recipe")
    return jobs.read_texts(recipe, data)


def read(texts: jobs.Texts, target: Loaded, length: int, share: float) -> TrainingText:
    """Returns the sequences of all texts; files of `jspec train data` are read as rows."""
    check_sequence(length, target)
    row_sources = [entry for entry in texts.sources if sequences.holds_rows(entry.path)]
    plain = corpus.load([entry for entry in texts.sources if entry not in row_sources], share)
    train: dict[str, Sequences] = {}
    heldout: dict[str, Sequences] = {}
    for entry in row_sources:
        rows = sequences.read(entry.path, target.model.vocab_size)
        train_rows, out = sequences.split(rows, share)
        _add(train, entry.label, sequences.fill(train_rows, length))
        if sum(len(row.tokens) for row in out) > length:
            _add(heldout, entry.label, sequences.fill(out, length))
    for label, documents in plain.train.items():
        _add(train, label, sequences.cut(_encode(target, documents), length))
        out = _encode(target, plain.heldout[label])
        if sum(map(len, out)) > length:
            _add(heldout, label, sequences.cut(out, length))
    return TrainingText(train, heldout, {label: texts.weights.get(label, 1.0) for label in train})


def check_sequence(length: int, target: Loaded) -> None:
    """Raises InputError if the target cannot read so many tokens and one more."""
    context = target.model.context
    if context is not None and length >= context:
        raise InputError(
            f"sequence {length} and the token after it are more than the target's context of "
            f"{context}; use a sequence < {context}"
        )


def _add(parts: dict[str, Sequences], label: str, more: Sequences) -> None:
    """Puts sequences into a class, behind what it holds."""
    parts[label] = sequences.join([parts[label], more]) if label in parts else more


def _encode(target: Loaded, documents: Sequence[str]) -> list[list[int]]:
    """Returns token ids, with the token that begins a text, or else the end token."""
    begins = list(target.tokenizer.encode("").ids) or list(target.eos[:1])
    return [
        [*begins, *target.tokenizer.encode(document, add_special_tokens=False).ids]
        for document in documents
    ]
