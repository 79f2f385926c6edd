"""Sampling that depends on the prefix: penalties, biases, bad words, and constraints.

    prefix       what they do to logits, each position of a draft by its own prefix
    automaton    a regular expression as an automaton over the tokens of a vocabulary
    drafts       the same for the tokens of a draft
    constraint   the automaton that a request asks for: ours, or a library's

SamplingParams says what a request asks for; `generate.Decoder` applies it to the logits of plain decoding, and
`verify.judge` to those of a verify pass.
"""
