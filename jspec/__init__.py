"""Lossless speculative decoding for JAX as one pure function: `jspec.decode`.

`__all__` is all that is public. Names are imported on first use (PEP 562): JAX takes a second to
import, and `jspec --help` shall not wait for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from jspec import costs as costs
    from jspec import methods as methods
    from jspec import models as models
    from jspec import planning as planning
    from jspec import round, tree
    from jspec import sampling as sampling
    from jspec import testing as testing
    from jspec import training as training
    from jspec import verify as verify
    from jspec._xla import hosts
    from jspec.costs import metrics
    from jspec.drafters import memory_file as memory
    from jspec.drafters.draft_model import acceptance_vector as acceptance_vector
    from jspec.drafters.draft_model import sequoia_tree as sequoia_tree
    from jspec.drafters.retrieval import datastore as datastore
    from jspec.drafters.retrieval import ngrams as ngrams
    from jspec.processors import grammar
    from jspec.processors import logits as processors
    from jspec.public import *  # noqa: F403
    from jspec.round import packed
    from jspec.verify import proposals as proposals
    from jspec.verify import rules as rules
    from jspec.verify import schemes as schemes

# fmt: off
__all__ = [  # noqa: RUF022
    # what runs
    "Chunk", "decode", "Engine", "export", "fork", "News", "no_recompile", "prefill", "Program",
    "RecompileError", "step", "stop_strings", "stream", "trace", "warmup",
    # data
    "Cache", "CostCurve", "Feedback", "Frame", "InputError", "Logprobs", "Output", "PromptChunk",
    "Result", "Sampling", "Scored", "State", "Stats", "Status", "StopStrings", "Template", "Trace",
    "TracedRound", "TracedWidths", "Tree", "TreeKV", "Verdict", "WidthChoice",
    # protocols
    "CausalLM", "DraftHead", "Drafter", "NodeRule", "Verifier",
    # verification
    "BlockVerification", "Scheme", "TraversalVerification", "TreeVerifier", "Verified",
    "with_verifier",
    # drafters
    "Adaptive", "AdaptiveParams", "Autoregressive", "BlockDrafter", "BudgetedMerge",
    "CalibratedDySpec", "CoupledTree", "DySpec", "DynamicTokenRecycling", "EAGLE", "EAGLE2",
    "JumpForward", "Lookahead", "Lyanna", "Medusa", "Merge", "PaddedVocabulary", "PromptLookup",
    "REST", "RSDC", "RSDS", "Script", "Scripted", "Sequoia", "SpecInfer", "SpecTr",
    "SpeculativeDecoding", "Suffix", "TokenRecycling", "adaptive", "auto", "merge",
    # modules
    "acceptance_vector", "costs", "datastore", "grammar", "hosts", "memory", "methods", "metrics",
    "models", "ngrams", "packed", "planning", "processors", "proposals", "round", "rules",
    "sampling", "schemes", "sequoia_tree", "testing", "training", "tree", "verify",
    "__version__",
]
# fmt: on

_MODULES = {
    "acceptance_vector": "jspec.drafters.draft_model.acceptance_vector",
    "costs": "jspec.costs",
    "grammar": "jspec.processors.grammar",
    "hosts": "jspec._xla.hosts",
    "datastore": "jspec.drafters.retrieval.datastore",
    "methods": "jspec.methods",
    "memory": "jspec.drafters.memory_file",
    "metrics": "jspec.costs.metrics",
    "models": "jspec.models",
    "ngrams": "jspec.drafters.retrieval.ngrams",
    "packed": "jspec.round.packed",
    "planning": "jspec.planning",
    "processors": "jspec.processors.logits",
    "proposals": "jspec.verify.proposals",
    "round": "jspec.round",
    "rules": "jspec.verify.rules",
    "sampling": "jspec.sampling",
    "schemes": "jspec.verify.schemes",
    "sequoia_tree": "jspec.drafters.draft_model.sequoia_tree",
    "testing": "jspec.testing",
    "training": "jspec.training",
    "tree": "jspec.tree",
    "verify": "jspec.verify",
}


def __getattr__(name: str):
    if name in _MODULES:
        found = import_module(_MODULES[name])
    elif name in __all__:
        found = getattr(import_module("jspec.public"), name)
    else:
        raise AttributeError(f"module 'jspec' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
