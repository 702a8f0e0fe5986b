"""Device memory, metered to the byte: with a GPU, and without one.

`meter` is the interface; see its module for how to use it. `report` and `budgets` and `laws` need no torch.
"""
