"""Processors from their definitions, and token-by-token decoding with them.

A processor is a function of the logits [V] of one position, the prompt and the output before it,
both lists of tokens. What is forbidden has -inf.
"""

import numpy as np


def repetition_penalty(logits, prompt, output, penalty):
    """CTRL (Keskar et al. 2019, 4.1) punishes the tokens of the text, prompt and output.

    A positive logit is divided by the penalty. A negative one is multiplied with it, so that it is
    punished and not rewarded, as `transformers` does.
    """
    changed = np.array(logits, np.float64)
    for token in set(prompt) | set(output):
        changed[token] *= 1 / penalty if changed[token] > 0 else penalty
    return changed


def frequency_penalty(logits, prompt, output, penalty):
    """The OpenAI API's: mu[j] - c[j] * alpha_frequency, c[j] = how often j was sampled before."""
    changed = np.array(logits, np.float64)
    for token in output:
        changed[token] -= penalty
    return changed


def presence_penalty(logits, prompt, output, penalty):
    """The OpenAI API's: mu[j] - (c[j] > 0) * alpha_presence."""
    changed = np.array(logits, np.float64)
    for token in set(output):
        changed[token] -= penalty
    return changed


def logit_bias(logits, prompt, output, bias):
    """Adds `bias[token]`."""
    changed = np.array(logits, np.float64)
    for token, value in bias.items():
        changed[token] += value
    return changed


def min_tokens(logits, prompt, output, count, ends):
    """No end token while fewer than `count` tokens are there."""
    changed = np.array(logits, np.float64)
    if len(output) < count:
        changed[list(ends)] = -np.inf
    return changed


def banned_tokens(logits, prompt, output, tokens):
    """Bans these tokens."""
    changed = np.array(logits, np.float64)
    changed[list(tokens)] = -np.inf
    return changed


def banned_sequences(logits, prompt, output, sequences):
    """Never the last token of a sequence behind all tokens before it."""
    changed, text = np.array(logits, np.float64), [*prompt, *output]
    for sequence in sequences:
        size = len(sequence) - 1
        if size == 0 or text[-size:] == list(sequence[:-1]):
            changed[sequence[-1]] = -np.inf
    return changed


def plain(next_logits, process, choose, prompt, limit, ends=()):
    """Plain decoding: the output, and whether no token was left to choose.

    Args:
      next_logits: called with a list of tokens, gives the logits [V] of the token that follows.
      process: called with (logits, prompt, output), gives logits.
      choose: called with (logits, position of the last token), gives a token.
      prompt: list of tokens, not empty.
      limit: how many tokens may be emitted.
      ends: the first of these that is emitted is the last token.
    """
    output = []
    while len(output) < limit and not (output and output[-1] in ends):
        logits = process(np.asarray(next_logits([*prompt, *output]), np.float64), prompt, output)
        if np.isneginf(logits).all():
            return output, True
        output.append(int(choose(logits, len(prompt) + len(output) - 1)))
    return output, False


def grammar(logits, output, tokens, texts, ends):
    """Only tokens after which one of the `texts` can still come, all of them bytes; an end token
    only where the output is one of them.

    Args:
      logits: [V].
      output: tokens.
      tokens: the bytes of each token, None where it has none.
      texts: a set, from which every prefix can be gone on with tokens.
      ends: end tokens.
    """
    written = b"".join(tokens[token] or b"" for token in output)
    changed = np.full(len(logits), -np.inf)
    for token, text in enumerate(tokens):
        if text and any(whole.startswith(written + text) for whole in texts):
            changed[token] = logits[token]
    for token in ends:
        changed[token] = logits[token] if written in texts else -np.inf
    return changed
