"""Before a run: looks at a live Trainer and warns of the known failures that it is about to hit.

Works with every release of the suite, touches nothing of the trainer, and leaves the random state as it was.
"""
