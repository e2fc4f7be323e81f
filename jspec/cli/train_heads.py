"""The work of `jspec train eagle` and of other heads: from a target and text to a draft head."""

import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from jspec import models
from jspec._validate.errors import InputError
from jspec.cli import curves
from jspec.cli.head_recipes import KINDS
from jspec.cli.train_lm import source
from jspec.cli.train_progress import shown
from jspec.cli.train_resume import remember
from jspec.methods import BUNDLED
from jspec.models import heads, precision
from jspec.models.fingerprint import fingerprint
from jspec.models.heads.registry import with_taps
from jspec.models.load import Loaded
from jspec.training import checkpoints as folders
from jspec.training import corpus as corpora
from jspec.training import head_jobs, heldout, jobs, loop, packing, parallel, sequences
from jspec.training.distributions import Observed
from jspec.training.sequences import Sequences
from jspec.training.states import States
from jspec.training.unroll import Batch
from jspec.types import PyTree

USEFUL = 0.3
"""The share of right first tokens below which a head is called untrained."""
HELDOUT_CURVE = "heldout_curve.jsonl"
"""The file of a run's scores on held-out text, a line for each time that it was scored."""


@dataclass(frozen=True)
class TrainingText:
    """The text that a head is trained and scored on, by class."""

    train: dict[str, Sequences]
    heldout: dict[str, Sequences]
    weights: dict[str, float]


def job(kind: str, recipe: Path | None, changes: Mapping[str, Any]) -> head_jobs.HeadJob:
    """The job of a kind: its defaults, under the recipe's settings, under the given ones.

    Raises:
        InputError: if the recipe or the settings are wrong.
    """
    settings = {} if recipe is None else head_jobs.read(recipe, kind)
    return head_jobs.override(KINDS[kind].job, {**settings, **changes})


def text(
    arguments: Sequence[str],
    recipe: Path | None,
    data: Path,
    target: Loaded,
    length: int,
    share: float,
) -> TrainingText:
    """Sequences of all texts: files of `jspec train data` as they are, others as plain text.

    Args:
        arguments: the texts; none: those of the recipe.
        recipe: that has texts.
        data: the folder that its paths start from.
        target: whose tokens they are.
        length: of a sequence.
        share: of the text that is held out.

    Raises:
        InputError: if there is none, or one is shorter than a sequence.
    """
    if not arguments and recipe is None:
        raise InputError("no text was given; name files or folders, or a --recipe")
    if arguments:
        texts = jobs.TrainingJob(sources=tuple(map(source, arguments)))
    else:
        assert recipe is not None
        texts = jobs.texts(recipe, data)
    return read(texts, target, length, share)


def read(texts: jobs.TrainingJob, target: Loaded, length: int, share: float) -> TrainingText:
    """Sequences of a job's texts; for the other arguments see `text`."""
    size = target.model.vocab_size
    written = [one for one in texts.sources if sequences.holds_rows(one.path)]
    corpus = corpora.load([one for one in texts.sources if one not in written], share)
    train: dict[str, Sequences] = {}
    held: dict[str, Sequences] = {}
    for one in written:
        kept, out = sequences.split(sequences.read(one.path, size), share)
        add(train, one.label, sequences.fill(kept, length))
        if sum(len(row.tokens) for row in out) > length:
            add(held, one.label, sequences.fill(out, length))
    for label, documents in corpus.train.items():
        add(train, label, sequences.cut(encode(target, documents), length))
        out = encode(target, corpus.heldout[label])
        if sum(map(len, out)) > length:
            add(held, label, sequences.cut(out, length))
    return TrainingText(train, held, {label: texts.weights.get(label, 1.0) for label in train})


def add(parts: dict[str, Sequences], label: str, more: Sequences) -> None:
    """Puts sequences into a class, behind what it holds."""
    parts[label] = sequences.join([parts[label], more]) if label in parts else more


def encode(target: Loaded, documents: Sequence[str]) -> list[list[int]]:
    """Token ids, with what begins a text; where a tokenizer adds nothing, the end token does."""
    begins = list(target.tokenizer.encode("").ids) or list(target.eos[:1])
    return [
        [*begins, *target.tokenizer.encode(document, add_special_tokens=False).ids]
        for document in documents
    ]


