"""Speed of plain decoding, of every method by class of prompt, and of several devices."""
