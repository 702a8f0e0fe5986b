"""The metric of the reports: the word error rate."""

from __future__ import annotations


def word_error_rate(references: list[str], hypotheses: list[str]) -> float:
    """Return the word error rate in percent, as fine-tuning scripts report it (jiwer's, times 100)."""
    import jiwer

    return 100.0 * float(jiwer.wer(references, hypotheses))