@dataclass(frozen=True)
class TrainingRun:
    """A head, its target, its text and its devices, before training."""

    kind: str
    job: head_jobs.HeadJob
    target: Loaded
    fingerprint: str
    """The fingerprint of the target's weights."""
    text: TrainingText
    whole: Sequences
    """The training text of all classes."""
    head: Any
    variables: PyTree
    """The variables of the head, before training."""
    began_with: str | None
    """A fingerprint of the trained head that they are of; None: drawn anew."""
    devices: parallel.Devices

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that must not change when the run is resumed."""
        return {
            "kind": self.kind,
            "target": self.fingerprint[:16],
            "text": self.whole.fingerprint,
            "weights": self.text.weights,
            **({"began_with": self.began_with} if self.began_with else {}),
            **self.job.settings(),
        }

    @property
    def frozen(self) -> PyTree:
        """The arrays that the objective reads and does not train."""
        borrowed = {name: value for name, value in self.variables.items() if name != "params"}
        return self.devices.copy({"target": self.target.params, "borrowed": borrowed})

    def batch(
        self,
        text: Sequences,
        rows: np.ndarray,
        observed: Observed | None = None,
        step: int | None = None,
    ) -> Batch:
        """A batch of some rows on the devices, each row on one of them.

        Args:
            text: the rows of which.
            rows: which of them.
            observed: what the target makes of them, if it is at hand.
            step: of the training, on which what is drawn depends; None: on the row alone.
        """
        draws = rows
        if step is not None:
            draws = np.random.default_rng([self.job.seed, 3, step]).integers(2**31, size=len(rows))
        arrays = text.tokens[rows], text.live[rows], observed, draws.astype(np.int32)
        return Batch(*self.devices.share(arrays))


def prepare(
    kind: str,
    job: head_jobs.HeadJob,
    model: str | None,
    begin_with: str | None = None,
    **texts: Any,
) -> TrainingRun:
    """Loads and checks all that `train` needs; `texts` are the first arguments of `text`.

    Args:
        kind: of the head.
        job: how it is trained.
        model: the target; None: the bundled one.
        begin_with: a trained head whose weights are the first; None: they are drawn.

    Raises:
        InputError: if text, target, settings and the trained head do not fit one another.
    """
    devices = parallel.Devices.of()
    devices.check(job.batch_size)
    target = models.load(model or BUNDLED)
    check_sequence(job.sequence, target)
    parts = text(**texts, target=target, length=job.sequence, share=job.heldout)
    whole = sequences.join(list(parts.train.values()))
    job = job.stepped(len(whole))
    head, began_with = KINDS[kind].build(target, **job.shape), None
    if begin_with is None:
        variables = start(kind, head, target, whole, job.seed)
    else:
        variables = trained_before(begin_with, head, target, kind)
        began_with = fingerprint(variables["params"])[:16]
    ours = fingerprint(target.params)
    return TrainingRun(kind, job, target, ours, parts, whole, head, variables, began_with, devices)


def forget_scores(path: Path, done: int) -> None:
    """Removes the scores of steps that will be computed again."""
    if path.is_file():
        lines = path.read_text("utf-8").splitlines(keepends=True)
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= done]
        folders.write(path, "".join(kept))


def check_sequence(length: int, target: Loaded) -> None:
    """Raises InputError if the target cannot read so many tokens and one more."""
    context = target.model.context
    if context is not None and length >= context:
        raise InputError(
            f"sequence {length} and the token after it are more than the target's context of "
            f"{context}; use a sequence < {context}"
        )


def trained_before(name: str, head: Any, target: Loaded, kind: str) -> PyTree:
    """The variables of a trained head, to train it further: its own, and the target's borrowed.

    The tokens that it scores stay those that it was trained for, whatever the text is.

    Raises:
        InputError: if there is no such head, or it has another shape.
    """
    found, variables = heads.read_variables(name, target, kind)
    for field in fields(head.config):
        theirs, ours = (getattr(one.config, field.name) for one in (found, head))
        if theirs != ours:
            raise InputError(
                f"the head {name} has {field.name} {theirs} and this run's would have {ours}; "
                "give the settings that it was trained with"
            )
    return variables


def start(kind: str, head: Any, target: Loaded, text: Sequences, seed: int) -> PyTree:
    """The variables of a new head: its own at their beginning, the target's borrowed.

    Where it scores or informs only some tokens, they are the text's most frequent ones.
    """
    state, one = jnp.zeros((1, 1, head.features), head.dtype), jnp.zeros((1, 1), jnp.int32)
    pairs = (one, one, jnp.ones((1, 1, 1), bool)) if heads.HEAD_KINDS[kind].reads_tokens else ()
    fresh = dict(head.init(jax.random.key(seed), state, *pairs))
    if (begin := KINDS[kind].begin) is not None:
        fresh["params"] = begin(head, target.params)
    order = np.argsort(-text.counts(target.model.vocab_size), kind="stable")
    for name in {"hot", "scored"} & fresh.keys():
        fresh[name] = jax.tree.map(
            lambda ids: jnp.asarray(np.sort(order[: len(ids)]), ids.dtype), fresh[name]
        )
    return {**fresh, heads.TARGET: heads.borrow(head, target.params)}


def train(
    run: TrainingRun,
    out: Path,
    resume: bool,
    states: Path | None = None,
    states_dtype: str = "bfloat16",
    command: Mapping[str, Any] | None = None,
) -> None:
    """Trains, draws the curve, scores the held-out text, and saves the head in `out/head`.

    Args:
        run: what to train.
        out: folder of the run.
        resume: whether a run that is already there may be continued.
        states: folder for the target's states; None: they are computed on the fly.
        states_dtype: that they are stored in.
        command: the arguments of the run, kept for `--resume`.

    Raises:
        InputError: if a folder holds something else.
        RunStopped: if the run stopped; the message says how it goes on.
    """
    # Orbax logs the traceback of an error that it also raises.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    console, job, kind = Console(), run.job, KINDS[run.kind]
    objective = kind.objective(run.target, run.head, **job.loss)
    checkpoints = folders.Checkpoints(out, run.settings, resume)
    if command is not None:
        remember(out, command)
    size = sum(leaf.size for leaf in jax.tree.leaves(run.variables["params"]))
    console.print(f"{size:,} parameters, {len(run.whole):,} sequences of text")
    for line in kind.memory(run.head):
        console.print(line)
    held = None if states is None else store(run, states, states_dtype, console)
    sizes = {label: len(part) for label, part in run.text.train.items()}
    rows = packing.order(sizes, run.text.weights, job.recipe.steps * job.batch_size, job.seed)
    order = rows.reshape(job.recipe.steps, job.batch_size)

    def batch(step: int) -> Batch:
        chosen = order[step]
        return run.batch(run.whole, chosen, None if held is None else held[chosen], step)

    frozen, copy = run.frozen, run.devices.copy
    params = copy(run.variables["params"])

    forget_scores(out / HELDOUT_CURVE, checkpoints.latest())

    def examine(step: int, params: PyTree) -> None:
        if step in job.scored_steps:
            line = json.dumps({"step": step, **evaluate(run, objective, params, frozen)})
            with (out / HELDOUT_CURVE).open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    with shown(console, "training", job.recipe.steps) as progress:

        def show(report: loop.UpdateMetrics) -> None:
            progress.update(report.step, told(report))

        params = loop.train(
            objective, job.recipe, params, batch, checkpoints, show, frozen, copy, examine
        )
    curves.plot(checkpoints.curve(), out / "curve.png", "weighted sum")
    scores = evaluate(run, objective, params, frozen)
    folders.write(out / "heldout.json", json.dumps(scores, indent=2) + "\n")
    if scores:
        console.print(table(scores))
        if doubt := untrained(scores):
            console.print(doubt, soft_wrap=True)
    # A run that was lengthened replaces what it saved when it was shorter.
    shutil.rmtree(out / "head", ignore_errors=True)
    record = {**run.settings, "steps": job.recipe.steps, "heldout_scores": scores}
    own = {**run.variables, "params": params}
    own.pop(heads.TARGET, None)
    heads.save(out / "head", run.head, jax.tree.map(narrow, own), run.target, record)
    console.print(f"head in {out / 'head'}", soft_wrap=True)


def narrow(leaf: Any) -> Any:
    """Weights in bfloat16, as models are: half the size, and nothing that acceptance would show."""
    return leaf.astype(jnp.bfloat16) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


def store(run: TrainingRun, folder: Path, dtype: str, console: Console) -> States:
    """The target's states of all training text, from disk or put there."""
    model: Any = with_taps(run.target.model, run.head)
    # The objectives that read the target's distributions say how many tokens of each.
    num_target_tokens = run.job.loss.get("num_target_tokens", 0)
    kept = precision.find(dtype)
    held = States(folder, run.whole, model.features, kept, run.fingerprint, num_target_tokens)
    with shown(console, "storing states", len(run.whole), len(held)) as progress:
        for done in held.fill(model, run.target.params, run.job.batch_size):
            progress.update(done, "")
    return held


