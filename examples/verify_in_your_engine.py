"""An engine of one's own, with pages and a scheduler, that takes only the rule from jspec.

The engine keeps keys and values in pages, and a block table for each request. In one forward pass
it reads prompts and scores the trees of several requests, packed one behind the other. Then
`jspec.verify.coupled` says which guesses are kept, and their keys and values go to their pages.

The tokens are those of `jspec.decode` for the same key and ids. The noise of a token depends on
key, id and position alone. So neither the scheduler nor the drafter can change one, and a request
that was preempted for want of pages reads its text again and goes on as before.
"""

from collections import deque
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import jspec
from jspec import models

LAYERS, HEADS, HEAD_DIM = 2, 2, 64  # the bundled model jspec-800k, a small Llama
PAGE_SIZE, PAGES, BLOCKS = 8, 18, 12  # tokens of a page, pages, most pages of a request
ROWS, TOKENS = 3, 20  # requests and tokens of a forward pass
DEPTH, WIDTH = 4, 2
NODES = 1 + DEPTH * WIDTH


def draft(text: list[int]) -> list[tuple[int, int]]:
    """Returns (parent, token) of each node: a trie of what followed the last token before."""
    trie = {(-1, text[-1]): 0}
    for at in [i for i, token in enumerate(text[:-1]) if token == text[-1]][-WIDTH:]:
        node = 0
        for token in text[at + 1 : at + 1 + DEPTH]:
            node = trie.setdefault((node, token), len(trie))
    return list(trie)


def norm(x, weights):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weights["scale"]


