"""A byte-level BPE tokenizer of one's own."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, cycle
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from jspec._validate.errors import InputError
from jspec.training.corpus import END


def train(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learns `vocab_size` tokens: the end token 0, the 256 bytes, and merges.

    An encoded text starts with the end token, as packed documents do: it marks a beginning.
    """
    if vocab_size < 257:
        raise InputError(
            f"vocab_size {vocab_size} cannot hold 256 bytes and an end token; use >= 257"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            # Digits stand alone, so that a small model can learn their arithmetic.
            pre_tokenizers.Split(Regex(r" ?\p{N}"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise InputError(
            f"the text gives only {tokenizer.get_vocab_size()} tokens, not vocab_size {vocab_size};"
            f" give more text or a smaller vocab_size"
        )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END} $A", special_tokens=[(END, tokenizer.token_to_id(END))]
    )
    return tokenizer


def mixture(
    texts: Mapping[str, Sequence[str]], weights: Mapping[str, float], size: int = 8_000_000
) -> Iterator[str]:
    """Yields documents, shared among the classes as training will share them.

    About `size` characters, or as many as there are if there are fewer.
    """
    whole = sum(weights[label] for label in texts)
    size = min(size, sum(map(len, chain.from_iterable(texts.values()))))
    for label, documents in texts.items():
        left = size * weights[label] / whole
        for text in cycle(documents):
            if left <= 0:
                break
            yield text
            left -= len(text)


def load(folder: Path) -> Tokenizer:
    """Returns the tokenizer of a folder."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InputError(f"{path} does not exist; name a folder that holds a tokenizer.json")
    tokenizer = Tokenizer.from_file(str(path))
    if tokenizer.token_to_id(END) is None:
        raise InputError(f"{path} has no token {END}; training separates documents with it")
    return tokenizer
