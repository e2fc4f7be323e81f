"""GRPO in google-tunix with jspec's rollouts: `JspecRollout` is all that is not tunix.

pip install google-tunix
"""

from functools import partial

import jax
import numpy as np
import optax
from flax import nnx
from tunix.models.qwen3 import model as qwen3
from tunix.rl import rl_cluster as rl
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rollout.base_rollout import RolloutConfig

from jspec.integrations.tunix import JspecRollout

CONFIG = qwen3.ModelConfig(
    num_layers=2, vocab_size=64, embed_dim=32, hidden_dim=64, num_heads=4, head_dim=8,
    num_kv_heads=2, rope_theta=10_000, norm_eps=1e-6, use_tied_embedding=True,
)  # fmt: skip


class Letters:
    """A tokenizer: a letter is a token."""

    encode = staticmethod(lambda text: [3 + ord(letter) % 59 for letter in text])
    decode = staticmethod(lambda ids: "".join(chr(64 + token % 60) for token in ids))
    bos_id, eos_id, pad_id = (staticmethod(lambda token=token: token) for token in (1, 2, 0))


def count_vowels(prompts, completions, **_):
    """The reward."""
    return [float(sum(text.count(vowel) for vowel in "AEIOU")) for text in completions]


def cluster(**options) -> rl.RLCluster:
    """Returns tunix's cluster on one device; `options` are those of `JspecRollout`."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    config = rl.ClusterConfig(
        role_to_mesh=dict.fromkeys((rl.Role.ACTOR, rl.Role.REFERENCE, rl.Role.ROLLOUT), mesh),
        rollout_engine=partial(JspecRollout, **options),
        training_config=rl.RLTrainingConfig(
            actor_optimizer=optax.adam(1e-3), eval_every_n_steps=1000, max_steps=3,
            mini_batch_size=2,
        ),
        rollout_config=RolloutConfig(
            max_tokens_to_generate=24, max_prompt_length=16, temperature=0.9, top_k=8,
            return_logprobs=True,
        ),
    )  # fmt: skip
    actor, reference = (qwen3.Qwen3(CONFIG, rngs=nnx.Rngs(0)) for _ in range(2))
    return rl.RLCluster(
        actor=actor, reference=reference, tokenizer=Letters(), cluster_config=config
    )


def train(made: rl.RLCluster, rollouts: int) -> None:
    algorithm = GRPOConfig(num_generations=4, beta=0.04)
    learner = GRPOLearner(rl_cluster=made, reward_fns=count_vowels, algo_config=algorithm)
    learner.train([{"prompts": np.array(["hello", "abc"])} for _ in range(rollouts)])


def main() -> None:
    made = cluster(method="auto")
    generate = made.rollout.generate

    def shown(prompts, config):
        answers = generate(prompts, config)
        reward = np.mean(count_vowels(prompts, answers.text))
        print(f"{len(prompts)} answers, {reward:.2f} vowels each, such as {answers.text[0]}")
        return answers

    made.rollout.generate = shown
    train(made, rollouts=3)


if __name__ == "__main__":
    main()