def rotate(x, positions):
    angles = positions[:, None, None] / 10000.0 ** (2 * jnp.arange(HEAD_DIM // 2) / HEAD_DIM)
    (left, right), cos, sin = jnp.split(x, 2, -1), jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)


def forward(weights, pages, tokens, positions, mask, rows, block_tables, read):
    """Returns logits, keys and values of packed tokens, which see their row's pages and mask."""
    live = jnp.arange(BLOCKS * PAGE_SIZE) < read[rows, None]
    seen = jnp.concatenate([live, mask], 1)
    x, new = weights["embed"][tokens], []
    for layer in range(LAYERS):
        w = weights[f"layers_{layer}"]
        qkv = (norm(x, w["attention_norm"]) @ w["qkv"]["weight"].T).reshape(TOKENS, -1, HEAD_DIM)
        q, k, v = jnp.split(qkv, [HEADS, HEADS + 1], 1)
        q, k, v = rotate(q, positions), rotate(k, positions)[:, 0], v[:, 0]
        new.append(jnp.stack([k, v]))
        past = pages[layer][:, block_tables[rows]].reshape(2, TOKENS, -1, HEAD_DIM)
        own = jnp.broadcast_to(new[-1][:, None], (2, TOKENS, TOKENS, HEAD_DIM))
        keys, values = jnp.concatenate([past, own], 2)
        scores = jnp.einsum("nhd,nsd->nhs", q, keys) / HEAD_DIM**0.5
        attention = jax.nn.softmax(jnp.where(seen[:, None], scores, -jnp.inf), -1)
        out = jnp.einsum("nhs,nsd->nhd", attention, values).reshape(TOKENS, -1)
        x = x + out @ w["output"]["weight"].T
        gate, up = jnp.split(norm(x, w["mlp_norm"]) @ w["gate_up"]["weight"].T, 2, -1)
        x = x + (jax.nn.silu(gate) * up) @ w["down"]["weight"].T
    return norm(x, weights["norm"]) @ weights["embed"].T, jnp.stack(new)


@jax.jit
def score(weights, pages, batch, parents, places, ids, key, sampling):
    """Returns one forward pass, and the rule. `places` has the places of each tree's nodes."""
    logits, new = forward(weights, pages, **batch)
    tokens, parents = batch["tokens"][places], parents[places]
    tree = jspec.Tree(tokens, parents, places < TOKENS, DEPTH, WIDTH)
    found = jspec.verify.coupled(
        tree, logits, batch["read"], key=key, row_ids=ids, sampling=sampling, places=places
    )
    return new, found, jspec.verify.tokens(tree, found)


@partial(jax.jit, donate_argnums=0)
def write(pages, new, page, offset):
    """Returns token t goes to slot offset[t] of page page[t]; PAGES: to none."""
    return pages.at[:, :, page, offset].set(new, mode="drop")


@dataclass
class Request:
    id: int  # of its noise
    text: list[int]
    end: int
    read: int = 0  # tokens whose keys and values are in its pages
    block_table: list[int] = field(default_factory=list)


class Engine:
    def __init__(self, weights, key, sampling):
        self.given = weights, key, sampling
        self.pages = jnp.zeros((LAYERS, 2, PAGES, PAGE_SIZE, HEAD_DIM))
        self.free, self.waiting, self.running = list(range(PAGES)), deque(), []
        self.passes = self.preemptions = 0

    def leave(self, request):
        """Takes a request out, and its pages back."""
        self.running.remove(request)
        self.free += request.block_table
        request.block_table, request.read = [], 0

    def schedule(self):
        """Starts requests, and gives each the pages that it may fill next."""
        while self.waiting and len(self.running) < ROWS:
            if len(self.free) * PAGE_SIZE < len(self.waiting[0].text) + NODES:
                break
            self.running.append(self.waiting.popleft())
        for request in list(self.running):
            needed = -(-(request.read + NODES) // PAGE_SIZE)
            while request in self.running and len(request.block_table) < needed:
                if self.free:
                    request.block_table.append(self.free.pop())
                else:  # the youngest is preempted, and reads its text again later
                    self.waiting.appendleft(self.running[-1])
                    self.leave(self.running[-1])
                    self.preemptions += 1

    def step(self):
        """Runs one forward pass: a prompt's part, or a tree, of each running request."""
        self.schedule()
        tokens, parents, rows, offset = np.zeros((4, TOKENS), np.int32)
        page, mask = np.full(TOKENS, PAGES), np.eye(TOKENS, dtype=bool)
        read, ids = np.zeros((2, ROWS), np.int32)
        block_tables, places = np.zeros((ROWS, BLOCKS), np.int32), np.full((ROWS, NODES), TOKENS)
        packed, end = [], 0
        for row, request in enumerate(self.running):
            read[row], ids[row] = request.read, request.id
            block_tables[row, : len(request.block_table)] = request.block_table
            unread = request.text[request.read : -1]
            nodes = [(i - 1, token) for i, token in enumerate(unread)] or draft(request.text)
            room = TOKENS - end - len(self.running[row + 1 :])  # each other one needs a token
            start, nodes = end, nodes[: min(NODES, room)]
            for parent, token in nodes:
                tokens[end], parents[end], rows[end] = token, parent, row
                mask[end] |= mask[start + parent] & (parent >= 0)
                end += 1
            if not unread:
                places[row, : len(nodes)] = range(start, end)
            packed.append((request, start, range(len(nodes)) if unread else None))
        positions = read[rows] + mask.sum(1) - 1
        batch = dict(tokens=tokens, positions=positions, mask=mask, rows=rows, read=read)
        batch["block_tables"] = block_tables
        weights, key, sampling = self.given
        new, found, written = score(weights, self.pages, batch, parents, places, ids, key, sampling)
        paths, counts, written = map(np.asarray, (found.path, found.path_lengths, written))
        for row, (request, start, kept) in enumerate(packed):
            if kept is None:
                kept = paths[row, : counts[row]]
                request.text += written[row, : len(kept)].tolist()
            for node in kept:
                page[start + node] = request.block_table[request.read // PAGE_SIZE]
                offset[start + node] = request.read % PAGE_SIZE
                request.read += 1
            if len(request.text) >= request.end:
                self.leave(request)
        self.pages = write(self.pages, new, page, offset)
        self.passes += 1


def main() -> None:
    """Serves five requests, greedy and sampled, and holds their tokens to those of `decode`."""
    target = models.load("jspec-800k")
    prompts = [
        target.tokenizer.encode(text).ids
        for text in (
            "One day Tom and Tim went to the park. Tom",
            "Question: Tom has 3 apples and buys 4 more. Tom has 3 apples and",
            "The cat sat on the mat. The cat",
            "Lily had a red ball. She liked to play with the red ball. One day, the red",
            "Once upon a time",
        )
    ]
    ids, key, new = [11, 7, 3, 5, 2], jax.random.key(0), 48
    lengths = [len(prompt) for prompt in prompts]
    padded = [prompt + [0] * (max(lengths) - len(prompt)) for prompt in prompts]
    for sampling in (None, jspec.Sampling(temperature=1.0)):
        engine = Engine(target.params["params"], key, sampling)
        requests = [Request(i, [*p], len(p) + new) for i, p in zip(ids, prompts, strict=True)]
        engine.waiting.extend(requests)
        while engine.waiting or engine.running:
            engine.step()
        wanted = jspec.decode(
            target.model, target.params, padded, lengths,
            key=key, row_ids=ids, sampling=sampling, max_new_tokens=new,
        )  # fmt: skip
        for request, length, tokens in zip(requests, lengths, wanted.tokens, strict=True):
            assert request.text[length : length + new] == tokens.tolist()
        print(
            f"{new * len(prompts)} tokens in {engine.passes} forward passes, "
            f"{engine.preemptions} preemptions: the tokens of jspec.decode"
        )


if __name__ == "__main__":
    main()
