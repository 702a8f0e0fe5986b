"""`repro.check` and `ReproGuard`: an alarm before exactly the runs that then fail, in whichever release there is."""

# ruff: noqa: E402 - what imports torch comes after finding out whether it is there

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import repro
from repro.catalog import find
from repro.guard import live, whisper
from repro.guard.check import KnownFailureWarning
from repro.observe import fresh
from repro.vocabulary import TRAINS, Configuration, Level

WHISPER = find("whisper-double-backward")
PLAIN = WHISPER.configuration()

CASES: dict[str, dict[str, Level]] = {
    "plain": {},
    "reported": dict(WHISPER.reported),
    "reported, reentrant": dict(WHISPER.reported.but(use_reentrant="True")),
    "reported, non-reentrant": dict(WHISPER.reported.but(use_reentrant="False")),
    "method, reentrant": {"checkpointing": "method", "use_reentrant": "True"},
    "one layer, reentrant": {"checkpointing": "arguments", "use_reentrant": "True", "decoder_layers": 1},
    "frozen, reentrant": {"checkpointing": "arguments", "use_reentrant": "True", "encoder": "frozen"},
    "LoRA": {"lora": "before"},
    "LoRA, reentrant": {"lora": "before", "checkpointing": "arguments", "use_reentrant": "True"},
    "LoRA, non-reentrant": {"lora": "before", "checkpointing": "arguments", "use_reentrant": "False"},
    "LoRA after, reentrant": {"lora": "after", "checkpointing": "method", "use_reentrant": "True"},
    "LoRA in the decoder, reentrant": {
        "lora": "before", "checkpointing": "method", "use_reentrant": "True", "encoder": "frozen",
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    fresh.start()
    yield
    fresh.start()


def trainer(configuration: Configuration, directory: Path) -> Any:
    from repro.observe.whisper_setup import model_for
    from repro.observe.whisper_trainer import trainer_for

    if configuration["lora"] != "off":
        pytest.importorskip("peft")
    return trainer_for(model_for(configuration), configuration, str(directory))


@pytest.mark.parametrize("name", CASES)
def test_an_alarm_stands_before_exactly_the_runs_that_fail(name: str, tmp_path: Path) -> None:
    configuration = PLAIN.but(**CASES[name])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        alarms = repro.check(trainer(configuration, tmp_path))
    outcome = WHISPER.outcome(WHISPER.observe(WHISPER.trial(configuration, "trainer")))
    assert [alarm.outcome for alarm in alarms] == ([] if outcome == TRAINS else [outcome])
    assert len([w for w in caught if w.category is KnownFailureWarning]) == len(alarms)


def test_the_cure_that_an_alarm_names_lets_the_run_train(tmp_path: Path) -> None:
    failing = PLAIN.but(lora="before", checkpointing="arguments", use_reentrant="True")
    with pytest.warns(KnownFailureWarning, match="use_reentrant"):
        (alarm,) = repro.check(trainer(failing, tmp_path))
    cured = failing.but(**dict(alarm.cures[0].change))
    assert WHISPER.outcome(WHISPER.observe(WHISPER.trial(cured, "trainer"))) == TRAINS


@pytest.mark.parametrize("name", CASES)
def test_a_trainer_is_recognised_as_what_it_is(name: str, tmp_path: Path) -> None:
    configuration = PLAIN.but(**CASES[name])
    recognised = WHISPER.recognise
    assert recognised is not None
    seen = recognised(live.of(trainer(configuration, tmp_path)))
    assert seen is not None
    # The Trainer itself touches the cache, and what a script does besides cannot be seen.
    unseen = ("use_cache", "stray_variable")
    told = {factor: level for factor, level in seen.configuration.items() if factor not in unseen}
    assert told == {factor: level for factor, level in configuration.items() if factor not in unseen}


def test_looking_changes_neither_the_random_state_nor_the_model(tmp_path: Path) -> None:
    subject = trainer(PLAIN.but(checkpointing="both", use_reentrant="True"), tmp_path)
    before = torch.get_rng_state(), [hook for m in subject.model.modules() for hook in m._forward_hooks]
    repro.check(subject)
    after = torch.get_rng_state(), [hook for m in subject.model.modules() for hook in m._forward_hooks]
    assert torch.equal(before[0], after[0])
    assert before[1] == after[1]


def test_the_mechanism_agrees_with_the_probe_of_the_failure(tmp_path: Path) -> None:
    looked = whisper.recognise(WHISPER, live.of(trainer(PLAIN.but(checkpointing="arguments"), tmp_path)))
    assert looked is not None
    probed = WHISPER.probe()
    assert {key: looked.mechanism[key] for key in ("default_mode", "live_keywords")} == {
        key: probed[key] for key in ("default_mode", "live_keywords")
    }


def test_the_callback_warns_when_training_begins(tmp_path: Path) -> None:
    failing = PLAIN.but(lora="before", checkpointing="arguments", use_reentrant="True")
    subject = trainer(failing, tmp_path)
    subject.add_callback(repro.ReproGuard())
    with (
        pytest.warns(KnownFailureWarning, match="loss has no gradient"),
        pytest.raises(RuntimeError, match="element 0"),
    ):
        subject.train()


def test_the_callback_is_silent_in_a_run_that_trains(tmp_path: Path) -> None:
    subject = trainer(PLAIN.but(checkpointing="arguments", use_reentrant="False"), tmp_path)
    subject.add_callback(repro.ReproGuard())
    with warnings.catch_warnings():
        warnings.simplefilter("error", KnownFailureWarning)
        subject.train()


def test_a_trainer_of_another_model_passes(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    small = BertConfig(vocab_size=8, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4)
    args = TrainingArguments(output_dir=str(tmp_path), report_to=[])
    assert repro.check(Trainer(model=BertForSequenceClassification(small), args=args)) == ()


def test_importing_the_package_imports_no_torch() -> None:
    program = "import sys, repro; assert 'torch' not in sys.modules; assert callable(repro.check)"
    subprocess.run([sys.executable, "-c", program], check=True)


def _with_lora(layers: int, directory: Path) -> Any:
    """Return a Trainer of a Whisper with LoRA, whose front gets no gradient."""
    peft = pytest.importorskip("peft")
    from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

    from repro.observe import drift
    from repro.speech import whisper as tiny

    model = tiny.build(encoder_layers=layers, decoder_layers=layers)
    model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    values = {"output_dir": str(directory), "gradient_checkpointing": True, "report_to": []}
    values |= {"gradient_checkpointing_kwargs": {"use_reentrant": True}, "use_cpu": True}
    arguments = Seq2SeqTrainingArguments(**drift.spelled(Seq2SeqTrainingArguments, **values))
    return Seq2SeqTrainer(model=model, args=arguments)


def _seconds(checked: Any) -> float:
    """Return the CPU seconds that checking takes once."""
    began = time.process_time()
    assert [alarm.outcome for alarm in repro.check(checked)] == ["loss has no gradient"]
    return time.process_time() - began


@pytest.mark.filterwarnings("ignore::repro.guard.check.KnownFailureWarning")
def test_checking_a_model_as_deep_as_the_largest_whisper_costs_little_more(tmp_path: Path, benchmark: Any) -> None:
    shallow, deep = _with_lora(2, tmp_path), _with_lora(32, tmp_path)
    benchmark(repro.check, deep)
    # Sixteen times as deep; in turns, as other processes come and go. Some 1.2 to 2 times is what it costs.
    taken = [(_seconds(shallow), _seconds(deep)) for _ in range(12)]
    least, most = (min(each) for each in zip(*taken, strict=True))
    assert most < 4 * least
