"""`jspec bench`: methods on the user's own model and prompts, in turn with plain decoding.

Its pieces serve any bench: `questions` reads and chooses prompts, `timing` takes turns, `ledger`
keeps rows, `statistics` sums them up.
"""
