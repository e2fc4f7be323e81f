"""Text for training: sources, their documents, and the held-out ones."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter

from jspec._validate import plain_json
from jspec._validate.errors import InputError

END = "<|endoftext|>"
"""The separator of documents in a text file, and in the stream of tokens."""

CHUNK = 8000
"""Characters after which a text file without separators is cut, at the next blank line."""


Row = Callable[[str, str, str], str]
"""From a JSON line, the source's template and the line's place: a document."""


@dataclass(frozen=True)
class CorpusSource:
    """Files of one class of text.

    Args:
        label: name of the class.
        path: a file, or a folder whose .txt, .md, .py and .jsonl files are read.
        template: how a JSON row becomes text, in `str.format` syntax; empty joins its strings.
        strip: a regular expression whose matches are removed from each document.
    """

    label: str
    path: Path
    template: str = ""
    strip: str = ""


@dataclass(frozen=True)
class Corpus:
    """Documents per class, each either for training or held out."""

    train: dict[str, list[str]]
    heldout: dict[str, list[str]]


def load(sources: Sequence[CorpusSource], fraction: float = 0.05, row: Row | None = None) -> Corpus:
    """Reads all sources and holds out `fraction` of the documents of each class.

    Args:
        sources: where the text is.
        fraction: the share that is held out.
        row: how a JSON row becomes a document; as text if not given.
    """
    documents: dict[str, list[str]] = {}
    for source in sources:
        documents.setdefault(source.label, []).extend(read(source, row))
    pairs = {label: split(texts, fraction) for label, texts in documents.items()}
    return Corpus(
        train={label: train for label, (train, _) in pairs.items()},
        heldout={label: out for label, (_, out) in pairs.items()},
    )


def read(source: CorpusSource, row: Row | None = None) -> list[str]:
    """Returns the documents of one source, in the order of its files.

    Raises:
        InputError: if there is no text, or a file is not what its name says.
    """
    texts = [
        re.sub(source.strip, "", text).strip() if source.strip else text.strip()
        for path in files(source.path)
        for text in documents(path, source.template, row or text_row)
    ]
    result = [text for text in texts if text]
    if not result:
        raise InputError(f"{source.path} holds no text; name a file or folder that does")
    return result


def split(texts: Sequence[str], fraction: float) -> tuple[list[str], list[str]]:
    """Splits into (train, held out): the documents with the smallest digests are held out.

    A document's own digest decides, not its place, so that neither a reordering of the files nor a
    copy of a document can move text from one side to the other. At least one document is held out
    of two; none of a single one.
    """
    unique = sorted({digest(text) for text in texts})
    count = min(max(round(fraction * len(unique)), 1 if fraction else 0), len(unique) - 1)
    out = set(unique[:count])
    train = [text for text in texts if digest(text) not in out]
    return train, [text for text in texts if digest(text) in out]


def fingerprint(corpus: Corpus) -> str:
    """Returns 16 hexadecimal digits for the training documents and their order."""
    return digest("\0".join(text for texts in corpus.train.values() for text in texts))[:16]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def files(path: Path) -> list[Path]:
    """Returns the text files at or below `path`, sorted by name.

    InputError if it does not exist.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"{path} does not exist; name a text file or a folder of them")
    endings = {".txt", ".md", ".py", ".jsonl"}
    return sorted(p for p in path.rglob("*") if p.is_file() and p.suffix in endings)


def check_apart(out: Path, texts: Iterable[Path]) -> None:
    """Raises InputError if what is to be written is one of the texts that are read."""
    if any(out.resolve() in map(Path.resolve, files(path)) for path in texts):
        raise InputError(f"--out {out} is one of the texts; name another file")


def documents(path: Path, template: str, row: Row) -> Iterator[str]:
    """Yields the documents of one file.

    InputError if it is not text, or a row does not fit `row`.
    """
    try:
        text = path.read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start}); convert it") from None
    if path.suffix == ".jsonl":
        # Not splitlines(): a string may hold a line separator.
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield row(line, template, f"{path}, line {number}")
    elif END in text:
        yield from text.split(END)
    else:
        yield from chunks(text)


def text_row(line: str, template: str, place: str) -> str:
    """Returns one JSON row as text.

    InputError if it is not JSON, or lacks a field of the template.
    """
    try:
        for _, field, _, _ in Formatter().parse(template):
            # Attributes would be Python's own.
            if field is not None and not re.fullmatch(r"[^\W\d]\w*(\[[^\]]*\])*", field):
                raise ValueError(f"{{{field}}} names no field, as {{question}} or {{turns[0]}} do")
        fields = plain_json.parse(line)
        # "\r\n" inside a JSON string is still escaped when the file is read.
        text = template.format(**fields) if template else "\n".join(strings(fields))
    except json.JSONDecodeError as error:
        raise InputError(f"{place} is not JSON: {error.msg}; put one object on each line") from None
    except (KeyError, IndexError, TypeError) as error:
        raise InputError(f"{place} has no field {error} that the template names") from None
    except RecursionError:
        raise InputError(f"{place} is nested too deep to be read; make it flatter") from None
    except (ValueError, AttributeError) as error:
        raise InputError(f"{place} does not fit the template {template!r:.60}: {error}") from None
    return text.replace("\r\n", "\n")


def strings(value: object) -> Iterator[str]:
    """Yields every string in a JSON value, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def chunks(text: str) -> Iterator[str]:
    """Cuts at blank lines once a chunk holds `CHUNK` characters."""
    paragraphs: list[str] = []
    size = 0
    for paragraph in re.split(r"\n\s*\n", text):
        paragraphs.append(paragraph)
        size += len(paragraph)
        if size >= CHUNK:
            yield "\n\n".join(paragraphs)
            paragraphs, size = [], 0
    if paragraphs:
        yield "\n\n".join(paragraphs)
