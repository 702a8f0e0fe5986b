"""A tiny wav2vec2 CTC model under a real Trainer: what laws and speed are measured on."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, Wav2Vec2Config, Wav2Vec2ForCTC

LABELS = 5


class Clips(Dataset[dict[str, torch.Tensor]]):
    """Clips of the given lengths in samples, all with labels of one length."""

    def __init__(self, samples: tuple[int, ...]) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        wave = torch.sin(torch.arange(self._samples[index]) * (0.01 + 0.001 * index))
        return {"input_values": wave, "labels": torch.arange(1, LABELS + 1)}


def collate(clips: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    waves = torch.nn.utils.rnn.pad_sequence([clip["input_values"] for clip in clips], batch_first=True)
    return {"input_values": waves, "labels": torch.stack([clip["labels"] for clip in clips])}


def model(
    *, vocabulary: int = 32, hidden: int = 32, layers: int = 2, intermediate: int = 64, channels: int = 16
) -> Any:
    torch.manual_seed(0)
    config = Wav2Vec2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=intermediate,
        conv_dim=(channels,) * 7,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        pad_token_id=0,
        ctc_zero_infinity=True,
        mask_time_prob=0.0,
        layerdrop=0.0,
    )
    return Wav2Vec2ForCTC(config)


def trainer(
    net: Any, samples: tuple[int, ...], to: Path, *, keeps: str = "logits", batch: int = 2, **settings: Any
) -> Any:
    """Make a Trainer that trains on and evaluates these clips. `keeps` as in `repro.memory.laws.Evaluation`."""
    arguments = TrainingArguments(
        output_dir=str(to),
        per_device_train_batch_size=batch,
        per_device_eval_batch_size=batch,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        **settings,
    )
    return Trainer(
        model=net,
        args=arguments,
        train_dataset=Clips(samples),
        eval_dataset=Clips(samples),
        data_collator=collate,
        compute_metrics=None if keeps == "nothing" else (lambda given: {"clips": float(len(given.predictions))}),
        preprocess_logits_for_metrics=(lambda logits, _: logits.argmax(-1)) if keeps == "argmax" else None,
    )


def quietly(run: Callable[[], Any]) -> Any:
    """Run something without what a Trainer prints."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run()
