"""How fast: plain decoding, every method by class of prompt, several devices."""
