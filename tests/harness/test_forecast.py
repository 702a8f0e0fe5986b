"""The forecast of memory: held against the exact meter, against published sizes, and against its own arithmetic."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.forecast import advice, architectures, cards, evaluation, timeline
from repro.forecast.setting import Setting

WITHIN = 1e-3
"""The part by which a forecast may differ from what the meter counts."""


def small_trainer(directory: Path, **arguments: Any) -> Any:
    """A Seq2SeqTrainer with a Whisper of about two million parameters: small enough to run, large enough to weigh."""
    from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

    from repro.observe import drift
    from repro.speech import whisper

    attention, metrics = arguments.pop("attention", "sdpa"), arguments.pop("metrics", True)
    preprocess, examples = arguments.pop("preprocess", None), arguments.pop("examples", 10)
    model = whisper.build(width=192, attention=attention)
    # One example for all: a forecast takes every batch to be as long as the longest.
    longest = max(whisper.prepared(16), key=lambda row: len(row["labels"]))
    values = {
        "output_dir": str(directory),
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "max_steps": 2,
        "report_to": [],
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "save_strategy": "no",
        "use_cpu": True,
    }
    args = Seq2SeqTrainingArguments(**drift.spelled(Seq2SeqTrainingArguments, **values | arguments))
    return Seq2SeqTrainer(
        model=model,
        args=args,
        train_dataset=[longest] * 16,
        eval_dataset=[longest] * examples,
        data_collator=whisper.Collator(model.config.decoder_start_token_id),
        compute_metrics=(lambda _: {}) if metrics else None,
        preprocess_logits_for_metrics=preprocess,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"attention": "eager"},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
        {"gradient_accumulation_steps": 2},
        {"optim": "adamw_torch"},
    ],
    ids=lambda arguments: ",".join(arguments) or "plain",
)
def test_training_peak_is_that_of_the_exact_meter(arguments: dict[str, Any], tmp_path: Path) -> None:
    import repro.forecast
    from repro.memory.meter import meter
    from repro.observe import fresh

    fresh.start()
    predicted = repro.forecast.of(small_trainer(tmp_path, **arguments), kernels="cpu").training.peak_bytes
    fresh.start()
    with meter(source="allocator") as metered:
        small_trainer(tmp_path, **arguments).train()
    assert predicted == pytest.approx(metered.report.peak_bytes, rel=WITHIN)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"examples": 90},
        {"metrics": False},
        {"examples": 90, "eval_accumulation_steps": 3},
        {"examples": 90, "preprocess": lambda logits, _: logits[0].argmax(-1)},
        {"examples": 90, "preprocess": lambda logits, labels: (logits[0].argmax(-1), labels)},
        {"examples": 90, "eval_do_concat_batches": False},
    ],
    ids=lambda arguments: ",".join(arguments) or "plain",
)
def test_evaluation_peak_is_that_of_the_exact_meter(arguments: dict[str, Any], tmp_path: Path) -> None:
    import repro.forecast
    from repro.memory.meter import meter
    from repro.memory.trainer_phases import GATHER, phases_of
    from repro.observe import fresh

    fresh.start()
    predicted = repro.forecast.of(small_trainer(tmp_path, **arguments), kernels="cpu").evaluation
    fresh.start()
    with meter(source="allocator") as metered:
        trainer = small_trainer(tmp_path, **arguments)
        trainer.train()
        with phases_of(trainer, metered):
            trainer.evaluate()
    assert predicted.peak_bytes == pytest.approx(metered.report.peak_of(GATHER), rel=WITHIN)
    assert sum(predicted.by_kind.values()) == predicted.peak_bytes
    if arguments == {"examples": 90}:
        assert predicted.where == "concatenation"


def test_forecasting_leaves_the_trainer_as_it_was(tmp_path: Path) -> None:
    import torch

    import repro.forecast

    trainer = small_trainer(tmp_path)
    before = {name: (id(p), p.detach().clone()) for name, p in trainer.model.named_parameters()}
    state, training = torch.get_rng_state(), trainer.model.training
    repro.forecast.of(trainer, checkpointing="on", attention="sdpa", precision="bf16")
    assert torch.equal(torch.get_rng_state(), state)
    assert trainer.model.training is training
    assert not trainer.model.is_gradient_checkpointing
    for name, parameter in trainer.model.named_parameters():
        assert id(parameter) == before[name][0]
        assert torch.equal(parameter, before[name][1])


@pytest.fixture(scope="module")
def tiny_session() -> Any:
    import repro.forecast

    return repro.forecast.session_named("whisper-tiny")


def test_a_batch_from_arithmetic_is_the_batch_that_runs(tiny_session: Any) -> None:
    import repro.forecast

    setting = Setting(batch=2, labels=16, examples=40)
    tiny_session.prepare_batches(setting)
    calculated = tiny_session.forecast(setting.but(batch=7, eval_batch=7))
    run = repro.forecast.named("whisper-tiny", batch=7, labels=16, examples=40)
    assert calculated.training == run.training
    assert calculated.evaluation == run.evaluation


def test_changes_make_it_fit_and_the_largest_batch_is_the_largest(tiny_session: Any) -> None:
    setting = Setting(batch=2, labels=16, examples=400)
    forecast = tiny_session.forecast(setting)
    capacity = min(forecast.training.peak_bytes, forecast.evaluation.peak_bytes) - 1
    batches = advice.largest_batches(tiny_session, setting, capacity)
    assert batches.training == 1
    assert tiny_session.forecast(setting.but(batch=1)).training.peak_bytes <= capacity
    found = advice.changes(tiny_session, forecast, capacity, batches)
    fitting = {(change.phase, *change.changes) for change in found if change.fits}
    assert ("training", "checkpointing") in fitting
    assert ("evaluation", "eval_accumulation") in fitting
    assert not advice.changes(tiny_session, forecast, forecast.peak_bytes, batches)


@pytest.mark.parametrize("name", ["whisper-tiny", "wav2vec2-base", "hubert-base", "wavlm-base", "moonshine-tiny"])
def test_a_published_size_has_the_parameters_its_authors_count(name: str) -> None:
    import repro.forecast

    which = architectures.ARCHITECTURES[name]
    forecast = repro.forecast.named(name, batch=2, seconds=2, labels=8, examples=4, attention=which.attentions[0])
    assert forecast.parameters == pytest.approx(which.parameters, rel=0.035)
    assert forecast.training.by_kind["parameters"] >= 4 * forecast.parameters
    assert sum(forecast.training.by_kind.values()) == forecast.training.peak_bytes


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(architectures.ARCHITECTURES))
def test_every_published_size_has_the_parameters_its_authors_count(name: str) -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from repro.forecast.published import Published

    which = architectures.ARCHITECTURES[name]
    with FakeTensorMode():
        model = Published(which).model(Setting(attention=which.attentions[0]))  # type: ignore[arg-type]
    assert all(isinstance(p, torch.Tensor) for p in model.parameters())
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(which.parameters, rel=0.035)


def test_the_kernels_of_cuda_keep_less_under_dropout() -> None:
    import repro.forecast

    values: dict[str, Any] = {"batch": 2, "seconds": 2, "labels": 8, "examples": 4}
    on_cuda = repro.forecast.named("wav2vec2-base", **values)
    on_cpu = repro.forecast.named("wav2vec2-base", kernels="cpu", **values)
    assert on_cuda.training.peak_bytes < on_cpu.training.peak_bytes


def test_what_cannot_be_forecast_is_said(tiny_session: Any) -> None:
    from repro.forecast.work import NotForecastableError

    with pytest.raises(NotForecastableError, match="at most 448 labels"):
        tiny_session.forecast(Setting(labels=449))
    with pytest.raises(NotForecastableError, match=r"does not run on fake tensors.*Error: [^\n]+$") as told:
        tiny_session.forecast(Setting(batch=10**20))
    assert "\n" not in str(told.value), "frames of torch's own stack"
    with pytest.raises(LookupError, match="whisper-small"):
        architectures.find("wisper-smal")
    with pytest.raises(ValueError, match="precision is 'fp8'"):
        Setting(precision="fp8")  # type: ignore[arg-type]


def test_a_release_without_sdpa_for_a_model_says_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    import repro.forecast
    from repro.forecast.work import NotForecastableError

    monkeypatch.setattr(transformers.Wav2Vec2ForCTC, "_supports_sdpa", False)
    with pytest.raises(NotForecastableError, match=r"no sdpa attention for wav2vec2-base yet; it has: eager"):
        repro.forecast.named("wav2vec2-base")


ROWS = st.integers(1, 4000)


def simulated(examples: int, batch: int, row: int, **how: Any) -> evaluation.EvaluationPeak:
    forward = evaluation.ForwardPass
    return evaluation.evaluate(
        examples,
        batch,
        lambda size: forward(5120 + 512 * size, {"parameters": 5120, "activations": 512 * size}, 512),
        {"parameters": 5120},
        (evaluation.Output("logits", row, row),),
        8,
        **how,
    )


@given(st.integers(1, 200), st.integers(1, 16), ROWS)
@settings(max_examples=60, deadline=None)
def test_the_parts_of_an_evaluation_sum_to_its_peak(examples: int, batch: int, row: int) -> None:
    for how in ({}, {"accumulation": 2}, {"concatenate": False}, {"keep": "nothing"}, {"keep": "batch"}):
        found = simulated(examples, batch, row, **how)
        assert sum(found.by_kind.values()) == found.peak_bytes
        assert min(found.by_kind.values()) >= 0


@given(st.integers(1, 200), st.integers(1, 16), ROWS)
@settings(max_examples=60, deadline=None)
def test_evaluation_grows_with_its_set_unless_it_is_let_go(examples: int, batch: int, row: int) -> None:
    assert simulated(examples + batch, batch, row).peak_bytes >= simulated(examples, batch, row).peak_bytes
    most = max(examples, 4 * batch)
    ends = [simulated(most * times, batch, row, accumulation=1).peak_bytes for times in (1, 3)]
    assert ends[0] == ends[1]


@given(st.integers(0, 5000))
def test_the_largest_that_fits_is_found(limit: int) -> None:
    assert timeline.largest(lambda n: n <= limit, most=1000) == min(limit, 1000)


def test_a_peak_is_found_with_who_held_it() -> None:
    log = timeline.Log([100, 1000, 10], ["parameters", "activations", "gradients"], [1, 2, -2, 3], {"a": 1, "z": 4})
    assert timeline.peak(log, "a", "z") == timeline.Peak(1536, 512, {"parameters": 512, "activations": 1024})


@given(st.text(max_size=20))
def test_any_text_is_a_card_a_size_or_a_clear_error(text: str) -> None:
    try:
        assert cards.card_bytes(text) > 0
    except ValueError as error:
        assert "card" in str(error)  # noqa: PT017 - both ends are fine


def test_cards_are_known_by_the_names_people_use() -> None:
    assert cards.card_bytes("NVIDIA RTX 4090") == cards.card_bytes("rtx-4090") == 24564 * cards.MIB
    assert cards.card_bytes("Tesla T4") == 15360 * cards.MIB
    assert cards.card_bytes("24 GiB") == 24 * cards.GIB


def repro_forecast(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "repro", "forecast", *arguments], capture_output=True, text=True, timeout=300
    )


def test_the_command_says_what_would_make_it_fit() -> None:
    done = repro_forecast(
        "whisper-tiny", "--batch", "2", "--labels", "16", "--card", "3GiB", "--reserve", "0", "--json"
    )
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["fits"] is False
    assert found["largest_batch"]["training"] > 2
    assert {change["phase"] for change in found["changes"]} == {"evaluation"}
    assert any(change["fits"] and change["changes"] == {"eval_accumulation": 1} for change in found["changes"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("whisper-smal",), "whisper-small"),
        (("whisper-small", "--card", "t5"), "nearest: t4"),
        (("whisper-small", "--batch", "0"), "at least 1"),
        (("whisper-small", "--card", "8GiB", "--reserve", "9GiB"), "leaves nothing"),
    ],
)
def test_wrong_usage_is_told_before_torch_is_loaded(arguments: tuple[str, ...], says: str) -> None:
    done = repro_forecast(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "loading torch" not in done.stderr


@pytest.mark.slow
def test_a_large_model_takes_little_real_memory() -> None:
    """In a process of its own, so that only the forecast counts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    done = repro_forecast("whisper-small", "--batch", "16", "--json")
    assert done.returncode == 0, done.stderr
    real = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    assert max(real, before) < 2 * cards.GIB
    assert json.loads(done.stdout)["training"]["peak_bytes"] > 2 * cards.GIB


@pytest.fixture
def gpu_peak() -> Iterator[Any]:
    import torch

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    yield torch.cuda.max_memory_allocated
    torch.cuda.empty_cache()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_training_step_on_a_gpu_is_forecast(
    precision: Any, gpu_peak: Any, record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is reported, not hidden; past ten percent it is a failure."""
    import torch

    import repro.forecast
    from repro.forecast.published import Published

    setting = Setting(batch=4, labels=64, examples=4, precision=precision)
    predicted = repro.forecast.session_named("whisper-tiny").forecast(setting).training.peak_bytes
    subject = Published(architectures.find("whisper-tiny"))
    model = subject.model(setting).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    inputs = {name: value.cuda() for name, value in subject.inputs(setting, 4, True).items()}
    inputs["input_features"].zero_()
    for _ in range(2):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    measured = gpu_peak()
    error = predicted / measured - 1
    record_property("forecast_error", error)
    with capsys.disabled():
        print(f"\nforecast {predicted}, {torch.cuda.get_device_name()} {measured}: {error:+.2%}")
    assert abs(error) < 0.1
