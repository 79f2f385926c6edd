"""What the verifiers of verify.py are made of: `shared` has what all of them use (the acceptance probability, the
residual, verdicts and guards), `block_verify` is the rule that judges a whole block by its joint ratio."""
