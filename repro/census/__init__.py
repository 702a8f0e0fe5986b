"""The census: which models of the installed transformers lose or break gradients under gradient checkpointing.

Cell tier (no desk package is imported there): `families` finds the model families, `shrink`, `recipes`, `inputs` and
`corrections` make a tiny model and something to feed it, `passage` looks at what is passed to the checkpoint function,
`trial` runs one class and yields facts, `worker` is the process that does so, `supervisor` keeps it within limits,
`items` are the pytest items that drive it.
Desk tier: `desk` starts pytest and reads back, `compare` holds two releases against each other.
Both: `verdicts`, pure functions from stored facts to a verdict.
"""
