"""What jspec must compute, a second time: float64 numpy, loops, the papers and nothing else.

Nothing here imports jax or jspec, so that an error has to be made twice, by two different roads, to
go unseen. `p` is the target's law and `q` the draft's, whatever letter a paper uses.

    sampling         one row of logits -> one law
    greedy           plain decoding, and where an emission ends
    token_recycling  the published tree, the matrix, a whole decode
    prompt_lookup    the n-gram draft, a whole decode
    rules            acceptance at one node: accept probabilities and the residual law
    draws            every way the children of a node can be drawn, with its probability
"""

from .draws import acceptance, draws_iid, draws_swor, law, optimal_acceptance
from .greedy import greedy, truncate
from .prompt_lookup import prompt_lookup, prompt_lookup_decode
from .rules import coupled, emission, k_seq, k_seq_gamma, multi_round, point_mass, recursive
from .sampling import probabilities
from .token_recycling import (
    TEMPLATE,
    token_recycling,
    token_recycling_tree,
    token_recycling_update,
    top_candidates,
)

__all__ = [
    "TEMPLATE",
    "acceptance",
    "coupled",
    "draws_iid",
    "draws_swor",
    "emission",
    "greedy",
    "k_seq",
    "k_seq_gamma",
    "law",
    "multi_round",
    "optimal_acceptance",
    "point_mass",
    "probabilities",
    "prompt_lookup",
    "prompt_lookup_decode",
    "recursive",
    "token_recycling",
    "token_recycling_tree",
    "token_recycling_update",
    "top_candidates",
    "truncate",
]
