"""A live Trainer as a subject: its model without its numbers, batches as long as its longest data (cell tier)."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from repro.forecast.published import RANDOM_LAYERS, enable_checkpointing, freeze_encoder
from repro.forecast.setting import Setting
from repro.forecast.work import NotForecastableError, Session, Tell

LOOKED_AT = 16
"""Examples of a data set that are read, spread over it, to find the longest."""
_OPTIMIZERS = {
    "adamw_torch": "adamw_torch",
    "adamw_torch_fused": "adamw_torch_fused",
    "adamw_hf": "adamw_torch_single",
    "sgd": "sgd",
}


def session_of(trainer: Any, *, tell: Tell | None = None) -> Session:
    """Return a session for a live Trainer, which is only read. Raises NotForecastableError when it has no data."""
    return Session(Live(trainer), tell=tell)


def setting_of(trainer: Any, **changes: Any) -> Setting:
    """Read the setting of a Trainer off its arguments, with some fields changed. Raises ValueError for nonsense."""
    if "seconds" in changes:
        raise ValueError("the clips of a live Trainer are as long as its data; seconds cannot be set for it")
    args = trainer.args
    live = Live(trainer)
    found: dict[str, Any] = {
        "batch": args.per_device_train_batch_size,
        "eval_batch": args.per_device_eval_batch_size,
        "accumulation": args.gradient_accumulation_steps,
        "labels": live.longest_label(),
        "precision": _precision(trainer),
        "attention": "eager" if getattr(trainer.model.config, "_attn_implementation", "eager") == "eager" else "sdpa",
        "checkpointing": live.checkpointing(),
        "optimizer": _OPTIMIZERS.get(_value(args.optim), "adamw_torch"),
        "examples": _length(trainer.eval_dataset),
        "keep": _keep(trainer),
        "eval_accumulation": args.eval_accumulation_steps or 0,
        "concatenate": getattr(args, "eval_do_concat_batches", True),
        "generate": _generated(trainer),
    }
    return Setting(**found | changes)


class Live:
    """Copies the model of a Trainer without its numbers, and makes batches of the shape that its collator gives."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.name = type(trainer.model).__name__
        self._shapes: dict[bool, dict[str, tuple[tuple[int, ...], torch.dtype]]] = {}
        self.notes = _notes(trainer)

    def model(self, setting: Setting) -> Any:
        """Copy the model, and give the copy what the setting says differently."""
        model = self._copy()
        for module in model.modules():
            for owner, name in itertools.product((module, getattr(module, "config", None)), RANDOM_LAYERS):
                if hasattr(owner, name):
                    setattr(owner, name, 0.0)
        model.config.apply_spec_augment = False
        self._set_attention(model, setting)
        if setting.precision == "bf16-weights":
            model = model.to(torch.bfloat16)
        if setting.freeze_encoder:
            freeze_encoder(model)
        if setting.checkpointing != "off":
            enable_checkpointing(model, setting)
        elif getattr(model, "is_gradient_checkpointing", False):
            model.gradient_checkpointing_disable()
        return model

    def inputs(self, setting: Setting, size: int, training: bool) -> dict[str, torch.Tensor]:
        """Return a batch whose examples are all as long as the longest one looked at."""
        labels = self._label_names()
        batch = {}
        for name, (shape, dtype) in self._shapes_of(training).items():
            length = (setting.labels, *shape[1:]) if name in labels and len(shape) == 1 else shape
            floating = dtype.is_floating_point and setting.precision == "bf16-weights"
            made = torch.ones if name == "attention_mask" else torch.zeros
            batch[name] = made((size, *length), dtype=torch.bfloat16 if floating else dtype)
        return batch

    def labels_of(self, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Return the inputs that the Trainer takes for labels."""
        return [inputs[name] for name in self._label_names() if name in inputs]

    def kept(self, outputs: Any, labels: Any, setting: Setting) -> Any:
        """Return the outputs, after the Trainer's own preprocessing when it has one."""
        if setting.keep != "argmax":
            return outputs
        single = outputs[0] if len(outputs) == 1 else outputs
        preprocess = self.trainer.preprocess_logits_for_metrics
        if preprocess is None:
            return outputs[0].argmax(-1)
        return preprocess(single, labels[0] if len(labels) == 1 else tuple(labels))

    def longest_label(self) -> int:
        """Return the length of the longest label sequence looked at, at least 1."""
        shapes = [self._shapes_of(training) for training in (True, False)]
        return max([shape[0] for each in shapes for name in self._label_names() if (shape := each[name][0])], default=1)

    def checkpointing(self) -> str:
        """Tell whether the run will checkpoint, and whether reentrantly, as this release takes what is unset."""
        args, model = self.trainer.args, self.trainer.model
        wanted = any(getattr(args, name, False) for name in ("gradient_checkpointing", "activation_checkpointing"))
        if not wanted and not getattr(model, "is_gradient_checkpointing", False):
            return "off"
        names = ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs")
        given = next((value for name in names if (value := getattr(args, name, None))), None)
        with FakeTensorMode(allow_non_fake_inputs=True):
            probe = self._copy()
            if wanted:
                probe.gradient_checkpointing_enable(**({"gradient_checkpointing_kwargs": given} if given else {}))
        functions = [f for m in probe.modules() if (f := getattr(m, "_gradient_checkpointing_func", None)) is not None]
        reentrant = all(getattr(function, "keywords", {}).get("use_reentrant", True) for function in functions)
        return "reentrant" if reentrant else "on"

    def _copy(self) -> Any:
        source = self.trainer.model
        memo: dict[int, Any] = {}
        for parameter in source.parameters():
            empty = torch.empty_strided(parameter.shape, parameter.stride(), dtype=parameter.dtype)
            memo[id(parameter)] = torch.nn.Parameter(empty, requires_grad=parameter.requires_grad)
        for buffer in source.buffers():
            memo[id(buffer)] = torch.empty_strided(buffer.shape, buffer.stride(), dtype=buffer.dtype)
        model = copy.deepcopy(source, memo)
        # What accelerate wraps around `forward` for mixed precision still calls the model it was made for.
        for name in ("forward", "_original_forward"):
            vars(model).pop(name, None)
        return model

    def _set_attention(self, model: Any, setting: Setting) -> None:
        if setting.attention == getattr(model.config, "_attn_implementation", "eager"):
            return
        if not hasattr(model, "set_attn_implementation"):
            raise NotForecastableError(
                f"the attention of a live {self.name} cannot be changed in this release; build it with "
                f"attn_implementation={setting.attention!r}"
            )
        model.set_attn_implementation(setting.attention)

    def _label_names(self) -> Sequence[str]:
        names = getattr(self.trainer, "label_names", None) or ["labels"]
        return tuple(names)

    def _shapes_of(self, training: bool) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return shape (without the batch) and type of each input: along each dimension the longest seen."""
        if training not in self._shapes:
            trainer = self.trainer
            which = trainer.train_dataset if training else trainer.eval_dataset
            dataset = which if which is not None else trainer.train_dataset
            if isinstance(dataset, Mapping):
                dataset = max(dataset.values(), key=_length)
            if dataset is None:
                raise NotForecastableError("the Trainer has no data set to take the shape of a batch from")
            collate = trainer._get_collator_with_removed_columns(trainer.data_collator)
            shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
            for row in _spread(dataset):
                for name, value in collate([row]).items():
                    if isinstance(value, torch.Tensor) and value.dim():
                        old = shapes.get(name, (value.shape[1:], value.dtype))[0]
                        longest = tuple(max(pair) for pair in zip(old, value.shape[1:], strict=True))
                        shapes[name] = longest, value.dtype
            self._shapes[training] = shapes
        return self._shapes[training]


def _spread(dataset: Any) -> Iterable[Any]:
    if not hasattr(dataset, "__len__"):
        return list(itertools.islice(iter(dataset), LOOKED_AT))
    count = len(dataset)
    return [dataset[index] for index in sorted({count * n // LOOKED_AT for n in range(LOOKED_AT)} & set(range(count)))]


def _length(dataset: Any) -> int:
    if isinstance(dataset, Mapping):
        return max(map(_length, dataset.values()))
    return max(1, len(dataset)) if hasattr(dataset, "__len__") else 1


def _value(option: Any) -> str:
    return str(getattr(option, "value", option))


def _precision(trainer: Any) -> str:
    if trainer.args.bf16 or trainer.args.fp16:
        return "bf16" if trainer.args.bf16 else "fp16"
    types = {parameter.dtype for parameter in trainer.model.parameters()}
    return "bf16-weights" if types == {torch.bfloat16} else "fp32"


def _keep(trainer: Any) -> str:
    if trainer.compute_metrics is None or trainer.args.prediction_loss_only:
        return "nothing"
    if getattr(trainer.args, "batch_eval_metrics", False):
        return "batch"
    return "argmax" if trainer.preprocess_logits_for_metrics is not None else "outputs"


def _generated(trainer: Any) -> int:
    if not getattr(trainer.args, "predict_with_generate", False):
        return 0
    settings = getattr(trainer.model, "generation_config", None)
    lengths = (trainer.args.generation_max_length, getattr(settings, "max_length", None), 20)
    return next(int(length) for length in lengths if length)


def _notes(trainer: Any) -> tuple[str, ...]:
    """Say what of this Trainer the forecast does not follow."""
    notes = []
    option = _value(trainer.args.optim)
    if option not in _OPTIMIZERS:
        notes.append(f"the optimizer {option} is counted as adamw_torch")
    own = {
        name for kind in type(trainer).__mro__ if not kind.__module__.startswith("transformers") for name in vars(kind)
    }
    changed = sorted(own & {"compute_loss", "training_step", "prediction_step", "evaluation_loop"})
    if changed:
        notes.append(f"{type(trainer).__name__} has its own {', '.join(changed)}, which is not followed")
    if isinstance(trainer.eval_dataset, Mapping):
        notes.append("of several evaluation sets the largest is counted")
    return tuple(notes)
