"""The decoding of SkyRL tx, in place of its own loop: `pip install 'skyrl[jax]'`.

Qwen3ForCausalLM._prefill_and_decode = JspecDecoder()
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jspec import methods, models, processors
from jspec._validate.errors import InputError
from jspec.decoding import decode
from jspec.models.function import Seen
from jspec.protocols import Drafter
from jspec.types import PyTree, Sampling, Status, Stopping

if find_spec("skyrl") is None:
    raise InputError(
        "jspec.integrations.skyrl needs skyrl, which is not installed; pip install 'skyrl[jax]'"
    )

from skyrl.tx.utils.generator import KVCache

_MODELS = ("llama3", "qwen3")
"""The modules of `skyrl.tx.models` whose memory is keys and values alone."""


class JspecDecoder:
    """The decoding loop of SkyRL tx's models, as `GeneratorMixin._prefill_and_decode`.

    Greedy answers are those of tx's own loop. Sampled ones have its distribution and noise of their
    own, which depends on a row's seed and the position alone. Log-probabilities are the model's,
    without temperature and filters, as tx has them. Each row may have an adapter. Other weights,
    adapters, temperatures, filters and seeds compile nothing.

    Args:
        method: one of `jspec.methods.names()`.
        drafter: in place of a method, a drafter of your own.
        options: of the method, as in `jspec.LLM`.

    Raises:
        InputError: when `generate` is called: if the model has another memory or attention than
            Llama 3 and Qwen3, or as `jspec.LLM`.
    """

    def __init__(
        self, method: str = methods.DEFAULT, *, drafter: Drafter | None = None, **options: Any
    ):
        self._options = dict(method=method, drafter=drafter, **options)
        self._model: models.FunctionModel | None = None
        self._drafting: dict[str, Any] = {}

    def __call__(
        self, model: Any, input_ids: Any, attention_mask: Any, max_length: int,
        max_new_tokens: int, adapter_indices: Any, temperatures: Any, rngs: Any, stop_tokens: Any,
        top_k_values: Any, top_p_values: Any, max_top_k: int, use_top_p: bool,
        prompt_logprobs: bool = False,
    ) -> tuple[Any, Any, Any, Any]:  # fmt: skip
        del max_length, max_top_k, use_top_p
        graph, state = nnx.split(model)
        params = nnx.to_pure_dict(state), _layers(model), adapter_indices
        if self._model is None or self._model.forward.graph != graph:
            home, config = type(model).__module__.rpartition(".")[2], model.config
            if home not in _MODELS:
                raise InputError(
                    f"{type(model).__name__} has another memory or attention than keys and values "
                    "with a mask; use a model of Llama 3 or Qwen3, or tx's own loop"
                )
            self._model = models.FunctionModel(
                _Forward(graph),
                vocab_size=config.vocab_size,
                num_layers=config.num_hidden_layers,
                num_kv_heads=config.num_key_value_heads,
                head_dim=getattr(config, "head_dim", None)
                or config.hidden_size // config.num_attention_heads,
                dtype=jax.tree.leaves(params[0])[0].dtype,
            )
            # Without these weights, which would stay in memory.
            target = models.Loaded(self._model, params)
            self._drafting = methods.LLM(target, **self._options).drafting
        # The backend fills batches up with empty rows, whose answers nobody reads.
        lengths = jnp.maximum(attention_mask.sum(1), 1)
        result = decode(
            self._model, params, input_ids, lengths, **self._drafting,
            max_new_tokens=max_new_tokens,
            stopping=Stopping(eos=(), stop_token_ids=stop_tokens if stop_tokens.size else None),
            sampling=Sampling(temperatures, jnp.maximum(top_k_values, 0), top_p_values),
            key=0,
            row_ids=np.asarray(rngs)[:, -1] & 0x7FFFFFFF,  # PRNGKey(seed) ends with the seed
            processors=processors.logprobs(0, "raw_logprobs"),
        )  # fmt: skip
        result.raise_if_failed()
        stops = jnp.where(result.status == Status.STOP, result.lengths, -1)
        prompts = None
        if prompt_logprobs:
            prompts = _prompt_logprobs(model, input_ids, attention_mask, adapter_indices)
        return result.tokens, result.logprobs.token_logprobs, stops, prompts


@dataclass(frozen=True)
class _Forward:
    """The forward pass of a model of tx, from its arrays and the rows' adapters."""

    graph: nnx.GraphDef

    def __hash__(self) -> int:
        return hash(type(self))  # a configuration in the graph has no hash

    def __call__(self, params: PyTree, tokens: Any, positions: Any, mask: Any, seen: Seen) -> Any:
        state, layers, adapters = params
        model = nnx.merge(self.graph, state)
        caches = ([layer.swapaxes(1, 2) for layer in part] for part in seen)
        cache = KVCache(*caches, cache_position=positions[:, 0])
        with _trees(sys.modules[type(model).__module__]):
            output = model(
                tokens, attention_mask=mask, positions=positions, kv_cache=cache,
                adapter_indices=adapters, decode_layers=layers,
            )  # fmt: skip
        before = seen.keys[0].shape[2]
        logits = model.compute_logits(output.last_hidden_state, adapters)
        new = output.kv_cache.keys, output.kv_cache.values
        return logits, *(tuple(layer[:, before:].swapaxes(1, 2) for layer in part) for part in new)


@contextmanager
def _trees(module: Any) -> Iterator[None]:
    """Lets the models attend by a mask for each query while a call is traced.

    Their own attention takes one mask for all queries, and on a GPU lengths alone.
    """
    originals = module.dot_product_attention, KVCache.update_layer
    module.dot_product_attention = _attend
    KVCache.update_layer = staticmethod(_append)
    try:
        yield
    finally:
        module.dot_product_attention = originals[0]
        KVCache.update_layer = staticmethod(originals[1])


def _attend(q: Any, k: Any, v: Any, mask: Any, is_causal: bool, head_dim: int) -> Any:
    del is_causal
    return jax.nn.dot_product_attention(q, k, v, mask=mask[:, None], scale=head_dim**-0.5)


def _append(cache: Any, k: Any, v: Any, positions: Any) -> Any:
    """Returns keys and values behind those of the cache, as the mask of a call has them."""
    del positions
    return tuple(jnp.concatenate(pair, axis=1) for pair in zip(cache, (k, v), strict=True))


@jax.jit
def _layers(model: Any) -> PyTree:
    """Returns the layers one by one: slices of a stack would be made in each round."""
    return model.get_decode_layers()


@jax.jit
def _prompt_logprobs(model: Any, tokens: Any, mask: Any, adapters: Any) -> Any:
    hidden = model(tokens, attention_mask=mask, adapter_indices=adapters).last_hidden_state
    return model.compute_logprobs(hidden[:, :-1], tokens[:, 1:], adapters)
