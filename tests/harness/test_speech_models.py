"""Speech encoders beside Whisper: the apparatus sees each failure of theirs, and what looks like one and is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils import checkpoint

from repro.catalog import find
from repro.observe import fresh, raised, speech_model, speech_setup, speech_trainer
from repro.observe.spy import EndlessError, watching
from repro.speech import encoders
from repro.vocabulary import GRADIENTS_MISSING, TRAINS, Configuration, Facts

SILENT = find("reentrant-silent-gradient-loss")


def _reentrant(failure: str, family: str, **levels: str | int) -> Facts:
    configuration = find(failure).configuration(checkpointing="method", use_reentrant="True", **levels)
    try:
        return speech_model.observe(family, configuration)
    except raised.UnobservableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("failure", "family", "outcome"),
    [
        ("sew-d-double-backward", "sew-d", "double backward"),
        ("speecht5-double-backward", "speecht5", "double backward"),
        ("wavlm-endless-backward", "wavlm", "backward without an end"),
        ("omniasr-silent-gradient-loss", "omniasr", GRADIENTS_MISSING),
    ],
)
def test_a_failing_family_is_seen_to_fail_where_the_mechanism_is_there(failure: str, family: str, outcome: str) -> None:
    declared = find(failure)
    facts = _reentrant(failure, family)
    configuration = declared.configuration(checkpointing="method", use_reentrant="True")
    assert declared.trigger.predict(configuration, "model", declared.probe()) == declared.outcome(facts)
    assert declared.outcome(facts) in (outcome, TRAINS)
    assert facts["proofs"]["checkpoint_modes"] == ["reentrant"] or outcome == GRADIENTS_MISSING


def test_a_silent_loss_names_the_parameters_and_the_warning() -> None:
    facts = _reentrant(SILENT.id, "wav2vec2", frozen="all before the layers", model="wav2vec2")
    assert facts["end"] == "completed"
    assert all(".layers." in name for name in facts["gradients"]["missing"])
    assert len(facts["gradients"]["missing"]) > 20
    assert facts["warned"]


def test_the_same_front_that_one_model_can_do_without_is_fatal_in_the_next() -> None:
    outcomes = [
        SILENT.outcome(_reentrant(SILENT.id, model, frozen="convolutions", model=model))
        for model in ("wav2vec2", "whisper")
    ]
    assert outcomes == [TRAINS, GRADIENTS_MISSING]


def test_a_trainer_run_that_loses_gradients_is_not_taken_for_one_that_trains() -> None:
    lost = speech_trainer.observe("wav2vec2", SILENT.reported)
    assert (lost["end"], SILENT.outcome(lost)) == ("completed", GRADIENTS_MISSING)
    cured = speech_trainer.observe("wav2vec2", SILENT.reported.but(use_reentrant="False"))
    assert (SILENT.outcome(cured), cured["moved"], cured["optimizer_steps"]) == (TRAINS, True, 2)


@pytest.mark.parametrize("family", encoders.FAMILIES)
def test_every_family_trains_all_of_its_layers_on_its_own_clips(family: str) -> None:
    fresh.start()
    try:
        model = encoders.build(family, layers=1)
    except encoders.NotInThisReleaseError as error:
        pytest.skip(str(error))
    model(**encoders.batch(family)).loss.backward()
    layers = speech_setup.encoder_layers(model)
    assert len(layers) == 1
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in layers.parameters())


def test_a_part_that_no_parameter_matches_cannot_be_frozen() -> None:
    model = encoders.build("wav2vec2", layers=1)
    with pytest.raises(LookupError, match="no parameter of Wav2Vec2ForCTC matches"):
        speech_setup.freeze(model, speech_setup.Parts("nowhere", "nowhere"), "all before the layers")


def test_a_family_that_the_release_lacks_is_skipped_and_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    monkeypatch.setattr(transformers, "WavLMForCTC", None)
    with pytest.raises(raised.UnobservableError, match="no WavLMForCTC"):
        speech_setup.model_for("wavlm", Configuration({"checkpointing": "off"}))
    assert speech_model.probe("wavlm")["in_release"] is False


def test_a_backward_that_recomputes_without_an_end_is_stopped_and_a_sound_one_is_not() -> None:
    weight = torch.ones(2, requires_grad=True)
    held: dict[str, Any] = {}

    def layer(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return hidden * held["position"], held["position"]

    with watching() as seen:
        checkpoint.checkpoint(lambda x: x * 2, weight, use_reentrant=True).sum().backward()
        assert seen.runs == 2
        held["position"] = weight * 3
        output, _ = checkpoint.checkpoint(layer, weight, use_reentrant=True)
        with pytest.raises(EndlessError, match="runs of checkpointed code in 2 calls"):
            output.sum().backward()


def test_a_module_first_imported_while_watching_gets_the_real_function_back(tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "imported_late.py").write_text("from torch.utils.checkpoint import checkpoint\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = checkpoint.checkpoint
    with watching():
        import imported_late  # type: ignore[import-not-found]

        assert imported_late.checkpoint is not before
    assert imported_late.checkpoint is before
