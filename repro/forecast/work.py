"""Runs a training step and an evaluation batch on fake tensors, and keeps the logs (cell tier).

A `Subject` is what is forecast: a published size (`published`) or a live Trainer (`trainer`). A `Session` runs it under
the settings it is asked for, once per setting that makes a difference, and answers the rest from the logs.
"""

from __future__ import annotations

import functools
import gc
import itertools
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from repro.forecast import kernels
from repro.forecast.book import Book
from repro.forecast.evaluation import EvaluationPeak, ForwardPass, Output, evaluate
from repro.forecast.result import Forecast
from repro.forecast.setting import Setting
from repro.forecast.timeline import Bytes, Log, Peak, peak, scaled

Tell = Callable[[str], None]
"""Takes a line about how things are going."""
NO_GENERATION = "generation itself, with its key and value cache, is not counted, only the tokens that are kept"
TOKEN_BYTES = 8
"""Tokens are int64."""


class NotForecastableError(Exception):
    """A model that cannot be built or run on fake tensors here; the message says why and what to do."""


class Subject(Protocol):
    """What is forecast. Its methods are called with fake tensors switched on."""

    name: str
    notes: tuple[str, ...]

    def model(self, setting: Setting) -> Any:
        """Return the model with the attention, checkpointing, weights' precision and frozen parts of a setting."""

    def inputs(self, setting: Setting, size: int, training: bool) -> dict[str, torch.Tensor]:
        """Return a batch of so many examples, on the device."""

    def labels_of(self, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Return those inputs that evaluation keeps as labels."""

    def kept(self, outputs: Any, labels: Any, setting: Setting) -> Any:
        """Return what evaluation keeps of a batch's outputs, without preprocessing: `outputs` themselves."""


@dataclass(frozen=True)
class _Evaluation:
    log: Log
    outputs: Mapping[str, tuple[Output, ...]]
    label_row_bytes: int


@dataclass
class _Runs:
    """What was run of one subject under one setting, by batch size."""

    parameters: int = 0
    training: dict[int, Log] = field(default_factory=dict)
    evaluation: dict[int, _Evaluation] = field(default_factory=dict)

    def evaluation_logs(self) -> dict[int, Log]:
        return {size: run.log for size, run in self.evaluation.items()}


class Session:
    """Forecasts one subject under many settings. Logs are kept, so that what only changes arithmetic costs nothing."""

    def __init__(self, subject: Subject, tell: Tell | None = None) -> None:
        self.subject = subject
        self._tell = tell or (lambda _: None)
        self._runs: dict[Setting, _Runs] = {}

    def forecast(self, setting: Setting) -> Forecast:
        """Return the forecast of one setting. Raises NotForecastableError."""
        size = min(setting.evaluation_batch, setting.examples)
        runs = self._run(setting, {setting.batch}, {size, setting.examples % size} - {0})
        return Forecast(
            model=self.subject.name,
            setting=setting,
            parameters=runs.parameters,
            training=_training_peak(runs, setting.batch),
            evaluation=_evaluation_peak(runs, setting, size),
            notes=(*self.subject.notes, *((NO_GENERATION,) if setting.generate else ())),
        )

    def prepare_batches(self, setting: Setting) -> None:
        """Run a second size of batch, after which every size is arithmetic. Raises NotForecastableError."""
        self._run(setting, {setting.batch, 2 * setting.batch}, {setting.evaluation_batch, 2 * setting.evaluation_batch})

    def _run(self, setting: Setting, training: set[int], evaluation: set[int]) -> _Runs:
        """Make sure that the logs of these batch sizes are there, or two from which they follow."""
        plain = {"batch": 1, "eval_batch": 1, "examples": 1, "eval_accumulation": 0, "concatenate": True, "generate": 0}
        key = setting.but(**plain, keep="outputs")
        runs = self._runs.setdefault(key, _Runs())
        training = {size for size in training if _at(runs.training, size) is None}
        evaluation = {size for size in evaluation if _at(runs.evaluation_logs(), size) is None}
        if training or evaluation:
            try:
                with _on_fake_tensors(setting) as book:
                    self._trace(book, setting, runs, sorted(training), sorted(evaluation, reverse=True))
            except (NotForecastableError, MemoryError):
                raise
            except Exception as error:
                raise NotForecastableError(
                    f"{self.subject.name} does not run on fake tensors with {_describe(setting)}: "
                    f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
                ) from error
        return runs

    def _trace(self, book: Book, setting: Setting, runs: _Runs, training: list[int], evaluation: list[int]) -> None:
        subject = self.subject
        self._tell(f"building {subject.name} without its weights ({_describe(setting)})")
        model = subject.model(setting)
        parameters = list(model.parameters())
        runs.parameters = sum(parameter.numel() for parameter in parameters)
        book.label([*parameters, *model.buffers()], "parameters")
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(lambda p: book.label([p.grad], "gradients"))
        optimizer = _optimizer(trained, setting)
        _give_state(optimizer, trained, book)
        for size in training:
            self._tell(f"one training step on fake tensors, batch {size}")
            runs.training[size] = self._training_step(book, model, optimizer, trained, setting, size)
        for size in evaluation:
            self._tell(f"one evaluation batch on fake tensors, batch {size}")
            runs.evaluation[size] = self._evaluation_batch(book, model, setting, size)

    def _training_step(
        self, book: Book, model: Any, optimizer: Any, trained: list[Any], setting: Setting, size: int
    ) -> Log:
        """Log one optimizer step after the first, as the Trainer makes it: all of its batches are fetched at first."""
        model.train()
        log = book.begin()
        batches = [self.subject.inputs(setting, size, True) for _ in range(setting.accumulation)]
        for inputs in batches:
            book.label(inputs.values(), "inputs")
        book.mark("step")
        for inputs in batches:
            loss = _loss(_forward(model, inputs, setting))
            loss.backward()
            del loss
        book.mark("update")
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        book.mark("end")
        return log

    def _evaluation_batch(self, book: Book, model: Any, setting: Setting, size: int) -> _Evaluation:
        """Log one forward pass as `prediction_step` makes it, and note what of it evaluation keeps."""
        model.eval()
        log = book.begin()
        book.mark("start")
        inputs = self.subject.inputs(setting, size, False)
        book.label(inputs.values(), "inputs")
        book.mark("inputs")
        with torch.no_grad():
            outputs = _forward(model, inputs, setting)
            loss = _loss(outputs).mean()
            book.mark("end")
        labels = self.subject.labels_of(inputs)
        raw = _named_tensors(_without_loss(outputs, model))
        kept = {"outputs": _outputs(raw, tuple(raw.values()), size)}
        # Preprocessing may be a user's own code: what it raises counts only when it is asked for.
        with nullcontext() if setting.keep == "argmax" else suppress(Exception):
            preprocessed = self.subject.kept(tuple(raw.values()), labels, setting.but(keep="argmax"))
            kept["argmax"] = _outputs(raw, preprocessed, size)
        del loss
        return _Evaluation(log, kept, _row_bytes(labels, size))


def _describe(setting: Setting) -> str:
    return f"{setting.precision}, {setting.attention} attention, checkpointing {setting.checkpointing}"


@contextmanager
def _on_fake_tensors(setting: Setting) -> Iterator[Book]:
    """Switch to fake tensors, and to the kernels of the setting; quietly, and without a collector that runs at will."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    level = logging.getLogger("transformers").level
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.enter_context(kernels.replaced(setting.kernels, setting.labels))
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            yield stack.enter_context(Book())
    finally:
        logging.getLogger("transformers").setLevel(level)
        if was_enabled:
            gc.enable()


def _precision_scope(setting: Setting) -> AbstractContextManager[Any]:
    # float16 and bfloat16 take the same memory, and a CPU knows the second one better.
    mixed = setting.precision in ("fp16", "bf16")
    return torch.autocast("cpu", dtype=torch.bfloat16) if mixed else nullcontext()


def _forward(model: Any, inputs: Mapping[str, torch.Tensor], setting: Setting) -> Any:
    """Call the model as accelerate does: in mixed precision its outputs are made float32."""
    with _precision_scope(setting):
        outputs = model(**inputs)
    if setting.precision in ("fp16", "bf16"):
        low = (torch.float16, torch.bfloat16)
        return pytree.tree_map_only(torch.Tensor, lambda t: t.float() if t.dtype in low else t, dict(outputs))
    return outputs


def _loss(outputs: Any) -> torch.Tensor:
    loss = outputs["loss"] if isinstance(outputs, Mapping) else outputs[0]
    if not isinstance(loss, torch.Tensor):
        raise NotForecastableError("the model returned no loss: its inputs have no labels")
    return loss


def _optimizer(trained: list[Any], setting: Setting) -> torch.optim.Optimizer:
    """Make the optimizer as the Trainer does: with two groups, for weights that decay and weights that do not."""
    if not trained:
        raise NotForecastableError("no parameter of the model is to be trained")
    groups = [[p for p in trained if p.dim() > 1], [p for p in trained if p.dim() <= 1]]
    filled = [{"params": group} for group in groups if group]
    if setting.optimizer == "sgd":
        return torch.optim.SGD(filled, lr=1e-3, foreach=setting.kernels == "cuda")
    fused = setting.optimizer == "adamw_torch_fused"
    lists = setting.optimizer == "adamw_torch" and setting.kernels == "cuda"
    return torch.optim.AdamW(filled, lr=1e-3, fused=fused, foreach=lists)


def _give_state(optimizer: torch.optim.Optimizer, trained: list[Any], book: Book) -> None:
    """Let the optimizer make its state, as after a first step, and label it."""
    for parameter in trained:
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    for state in optimizer.state.values():
        book.label(state.values(), "optimizer")


def _without_loss(outputs: Any, model: Any) -> Any:
    """Return the outputs that the Trainer keeps: all but the loss and what the configuration says to ignore."""
    ignored = {"loss", *getattr(model.config, "keys_to_ignore_at_inference", ())}
    if isinstance(outputs, Mapping):
        return {name: value for name, value in outputs.items() if name not in ignored}
    return {f"output {number}": value for number, value in enumerate(outputs[1:], 1)}


def _named_tensors(outputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    named: dict[str, torch.Tensor] = {}
    for name, value in outputs.items():
        if isinstance(value, torch.Tensor):
            named[name] = value
        elif isinstance(value, (tuple, list)):
            nested = {f"{name}[{number}]": each for number, each in enumerate(value)}
            named |= _named_tensors(nested)
    return named


def _outputs(raw: Mapping[str, torch.Tensor], kept: Any, size: int) -> tuple[Output, ...]:
    """Pair what the model returns with what is kept of it; an output that is kept as it is, is one tensor."""
    kept_tensors = [leaf for leaf in pytree.tree_leaves(kept) if isinstance(leaf, torch.Tensor)]
    same = {id(tensor) for tensor in kept_tensors}
    found = [
        Output(name, _row_bytes([tensor], size), _row_bytes([tensor], size) if id(tensor) in same else 0)
        for name, tensor in raw.items()
    ]
    known = {id(tensor) for tensor in raw.values()}
    made = [tensor for tensor in kept_tensors if id(tensor) not in known]
    found += [Output(f"preprocessed {n}", 0, _row_bytes([tensor], size)) for n, tensor in enumerate(made, 1)]
    return tuple(found)


def _row_bytes(tensors: list[torch.Tensor], size: int) -> int:
    return sum(int(tensor.numel() * tensor.element_size()) for tensor in tensors) // size


def _at(logs: Mapping[int, Log], size: int) -> tuple[Log, Bytes | None] | None:
    """Return the log of a batch size, or another one with the bytes it would have, or None when neither is there."""
    if size in logs:
        return logs[size], None
    for (small, small_log), (large, large_log) in itertools.combinations(sorted(logs.items()), 2):
        bytes_of = scaled(small_log, small, large_log, large, size)
        if bytes_of is not None:
            return small_log, bytes_of
    return None


def _surely(found: tuple[Log, Bytes | None] | None) -> tuple[Log, Bytes | None]:
    if found is None:
        raise NotForecastableError("this model takes another way for another batch size; forecast each one by itself")
    return found


def _training_peak(runs: _Runs, batch: int) -> Peak:
    log, bytes_of = _surely(_at(runs.training, batch))
    return peak(log, "step", "end", bytes_of)


def _evaluation_peak(runs: _Runs, setting: Setting, batch: int) -> EvaluationPeak:
    logs = runs.evaluation_logs()
    resident = peak(next(iter(logs.values())), "start", "start")

    @functools.cache
    def forward(size: int) -> ForwardPass:
        log, bytes_of = _surely(_at(logs, size))
        found = peak(log, "inputs", "end", bytes_of)
        return ForwardPass(found.peak_bytes, found.by_kind, found.start_bytes - resident.start_bytes)

    some = next(iter(runs.evaluation.values()))
    outputs = some.outputs.get("argmax" if setting.keep == "argmax" else "outputs")
    if outputs is None:
        raise NotForecastableError("the preprocessing of logits does not run on fake tensors")
    if setting.generate:
        outputs = (Output("generated tokens", TOKEN_BYTES * setting.generate, TOKEN_BYTES * setting.generate),)
    return evaluate(
        setting.examples,
        batch,
        forward,
        resident.by_kind,
        outputs,
        some.label_row_bytes,
        keep=setting.keep,
        accumulation=setting.eval_accumulation,
        concatenate=setting.concatenate,
    )
