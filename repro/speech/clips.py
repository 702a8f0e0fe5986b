"""Synthetic speech: a word is a tone of its own, a sentence a row of words, a set a real `datasets.Dataset`.

numpy and datasets are imported when they are needed: the desk has neither, and knows from here how long a clip is.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from datasets import Dataset

SAMPLING_RATE = 16_000
"""Hz, as Whisper and wav2vec2 expect."""

SECONDS_PER_WORD = 0.1

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def clip(words: tuple[str, ...], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return the sound of some words: float32, shape (samples,), within -1 and 1, with a little noise."""
    import numpy as np

    time = np.arange(int(SAMPLING_RATE * SECONDS_PER_WORD)) / SAMPLING_RATE
    tones = [0.5 * np.sin(2 * np.pi * (200 + 150 * WORDS.index(word)) * time) for word in words]
    sound = np.concatenate(tones)
    return (sound + rng.normal(0, 0.01, sound.shape)).astype(np.float32)


def sentences(size: int, rng: np.random.Generator, shortest: int, longest: int) -> list[tuple[str, ...]]:
    """Draw the sentences of a set: `shortest` to `longest` words each."""
    return [
        tuple(WORDS[index] for index in rng.integers(0, len(WORDS), rng.integers(shortest, longest + 1)))
        for _ in range(size)
    ]


@lru_cache(maxsize=8)
def speech_set(size: int, seed: int = 0, shortest: int = 2, longest: int = 5) -> Dataset:
    """Return a data set of `size` clips with the columns `audio` (list of float) and `sentence` (text).

    Clips have `shortest` to `longest` words, 0.1 s each; equal bounds give clips of equal length. Raises ValueError for
    sizes that make no sense.
    """
    import numpy as np
    from datasets import Dataset, disable_progress_bars

    if size < 1 or not 1 <= shortest <= longest:
        raise ValueError(f"a speech set needs size >= 1, 1 <= shortest <= longest, not {size}, {shortest}, {longest}")

    disable_progress_bars()
    rng = np.random.default_rng(seed)
    drawn = sentences(size, rng, shortest, longest)
    return Dataset.from_dict(
        {"audio": [clip(words, rng).tolist() for words in drawn], "sentence": [" ".join(words) for words in drawn]}
    )
