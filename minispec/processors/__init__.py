"""Sampling that depends on the prefix: penalties, biases, bad words, and constraints.

    prefix       what they do to logits, each position of a draft by its own prefix
    drafts       the same for the tokens of a draft
    constraint   which tokens a list of choices, a regular expression or a JSON schema allows

SamplingParams says what a request asks for; `generate.choose` applies it to the logits of plain decoding, and
`verify.judge` to those of a verify pass.
"""
