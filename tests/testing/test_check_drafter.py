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


def broken(change):
    """A drafter whose trees are changed."""

    @dataclass(frozen=True)
    class Broken(Chain):
        def draft(self, params, state, frame):
            tree, aux = super().draft(params, state, frame)
            return change(tree, frame), aux

    return Broken()


def sentence(drafter, **options):
    with pytest.raises(AssertionError) as caught:
        check_drafter(drafter, **options)
    return str(caught.value)


@pytest.mark.slow  # tests/contract has drafters that keep it
def test_a_sound_drafter_passes_and_the_report_says_what_was_not_checked():
    report = check_drafter(Chain(), in_merge=False)
    assert report.skipped == ["inside jspec.merge: in_merge is False"]


@pytest.mark.slow
def test_a_sound_drafter_passes_inside_a_merge():
    assert "inside jspec.merge" in " ".join(check_drafter(Chain()).checked)
    report = check_drafter(jspec.TokenRecycling(VOCAB), in_merge=False)
    assert "inside accepted paths" in str(report)


def test_nodes_taken_for_absent_are_reported():
    """From the drafter to the sentence, once; the other sentences need no program."""
    found = sentence(broken(lambda tree, frame: replace(tree, depth=1)))
    assert found.startswith("a tree is a tree: round 0, row 0: node 2 is 2 deep")


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
    for change, count in ((put("tokens", 1, -1), "2 of 3"), (put("valid", 1, False), "1 of 2")):
        check_trees(change(log), tree, VOCAB, report := Report())
        assert report.remarks[0].startswith(f"{count} drafted nodes were absent")


@pytest.mark.slow
def test_a_drafter_without_a_guess_says_so_by_valid_or_by_a_token():
    def partly(tree, frame):
        unsure = (frame.root[:, None] % 2 == 1) & (jnp.arange(tree.tokens.shape[1]) == 2)
        return replace(tree, tokens=jnp.where(unsure, -1, tree.tokens))

    assert "drafted nodes were absent" in check_drafter(broken(partly)).remarks[0]


@pytest.mark.slow
def test_equal_siblings_are_a_remark():
    def twins(tree, frame):
        tokens = tree.tokens.at[:, 2].set(tree.tokens[:, 1])
        return replace(tree, tokens=tokens, parents=jnp.minimum(tree.parents, 0), width=2)

    assert "repeat the token of an earlier sibling" in check_drafter(broken(twins)).remarks[0]


def test_a_state_that_changes_its_type_is_refused():
    @dataclass(frozen=True)
    class Widening(Chain):
        def update(self, params, state, aux, feedback):
            return state.astype(jnp.float32)

    assert "jspec refuses it" in sentence(Widening())


def test_a_draft_without_an_aux_is_said():
    @dataclass(frozen=True)
    class Stateless(Chain):
        def draft(self, params, state, frame):
            return super().draft(params, state, frame)[0]

    assert "draft returns (tree, aux)" in sentence(Stateless())


def test_a_drafter_that_cannot_be_hashed_is_said():
    @dataclass
    class Loose(jspec.Drafter):
        """Compares and is not frozen, so it has no hash."""

        length: int = 2
        init, prefill, draft, update = Chain.init, Chain.prefill, Chain.draft, Chain.update

    assert "static and hashable" in sentence(Loose())


def test_a_drafter_unequal_to_its_copy_is_said():
    class Identity(jspec.Drafter):
        init, prefill, draft, update = Chain.init, Chain.prefill, Chain.draft, Chain.update
        length = 2

    # Its methods call no `super`, so they serve any class.
    assert "equal to its copy" in sentence(Identity())


def test_a_hot_start_of_other_shapes_is_said():
    @dataclass(frozen=True)
    class Growing(Chain):
        def init(self, batch, capacity, earlier):
            cold = jnp.zeros((batch, 1), jnp.int32)
            return cold if earlier is None else jnp.concatenate([earlier[:batch], cold], axis=1)

        def update(self, params, state, aux, feedback):
            return state

    assert "a hot start compiles nothing" in sentence(Growing())


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


def test_a_verifier_that_takes_every_draft_is_caught():
    def trusting(p, q, children, valid, noise):
        return valid.astype(jnp.float32), p

    drafter = WithVerifier(verifier=jspec.TreeVerifier(trusting))
    assert "greedy rows are those of plain decoding" in sentence(drafter)


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