def told(report: loop.UpdateMetrics) -> str:
    """Loss, and how good each draft step is."""
    steps: Any = report.metrics["acceptance"]
    return f"loss {report.loss:.3f}, acceptance " + " ".join(f"{share:.2f}" for share in steps)


def evaluate(
    run: TrainingRun, objective: loop.Objective, params: PyTree, frozen: PyTree
) -> dict[str, dict[str, Any]]:
    """Held-out loss and metrics per class; classes with too little held out are left out."""

    def batches(part: Sequences) -> Iterator[tuple[Batch, int]]:
        size = run.job.batch_size
        # The last batch is filled up with rows that hold no text.
        more = ((0, -len(part) % size), (0, 0))
        filled = Sequences(np.pad(part.tokens, more), np.pad(part.live, more))
        for first in range(0, len(filled), size):
            rows = np.arange(first, first + size)
            yield run.batch(filled, rows), int(filled.live[rows].sum())

    return {
        label: heldout.metrics(objective, params, frozen, batches(part))
        for label, part in run.text.heldout.items()
    }


def untrained(scores: Mapping[str, Mapping[str, Any]]) -> str:
    """A sentence where the head is no help yet; "" if it is."""
    first = [(score["acceptance"][0], score["tokens"]) for score in scores.values()]
    share = sum(right * count for right, count in first) / max(sum(n for _, n in first), 1)
    if share >= USEFUL:
        return ""
    return (
        f"this head is hardly trained yet: its first token is right {share:.0%} of the time on "
        f"held-out text, and below {USEFUL:.0%} drafting costs more than it saves; train it for "
        "more steps, on more text"
    )


def table(scores: Mapping[str, Mapping[str, Any]]) -> Table:
    """Loss and acceptance by draft step."""
    grid = Table("class", "loss", "acceptance by step", title="held out")
    for label, score in scores.items():
        shares = " ".join(f"{share:.3f}" for share in score["acceptance"])
        grid.add_row(label, f"{score['loss']:.3f}", shares)
    return grid
