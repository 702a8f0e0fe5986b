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
    """Clips of the given lengths in samples, with labels of one length or of one each."""

    def __init__(self, samples: tuple[int, ...], labels: int | tuple[int, ...] = LABELS) -> None:
        self._samples = samples
        self._labels = labels if isinstance(labels, tuple) else (labels,) * len(samples)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        wave = torch.sin(torch.arange(self._samples[index]) * (0.01 + 0.001 * index))
        return {"input_values": wave, "labels": torch.arange(self._labels[index]) % 9 + 1}


def collate(clips: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    pad = torch.nn.utils.rnn.pad_sequence
    waves = pad([clip["input_values"] for clip in clips], batch_first=True)
    return {"input_values": waves, "labels": pad([clip["labels"] for clip in clips], True, padding_value=-100)}


def collate_with_mask(clips: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    lengths = torch.tensor([len(clip["input_values"]) for clip in clips])
    batch = collate(clips)
    within = torch.arange(batch["input_values"].shape[1]) < lengths[:, None]
    return {**batch, "attention_mask": within.to(torch.int32)}


def model(
    *,
    vocabulary: int = 32,
    hidden: int = 32,
    layers: int = 2,
    intermediate: int = 64,
    channels: int = 16,
    norm: str = "group",
) -> Any:
    torch.manual_seed(0)
    config = Wav2Vec2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=intermediate,
        conv_dim=(channels,) * 7,
        feat_extract_norm=norm,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        pad_token_id=0,
        ctc_zero_infinity=True,
        mask_time_prob=0.0,
        layerdrop=0.0,
    )
    return Wav2Vec2ForCTC(config)


def _take(keeps: str) -> Any:
    if keeps == "argmax":
        return lambda logits, _: logits.argmax(-1)
    return (lambda logits, labels: (logits.argmax(-1), labels)) if keeps == "argmax and labels" else None


def trainer(
    net: Any,
    samples: tuple[int, ...],
    to: Path,
    *,
    keeps: str = "logits",
    batch: int = 2,
    labels: int | tuple[int, ...] = LABELS,
    mask: bool = False,
    **settings: Any,
) -> Any:
    """Make a Trainer that trains on and evaluates clips. `keeps` as in `repro.memory.evaluation_law.Evaluation`."""
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
        train_dataset=Clips(samples, labels),
        eval_dataset=Clips(samples, labels),
        data_collator=collate_with_mask if mask else collate,
        compute_metrics=None if keeps == "nothing" else (lambda given: {"clips": float(len(given.predictions))}),
        preprocess_logits_for_metrics=_take(keeps),
    )


def quietly(run: Callable[[], Any]) -> Any:
    """Run something without what a Trainer prints."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run()
