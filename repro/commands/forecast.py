"""`repro forecast`: will it fit, and what would make it fit."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repro.commands import DONE, NOT_AS_DECLARED, WRONG_USAGE, JsonOption, Stop

if TYPE_CHECKING:
    from repro.forecast.advice import Change, Largest
    from repro.forecast.result import Forecast
    from repro.forecast.work import Session

DEFAULT_RESERVE = "1GiB"


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("forecast")
    def forecast(
        model: Annotated[str, typer.Argument(help="A published size, such as whisper-small; `list` names them all.")],
        card: Annotated[str, typer.Option(help="A card by name (t4, a100-40) or size (24GiB).")] = "",
        reserve: Annotated[
            str,
            typer.Option(
                help="Of the card, left for its context, libraries and fragmentation: an allowance, not measured."
            ),
        ] = DEFAULT_RESERVE,
        batch: Annotated[int, typer.Option(help="per_device_train_batch_size")] = 8,
        eval_batch: Annotated[int, typer.Option(help="per_device_eval_batch_size; 0: as for training")] = 0,
        accumulation: Annotated[int, typer.Option(help="gradient_accumulation_steps")] = 1,
        seconds: Annotated[float, typer.Option(help="Length of the clips of a batch; Whisper pads to 30.")] = 15.0,
        labels: Annotated[int, typer.Option(help="Tokens of the longest label sequence.")] = 128,
        precision: Annotated[str, typer.Option(help="fp32, fp16, bf16 (mixed), bf16-weights")] = "fp32",
        attention: Annotated[str, typer.Option(help="sdpa or eager; by default what the model has")] = "",
        checkpointing: Annotated[str, typer.Option(help="off, on, reentrant")] = "off",
        optimizer: Annotated[
            str, typer.Option(help="adamw_torch_fused, adamw_torch, adamw_torch_single, sgd")
        ] = "adamw_torch_fused",
        examples: Annotated[int, typer.Option(help="Size of the evaluation set.")] = 1000,
        keep: Annotated[
            str,
            typer.Option(
                help="What evaluation keeps: outputs (compute_metrics is given), argmax "
                "(preprocess_logits_for_metrics), batch (batch_eval_metrics), nothing (no compute_metrics)"
            ),
        ] = "outputs",
        eval_accumulation: Annotated[int, typer.Option(help="eval_accumulation_steps; 0: unset")] = 0,
        concatenate: Annotated[bool, typer.Option(help="eval_do_concat_batches")] = True,
        generate: Annotated[int, typer.Option(help="generation_max_length of predict_with_generate; 0: off")] = 0,
        freeze_encoder: Annotated[bool, typer.Option(help="Do not train the encoder.")] = False,
        as_json: JsonOption = False,
    ) -> None:
        """Predict the peak memory of training and of evaluation, without weights, data or a GPU.

        With --card, exit code 1 means that it does not fit; every single setting that might help is then forecast, too.
        """
        from repro.show import terminal

        if model == "list":
            _list(as_json)
            return
        values: dict[str, Any] = {
            "batch": batch,
            "eval_batch": eval_batch,
            "accumulation": accumulation,
            "seconds": seconds,
            "labels": labels,
            "precision": precision,
            "checkpointing": checkpointing,
            "optimizer": optimizer,
            "examples": examples,
            "keep": keep,
            "eval_accumulation": eval_accumulation,
            "concatenate": concatenate,
            "generate": generate,
            "freeze_encoder": freeze_encoder,
        }
        capacity = _capacity(card, reserve) if card else None
        found, batches, changes = _forecast(model, values, attention, capacity)
        if as_json:
            fits = None if capacity is None else found.fits(capacity)
            terminal.print_json(
                {
                    **found.as_json(),
                    "capacity": capacity,
                    "fits": fits,
                    "largest_batch": vars(batches) if batches else None,
                    "changes": [vars(change) for change in changes],
                }
            )
        else:
            _print(found, card, capacity, batches, changes)
        raise typer.Exit(DONE if capacity is None or found.fits(capacity) else NOT_AS_DECLARED)


def _capacity(card: str, reserve: str) -> int:
    from repro.forecast.cards import card_bytes, parse_bytes, readable

    try:
        total, left = card_bytes(card), 0 if reserve.strip() == "0" else parse_bytes(reserve)
    except ValueError as error:
        raise Stop(str(error), WRONG_USAGE) from None
    if left >= total:
        raise Stop(f"--reserve {reserve} leaves nothing of a card with {readable(total)}", WRONG_USAGE)
    return total - left


def _forecast(
    model: str, values: dict[str, Any], attention: str, capacity: int | None
) -> tuple[Forecast, Largest | None, tuple[Change, ...]]:
    """Forecast, and look for what would make it fit. Wrong usage is told before torch is imported."""
    from repro.forecast.architectures import find
    from repro.forecast.setting import Setting
    from repro.show import terminal

    try:
        setting = Setting(**values, attention=attention or find(model).attentions[0])  # type: ignore[arg-type]
    except (LookupError, ValueError) as error:
        raise Stop(str(error.args[0]), WRONG_USAGE) from None
    terminal.say("loading torch and transformers")
    session = _session(model)
    from repro.forecast import advice
    from repro.forecast.work import NotForecastableError

    try:
        found = session.forecast(setting)
    except NotForecastableError as error:
        raise Stop(str(error)) from None
    batches: Largest | None = None
    changes: tuple[Change, ...] = ()
    if capacity is not None:
        with contextlib.suppress(NotForecastableError):
            batches = advice.largest_batches(session, setting, capacity)
        changes = advice.changes(session, found, capacity, batches or advice.Largest(0, 0))
    return found, batches, changes


def _session(model: str) -> Session:
    from repro.show import terminal

    try:
        from repro.forecast import session_named

        return session_named(model, tell=terminal.say)
    except ImportError as error:
        raise Stop(
            f"a forecast runs the model's code on fake tensors, and {error.name or 'a package'} is missing here; "
            "install the trials extra: pip install 'trainer-repro[trials]'"
        ) from None


def _list(as_json: bool) -> None:
    from repro.forecast.architectures import ARCHITECTURES
    from repro.show import terminal

    if as_json:
        terminal.print_json([{"model": a.name, "parameters": a.parameters} for a in ARCHITECTURES.values()])
        return
    for each in ARCHITECTURES.values():
        terminal.out().print(f"{each.name:24} {each.parameters / 1e6:7.0f} M parameters")


def _print(
    found: Forecast, card: str, capacity: int | None, batches: Largest | None, changes: tuple[Change, ...]
) -> None:
    from rich.table import Table

    from repro.forecast.cards import readable
    from repro.show import terminal

    out = terminal.out()
    evaluation = found.evaluation
    out.print(f"{found.model}: {found.parameters / 1e6:.1f} M parameters")
    table = Table("", "training step", "evaluation", box=None, pad_edge=False)
    kinds = {**found.training.by_kind, **evaluation.by_kind}
    for kind in sorted(kinds, key=lambda k: -max(found.training.by_kind.get(k, 0), evaluation.by_kind.get(k, 0))):
        both = (found.training.by_kind.get(kind, 0), evaluation.by_kind.get(kind, 0))
        table.add_row(kind, *(readable(size) if size else "-" for size in both))
    table.add_row("peak", readable(found.training.peak_bytes), readable(evaluation.peak_bytes))
    out.print(table)
    per_example = ", ".join(f"{name} {readable(size)}" for name, size in evaluation.kept_per_example.items())
    out.print(f"evaluation peaks in its {evaluation.where}; per example it keeps: {per_example}")
    for note in found.notes:
        out.print(f"note: {note}")
    if capacity is None:
        return
    verdict = "fits" if found.fits(capacity) else "does NOT fit"
    out.print(f"{verdict}: {readable(found.peak_bytes)} of {readable(capacity)} that {card} leaves")
    if batches:
        out.print(
            f"largest batch that fits, all else as it is: training {batches.training}, evaluation {batches.evaluation}"
        )
    for change in changes:
        needs = readable(change.peak_bytes) if change.peak_bytes else change.error
        out.print(f"  {change.phase}: {'fits' if change.fits else 'not enough'} with {change.says}: {needs}")
