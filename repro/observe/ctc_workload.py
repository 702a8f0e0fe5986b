"""How large the runs of a callback that evaluates are: on the emulated device, and on CUDA. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from repro.memory.evaluation_law import Wav2Vec2Sizes
from repro.speech.clips import SAMPLING_RATE, SECONDS_PER_WORD, WORDS, sentences

SAMPLES_PER_WORD = round(SECONDS_PER_WORD * SAMPLING_RATE)


@dataclass(frozen=True)
class Workload:
    """How large a run is: examples per set and per training batch, words per clip, layers and width of the model.

    `widening` is how many times wider the logits are than the factor `vocabulary` says: bytes of logits are had without
    more sound.
    """

    train_set: int
    small_set: int
    train_batch: int
    words: int
    layers: int
    width: int
    steps: int = 5
    widening: int = 1

    def __post_init__(self) -> None:
        """Raise ValueError for sizes that no run can have."""
        if min(vars(self).values()) <= 0:
            raise ValueError(f"every size of a run must be positive: {self}")
        if self.small_set > self.train_set:
            raise ValueError(f"a part of {self.small_set} examples is more than the training set has: {self}")

    def lengths(self, lengths: str) -> tuple[int, int]:
        """Return the words of the shortest and of the longest clip; ragged ones are as long on average, or longer."""
        return (1, 2 * self.words) if lengths == "ragged" else (self.words, self.words)

    def longest(self, lengths: str) -> tuple[int, int]:
        """Return the samples, and the characters of the labels, of the longest clip that there can be."""
        words = self.lengths(lengths)[1]
        return words * SAMPLES_PER_WORD, words * max(map(len, WORDS)) + words - 1

    def clips(self, lengths: str, examples: int, seed: int = 0) -> Iterator[tuple[int, int]]:
        """Yield the samples and the characters of each clip of a set; of clips of one length, the most there can be.

        Raises ImportError for ragged clips without numpy, which draws them.
        """
        if lengths == "equal":
            for _ in range(examples):
                yield self.longest(lengths)
            return
        import numpy as np

        for words in sentences(examples, np.random.default_rng(seed), *self.lengths(lengths)):
            yield len(words) * SAMPLES_PER_WORD, len(" ".join(words))

    def sizes(self, vocabulary: int) -> Wav2Vec2Sizes:
        """Return the sizes of the model as `repro.speech.wav2vec2.build` makes it, for a level of the factor."""
        return Wav2Vec2Sizes(
            vocabulary=self.widening * vocabulary,
            hidden=self.width,
            layers=self.layers,
            intermediate=2 * self.width,
            channels=(8, 8),
            kernels=(10, 8),
            strides=(10, 8),
            position_kernel=16,
            position_groups=2,
            # SpecAugment is switched off by another argument, and leaves its parameter.
            masks=True,
            norm="layer",
        )


EMULATED = Workload(train_set=480, small_set=8, train_batch=16, words=2, layers=1, width=16)
"""Small, for its arithmetic is a CPU's, and bytes are exact at any size. Sixty evaluation batches of eight."""
ON_CUDA = Workload(train_set=1920, small_set=64, train_batch=64, words=2, layers=1, width=16, widening=32)
"""The same model with logits of 32 KiB a frame. By its law training takes 340 MB and the reported run 5 GB, so that a
cap between them is clear of both, of a workspace of 32 MiB and of allocator segments of 20 MiB; a test derives that."""
