"""Last epoch's rollouts as drafts after the policy has moved: tokens per round of the next.

python -m benchmarks.rollouts --out rollouts.jsonl
"""

from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import typer
from jaxtyping import Array, Float, Int
from rich.table import Table

import jspec
from benchmarks import model_pairs, options
from benchmarks.harness import command, console, headline, record
from benchmarks.texts import Prompts
from benchmarks.whole_rounds import Counted, Decoding
from jspec.arrays.ragged import sequence
from jspec.types import PyTree

REWARDED = " and"
"""The policy's reward; any other would do."""
CONTENDERS = (
    "old rollouts, the same noise",
    "old rollouts, fresh noise",
    "suffix of the old outputs, the same noise",
    "suffix of the old outputs, fresh noise",
    "suffix alone",
)


def main(
    model: options.Model = None,
    prompts: options.Prompts = None,
    questions: options.Questions = None,
    classes: options.Classes = "stories,maths,instructions",
    count: options.Count = 8,
    prompt_tokens: options.PromptTokens = 24,
    new_tokens: options.NewTokens = 128,
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    steps: Annotated[str, typer.Option(help="optimizer steps, comma-separated")] = "1,4,16,64",
    learning_rate: Annotated[float, typer.Option(min=0, help="of Adam")] = 1e-5,
    nodes: Annotated[int, typer.Option(min=1, help="drafted nodes of each method")] = 16,
    temperature: Annotated[float, typer.Option(min=0)] = 1.0,
    out: options.Out = None,
) -> None:
    """Trains the policy on one epoch's rollouts and drafts the next epoch's from them.

    Each seed is another key. The policy gradient (Williams 1992) with Adam takes steps on the
    first epoch's rollouts, eight rows per step. Figures are means over rows and seeds, with their
    standard error.
    """
    distances = _distances(steps)
    subject = model_pairs.subject(model, questions, prompts, classes)
    target, asked = subject.target, subject.of_all_classes(count, prompt_tokens)
    sampling = jspec.Sampling(temperature)
    headline(
        f"{subject.name}: {asked.count} prompts of {prompt_tokens} tokens, {new_tokens} new ones "
        f"at temperature {temperature:g}, {nodes} nodes, {seeds} seeds, Adam {learning_rate:g}"
    )
    found: dict[tuple[int, str], list[np.ndarray]] = {}
    moved: dict[int, list[tuple[float, float]]] = {}
    for seed in range(seeds):
        epoch = partial(_counted, target.model, asked, new_tokens=new_tokens, sampling=sampling)
        first = epoch(jspec.Suffix(nodes), target.params, key=seed)
        old = jspec.Rollouts(jnp.asarray(first.texts), jnp.full(asked.count, len(first.texts[0])))
        policies = trained(
            target.model, target.params, asked, first.texts[:, :new_tokens],
            _rewards(target, first.texts[:, :new_tokens]), distances, learning_rate,
        )  # fmt: skip
        for distance, params in policies.items():
            for name in CONTENDERS:
                drafter = jspec.Suffix(nodes)
                given: dict[str, Any] = dict(key=seed if "same" in name else seeds + seed)
                if name.startswith("old rollouts"):
                    given["drafter_params"] = old
                elif "old outputs" in name:
                    given["drafter_state"] = first.memory
                else:
                    given["key"] = seed
                counted = epoch(drafter, params, **given)
                rates = counted.tokens / counted.rounds
                found.setdefault((distance, name), []).append(rates)
                if name == CONTENDERS[0]:
                    same = (counted.texts == first.texts)[:, :new_tokens].mean()
                    apart = _divergence(target.model, target.params, params, asked, first.texts)
                    moved.setdefault(distance, []).append((float(apart), float(same)))
                record(out, {
                    "bench": "rollouts", **subject.about, "seed": seed, "steps": distance,
                    "method": name, "nodes": nodes, "temperature": temperature,
                    "learning_rate": learning_rate, "tokens_per_round": rates.tolist(),
                })  # fmt: skip
    table = Table(
        "steps", "KL", "same tokens", *CONTENDERS, "first / last", title="tokens per round"
    )
    for distance in distances:
        apart, same = np.mean(moved[distance], axis=0)
        means = [_shown(found[distance, name]) for name in CONTENDERS]
        ratio = _pooled(found[distance, CONTENDERS[0]]) / _pooled(found[distance, CONTENDERS[-1]])
        table.add_row(str(distance), f"{apart:.4f}", f"{same:.0%}", *means, f"{ratio:.2f}")
    console.print(table)
    console.print(
        "Tokens per forward pass of the target; plain decoding has 1. KL: of the first policy's "
        "rollouts, nats per token. Same tokens: at equal places, both epochs with the same noise. "
        "First / last: of all tokens over all rounds, where rows that differ early weigh most."
    )


