# ruff: noqa: F401, I001
# fmt: off
"""Oracles: jspec's algorithms again from the papers alone, in float64 numpy with loops.

Nothing here imports jax or jspec, so that an error has to be made twice, by two different roads, to
go unseen. `p` is the target's distribution and `q` the draft's, whatever letter a paper uses.

    sampling         one row of logits -> one distribution
    greedy           plain decoding, and where an emission ends
    control          processors of one position's logits, and plain decoding with them
    token_recycling  the published tree, the matrix, a whole decode
    prompt_lookup    the n-gram draft
    rest             the longest suffix in a corpus, the tree of its continuations
    lookahead        the window and the pool of n-grams, a whole decode
    suffix           places that end like the text, and the trie of what followed them
    rules            acceptance at one node: accept probabilities and the residual distribution
    block            a chain judged as a whole, or token by token: how much is kept, what follows
    traversal        a tree judged from its leaves to its root: the tests, what follows each
    proposals        every way the children of a node can be drawn, with its probability
    trees            sampled trees (RSD-C, SpecInfer, SpecTr, DySpec), the distribution of a walk
    beams            stochastic beam search (RSD-S), and every tree it can give
    sequoia          every shape of a tree, and the tokens to expect of it
"""

from .beams import every_beam, rsd_s
from .block import (
    block, block_probabilities, chain_distribution, chains, expected_kept, last_passed,
    token_by_token,
)
from .control import (
    banned_sequences, banned_tokens, frequency_penalty, grammar, logit_bias, min_tokens, plain,
    presence_penalty, repetition_penalty,
)
from .greedy import greedy
from .lookahead import lookahead
from .prompt_lookup import prompt_lookup
from .proposals import draws_iid, draws_swor, list_bound, optimal_acceptance
from .rest import rest
from .rules import (
    RSD_FIGURE_1, deterministic_proposal, emission, k_seq, k_seq_gamma, multi_round, recursive,
)
from .sampling import probabilities
from .sequoia import sequoia_shapes, sequoia_tokens
from .suffix import suffix, suffix_places, suffix_trie
from .token_recycling import (
    TEMPLATE, token_recycling, token_recycling_tree, token_recycling_update, top_candidates,
)
from .traversal import traversal, traversal_distribution
from .trees import (
    ROOT, children_of, dyspec_greedy, dyspec_threshold, every_tree, rsd_c, specinfer, spectr,
    tree_of, walk_distribution,
)
