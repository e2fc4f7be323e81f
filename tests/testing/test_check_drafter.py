"""The contract of drafters catches the drafters that break it, with the right sentence."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import jspec
from jspec import tree as trees
from jspec.testing import PrefixLM, Report, check_drafter
from jspec.testing.tree_contract import check_trees
from jspec.testing.watch import Log

VOCAB = PrefixLM().vocab_size


@dataclass(frozen=True)
class Chain(jspec.Drafter):
    """Drafts the tokens after the root, counted upwards; subclasses break a promise each."""

    length: int = 2

    def init(self, batch, capacity, earlier):
        return jnp.zeros(batch, jnp.int32)

    def draft(self, params, state, frame):
        steps = jnp.arange(self.length + 1)
        return trees.chain(self.length).fill((frame.root[:, None] + steps) % VOCAB), None

    def update(self, params, state, aux, feedback):
        return state + feedback.counts


@dataclass(frozen=True)
class Shallow(Chain):
    def draft(self, params, state, frame):
        tree, aux = super().draft(params, state, frame)
        return replace(tree, depth=1), aux


def sentence(drafter, **options):
    with pytest.raises(AssertionError) as caught:
        check_drafter(drafter, **options)
    return str(caught.value)


def put(field, node, value):
    """A change of one node of the only tree of a log."""

    def change(log):
        array = getattr(log, field).copy()
        array[0, 0, node] = value
        return replace(log, **{field: array})

    return change


def test_each_fault_of_a_tree_has_its_sentence():
    rows = np.array([[5]])
    log = Log(
        tokens=np.array([[[5, 1, 2, 3]]]), parents=np.array([[[-1, 0, 1, 0]]]),
        valid=np.ones((1, 1, 4), bool), value=np.full((1, 1, 4), 0.5), root=rows, positions=rows,
        done=rows < 0, counts=rows, rounds=1,
    )  # fmt: skip
    tree = trees.root_only(rows[0]).replace(depth=2, width=2)
    check_trees(log, tree, VOCAB, Report())
    for change, said in (
        (put("tokens", 0, 0), "node 0 should be the last emitted token, 5, and is 0"),
        (put("parents", 1, 2), "the parent of node 1 should be an earlier node and is 2"),
        (put("parents", 1, -1), "the parent of node 1 should be an earlier node and is -1"),
        (put("parents", 0, 0), "node 0 should be there with the parent -1"),
        (put("valid", 0, False), "node 0 should be there with the parent -1"),
        (put("tokens", 2, VOCAB), f"and holds {VOCAB}"),
        (put("tokens", 2, -2), "or -1 where there is no guess, and holds -2"),
        (put("parents", 3, 2), "node 3 is 3 deep and the tree's declared depth is 2"),
        (put("parents", 2, 0), "node 0 has more children than the declared width, 2"),
        (put("value", 1, np.nan), "the value of node 1 should lie in 0 .. 1 and is nan"),
        (put("value", 2, 1.5), "the value of node 2 should lie in 0 .. 1 and is 1.5"),
    ):
        with pytest.raises(AssertionError) as caught:
            check_trees(change(log), tree, VOCAB, Report())
        assert said in str(caught.value)
    # Node 2 is below node 1.
    for change, said in (
        (put("tokens", 1, -1), "2 of 3 drafted nodes were absent"),
        (put("valid", 1, False), "1 of 2 drafted nodes were absent"),
        (put("tokens", 3, 1), "repeat the token of an earlier sibling"),
    ):
        check_trees(change(log), tree, VOCAB, report := Report())
        assert said in report.remarks[0]


@dataclass(frozen=True)
class Widening(Chain):
    def update(self, params, state, aux, feedback):
        return state.astype(jnp.float32)


@dataclass(frozen=True)
class Stateless(Chain):
    def draft(self, params, state, frame):
        return super().draft(params, state, frame)[0]


@dataclass
class Loose(jspec.Drafter):
    """Compares and is not frozen, so it has no hash."""

    length: int = 2
    init, prefill, draft, update = Chain.init, Chain.prefill, Chain.draft, Chain.update


class Identity(jspec.Drafter):
    """Unequal to its copy. The methods call no `super`, so they serve any class."""

    init, prefill, draft, update = Chain.init, Chain.prefill, Chain.draft, Chain.update
    length = 2


@dataclass(frozen=True)
class Growing(Chain):
    def init(self, batch, capacity, earlier):
        cold = jnp.zeros((batch, 1), jnp.int32)
        return cold if earlier is None else jnp.concatenate([earlier[:batch], cold], axis=1)

    def update(self, params, state, aux, feedback):
        return state


def trusting(p, q, children, valid, noise):
    """A rule that takes every draft."""
    return valid.astype(jnp.float32), p


@dataclass(frozen=True)
class WithVerifier(Chain):
    """Draws that are decided about by a verifier that is not the coupled one."""

    verifier: object = None


@pytest.mark.slow
def test_another_sound_verifier_passes_and_the_report_says_what_was_not_checked():
    """Noise shared by rows: each row alone has the right distribution, but not plain's tokens."""

    @dataclass(frozen=True)
    class Shared:
        def verdict(self, tree, logits, frame):
            keys = jnp.broadcast_to(frame.keys[:1], frame.keys.shape)
            inner = jspec.TreeVerifier(jspec.rules.coupled)
            return inner.verdict(tree, logits, replace(frame, keys=keys))

    report = check_drafter(WithVerifier(verifier=Shared()), in_merge=False)
    assert "the distribution of later tokens" in report.skipped[0]
    assert "inside jspec.merge: in_merge is False" in report.skipped


@pytest.mark.parametrize(
    ("drafter", "said"),
    [
        (Widening(), "jspec refuses it"),
        (Stateless(), "draft returns (tree, aux)"),
        (Loose(), "static and hashable"),
        (Identity(), "equal to its copy"),
        (Growing(), "a hot start compiles nothing"),
        (
            WithVerifier(verifier=jspec.TreeVerifier(trusting)),
            "greedy rows are those of plain decoding",
        ),
        (Shallow(), "a tree is a tree: round 0, row 0: node 2 is 2 deep"),
    ],
    ids=lambda case: type(case).__name__ if isinstance(case, jspec.Drafter) else "",
)
def test_each_fault_of_a_drafter_has_its_sentence(drafter, said):
    assert said in sentence(drafter)


@pytest.mark.slow
def test_a_biased_verifier_is_caught():
    def eager(p, q, children, valid, noise):
        """Takes likely children too often."""
        return jnp.where(p[children] > 0, jnp.sqrt(p[children]), 0.0) * valid, p

    drafter = WithVerifier(verifier=jspec.TreeVerifier(eager))
    assert "tokens are drawn from the target's distribution" in sentence(drafter)


def test_wrong_use_is_an_input_error():
    for wrong in (Chain, None, jspec.Sampling()):
        with pytest.raises(jspec.InputError, match="pass an instance"):
            check_drafter(wrong)
    with pytest.raises(jspec.InputError, match="without a model"):
        check_drafter(Chain(), model_params={})
    with pytest.raises(jspec.InputError, match="two or more"):
        check_drafter(Chain(), prompts=[[1, 2]])


def test_the_built_in_model_notices_every_token_of_its_prefix():
    model = PrefixLM()
    params = model.init()
    rng = np.random.default_rng(0)
    size = 20
    text = rng.integers(VOCAB, size=size)

    def last(tokens):
        return tiny.plain_logits(model, params, tokens)[-1]

    for at in range(size):
        assert not np.array_equal(last((text + (np.arange(size) == at)) % VOCAB), last(text))
