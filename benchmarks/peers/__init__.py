"""Other people's decoding on the same weights, in the same run, where it is installed."""

from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING

from jspec._validate.errors import InputError
from jspec._validate.options import unknown

if TYPE_CHECKING:
    from benchmarks.peers.contenders import PeerRun
    from jspec.cli.bench.contenders import Contender


@dataclass(frozen=True)
class Peer:
    """A peer: what it needs, and where it is made.

    Args:
        summary: what it is, in a few words.
        packages: what has to be installed, by the names of their modules.
        module: of this package, whose function of the name `make` makes the contender.
        make: `make(setting) -> Contender`.
        needs_draft_model: whether it decodes with a second model.
        in_batches: whether it takes several prompts at once.
    """

    summary: str
    packages: tuple[str, ...]
    module: str
    make: str
    needs_draft_model: bool = False
    in_batches: bool = False

    def missing(self, draft_model: str | None, batch_size: int) -> str | None:
        """Says why it cannot take part, in words for its column; None if it can."""
        absent = [name for name in self.packages if find_spec(name) is None]
        if absent:
            return f"{absent[0]} is not installed (pip install 'jspec-jax[peers]')"
        if self.needs_draft_model and draft_model is None:
            return "it needs a draft model (--draft-model)"
        if batch_size > 1 and not self.in_batches:
            return "it decodes one prompt at a time (--batch-size 1)"
        return None

    def start(self, setting: "PeerRun") -> "Contender":
        """Loads the weights into it."""
        module = import_module(f"benchmarks.peers.{self.module}")
        return getattr(module, self.make)(setting)


_TRANSFORMERS = ("torch", "transformers")

PEERS = {
    "transformers": Peer(
        "transformers' generate", _TRANSFORMERS, "hugging_face", "plain", in_batches=True
    ),
    "transformers+prompt_lookup": Peer(
        "its prompt lookup, 10 tokens", _TRANSFORMERS, "hugging_face", "prompt_lookup"
    ),
    "transformers+assisted": Peer(
        "its assisted generation", _TRANSFORMERS, "hugging_face", "assisted", needs_draft_model=True
    ),
    "llama.cpp": Peer(
        "llama.cpp on a GGUF file of the same weights",
        ("llama_cpp", "gguf"),
        "llama_cpp_model",
        "plain",
    ),
    "llama.cpp+prompt_lookup": Peer(
        "its prompt lookup, as llama-cpp-python has it",
        ("llama_cpp", "gguf"),
        "llama_cpp_model",
        "prompt_lookup",
    ),
}
"""The peers by their names on the command line; their columns have the same."""


def choose(names: str) -> tuple[str, ...]:
    """Returns the peers that `--peers` names, separated by commas; "all" are all of them.

    Raises:
        InputError: if one is unknown.

    Example:
        >>> choose("llama.cpp,transformers")
        ('llama.cpp', 'transformers')
    """
    asked = tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    if asked == ("all",):
        return tuple(PEERS)
    for name in asked:
        if name not in PEERS:
            raise unknown("peer", name, (*PEERS, "all"))
    if names and not asked:
        raise InputError(f"--peers is {names!r}; name one or more of {', '.join(PEERS)}, or all")
    return asked


def versions(names: tuple[str, ...]) -> str:
    """Returns the packages of peers with their versions, those that are installed."""
    packages = dict.fromkeys(package for name in names for package in PEERS[name].packages)
    named = {name: name.replace("_cpp", "-cpp-python") for name in packages if find_spec(name)}
    return ", ".join(f"{name} {metadata.version(found)}" for name, found in named.items())
