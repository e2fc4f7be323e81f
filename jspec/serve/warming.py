"""Warm-up before the first request: compiling, and measuring rounds."""

from typing import TYPE_CHECKING

import jax
import numpy as np

from jspec import costs
from jspec.request import Request
from jspec.serve.device import EngineDevice
from jspec.serve.jobs import PROMPT
from jspec.sessions import round_costs

if TYPE_CHECKING:
    from jspec.sessions.session import Session


def warm_up(device: EngineDevice) -> int:
    """Compiles all that will run. Returns the bytes of a text that is kept."""
    row_bytes = 0
    seeds = (1, -1, 2**40)  # they are made into keys in different ways
    for turn, seed in enumerate((*seeds, *seeds)):
        request = Request(max_tokens=2, temperature=1.0, seed=seed, stop_token_ids=(0,))
        state = device.read([0, 1], PROMPT, None)
        prefix = device.copy(state)
        row_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(prefix))
        device.insert(0, device.read([1], request, state))
        device.insert(device.num_slots - 1, device.read([1, 2], request, None))
        device.deltas(device.step(waiting=turn % 2 == 0), [0])
        device.insert(0, device.read([3], request, device.take(0)))
        device.insert(0, device.read([3], request, device.copy(prefix)))
        device.free(0)
        device.deltas(device.step(waiting=False), [0])
    device.reset()
    return row_bytes


def measure_costs(device: EngineDevice, session: "Session") -> None:
    """Tells the policy what rounds cost here, if it goes by that: measured once, kept on disk."""
    engine = device.engine
    if not device.has_costs:
        return
    name = costs.fingerprint(
        engine.model, session.target.params, engine.drafter, engine.policy,
        batch_size=engine.num_slots, sampled=True,
    )  # fmt: skip
    # What requests may ask for has its place in every round.
    label = "-".join((name, str(engine.capacity), "serve-greedy", *engine.room.names))
    text = np.random.default_rng(0).integers(0, engine.model.vocab_size, engine.capacity // 2)
    device.goes_by(round_costs.kept(label, lambda: device.costs(text.tolist())))