def _distances(steps: str) -> list[int]:
    """Returns the numbers of optimizer steps, rising.

    Raises:
        InputError: if one is not a number from 0 on.
    """
    if not all(step.strip().isdecimal() for step in steps.split(",")):
        raise jspec.InputError(f"--steps is {steps!r:.60}; pass numbers from 0 on, such as 1,4,16")
    return sorted({int(step) for step in steps.split(",")})


def _counted(
    model: jspec.CausalLM,
    asked: Prompts,
    drafter: jspec.Drafter,
    params: PyTree,
    *,
    new_tokens: int,
    drafter_params: PyTree = None,
    **given: Any,
) -> Counted:
    return Decoding(model, params, drafter, drafter_params, new_tokens).count(asked, **given)


def _shown(rates: list[np.ndarray]) -> str:
    rates_ = np.concatenate(rates)
    return f"{rates_.mean():.2f} +- {rates_.std(ddof=1) / np.sqrt(len(rates_)):.2f}"


def _pooled(rates: list[np.ndarray]) -> float:
    """Returns all tokens over all rounds: rows have nearly as many tokens."""
    return float(1 / (1 / np.concatenate(rates)).mean())


def _rewards(target: Any, texts: Int[np.ndarray, "B T"]) -> Float[np.ndarray, " B"]:
    counts = [target.tokenizer.decode(row.tolist()).count(REWARDED) for row in texts]
    rewards = np.array(counts, np.float32)
    return (rewards - rewards.mean()) / max(rewards.std(), 1e-6)


def _log_probs(
    model: jspec.CausalLM,
    params: PyTree,
    texts: Int[Array, "B T"],
) -> Float[Array, "B T-1"]:
    """Returns log-probabilities of each token but the first, after those before it."""
    positions, mask = sequence(*texts.shape)
    logits = model.apply(params, texts, positions, mask, None).logits
    known = jax.nn.log_softmax(logits[:, :-1].astype(jnp.float32))
    return jnp.take_along_axis(known, texts[:, 1:, None], axis=-1)[..., 0]


def _divergence(
    model: jspec.CausalLM, old: PyTree, new: PyTree, asked: Prompts, texts: Int[np.ndarray, "B T"]
) -> float:
    """Estimates KL(old, new) per token on rollouts of the old policy, prompts of one length."""
    whole = jnp.concatenate([asked.tokens, texts], axis=1)
    apart = _scored(model, old, whole) - _scored(model, new, whole)
    return float(apart[:, asked.tokens.shape[1] - 1 :].mean())


_scored = jax.jit(_log_probs, static_argnums=0)


def trained(
    model: jspec.CausalLM,
    params: PyTree,
    asked: Prompts,
    texts: Int[np.ndarray, "B T"],
    advantages: Float[np.ndarray, " B"],
    distances: list[int],
    learning_rate: float,
    rows: int = 8,
) -> dict[int, PyTree]:
    """Returns the policies after so many steps of the policy gradient on the rollouts."""
    whole = jnp.concatenate([asked.tokens, texts], axis=1)
    begin = asked.tokens.shape[1]
    optimizer = optax.adam(learning_rate)

    def loss(params, texts, advantages):
        written = _log_probs(model, params, texts)[:, begin - 1 :]
        return -(advantages[:, None] * written).mean()

    @jax.jit
    def step(params, memory, texts, advantages):
        gradient = jax.grad(loss)(params, texts, advantages)
        updates, memory = optimizer.update(gradient, memory, params)
        return optax.apply_updates(params, updates), memory

    memory, policies = optimizer.init(params), {}
    order = np.random.default_rng(0)
    for number in range(max(distances) + 1):
        if number in distances:
            policies[number] = params
        some = order.permutation(len(whole))[:rows]
        params, memory = step(params, memory, whole[some], jnp.asarray(advantages[some]))
    return policies


if __name__ == "__main__":
    command(main)
