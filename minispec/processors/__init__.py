"""Sampling that depends on the prefix: penalties, biases and constraints. `generate.choose` applies it to
the logits of plain decoding, `verify.judge` to those of a verify pass."""
