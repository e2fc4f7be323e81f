"""Whether drafted decoding is lossless for one model, one drafter and one setting, and how sure."""
