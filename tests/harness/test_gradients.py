"""The twin comparison sees what it should, and checkpointing that is harmless is seen to be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.catalog import find
from repro.observe import fresh, gradients, whisper_model
from repro.observe.spy import watching
from repro.speech import whisper

WHISPER = find("whisper-double-backward")


def test_equal_gradients_compare_as_equal() -> None:
    one = {"w": torch.tensor([1.0, -2.0]), "frozen": None}
    found = gradients.compare(one, gradients.copied(one), "fp32")
    assert (found["missing"], found["extra"], found["worst_ratio"], found["compared"]) == ([], [], 0.0, 1)


def test_a_gradient_that_only_the_twin_has_is_named_missing() -> None:
    found = gradients.compare({"w": None, "v": torch.ones(1)}, {"w": torch.ones(1), "v": None}, "fp32")
    assert (found["missing"], found["extra"]) == (["w"], ["v"])


@pytest.mark.parametrize("precision", gradients.TOLERANCES)
@pytest.mark.parametrize(("share", "wrong"), [(0.99, False), (1.01, True)])
def test_the_tolerance_is_exact_at_its_edge(precision: str, share: float, wrong: bool) -> None:
    absolute, relative = gradients.TOLERANCES[precision]
    twin = torch.tensor([4.0, 1.0], dtype=torch.float64).float()
    off = twin.clone()
    off[1] += share * (absolute * 4.0 + relative * 1.0)
    found = gradients.compare({"w": off}, {"w": twin}, precision)
    assert (found["worst_ratio"] > 1) is wrong
    assert found["worst"] == "w"


def test_one_wrong_element_among_many_is_found() -> None:
    twin = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    off = twin.clone()
    off[123] *= 1.01
    assert gradients.compare({"w": off}, {"w": twin}, "fp32")["worst_ratio"] > 1


def test_a_gradient_that_is_not_finite_is_named() -> None:
    found = gradients.compare({"w": torch.tensor([float("nan")])}, {"w": torch.ones(1)}, "fp32")
    assert found["not_finite"] == ["w"]


def test_a_twin_is_run_once_for_all_that_share_it() -> None:
    runs: list[int] = []
    twins: gradients.Twins[int] = gradients.Twins(limit=2)

    def run() -> int:
        runs.append(1)
        return len(runs)

    assert [twins.get("a", run), twins.get("a", run), twins.get("b", run)] == [1, 1, 2]
    twins.get("c", run)
    assert (twins.get("b", run), twins.get("a", run)) == (2, 4)


shapes = st.fixed_dictionaries(
    {
        "encoder_layers": st.integers(1, 3),
        "decoder_layers": st.integers(1, 3),
        "width": st.sampled_from([8, 16, 24]),
        "frames": st.sampled_from([20, 60]),
        "attention": st.sampled_from(["eager", "sdpa"]),
        "seed": st.integers(0, 5),
    }
)


@settings(max_examples=15)
@given(shapes)
def test_checkpointing_that_is_not_reentrant_changes_no_gradient_of_any_architecture(shape: dict[str, Any]) -> None:
    found = []
    for checkpointed in (False, True):
        fresh.start()
        model = whisper.build(**shape)
        with watching() as seen:
            if checkpointed:
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            model(**whisper.batch(frames=shape["frames"])).loss.backward()
        assert seen.calls == (shape["encoder_layers"] + shape["decoder_layers"] if checkpointed else 0)
        found.append(gradients.of(model))
    compared = gradients.compare(found[1], found[0], "fp32")
    assert compared["missing"] == []
    assert compared["largest_difference"] == 0.0


@pytest.fixture(scope="module")
def mechanism() -> Any:
    return WHISPER.probe()


@settings(max_examples=25)
@given(st.data())
def test_any_configuration_of_the_model_does_what_the_trigger_predicts(mechanism: Any, data: st.DataObject) -> None:
    levels = {f.name: data.draw(st.sampled_from(f.levels_at("model")), f.name) for f in WHISPER.factors_at("model")}
    configuration = WHISPER.configuration(**levels)
    if WHISPER.allows(configuration):
        facts = whisper_model.observe(configuration)
        assert WHISPER.outcome(facts) == WHISPER.trigger.predict(configuration, "model", mechanism)


@pytest.mark.parametrize(("use_reentrant", "mode"), [("True", "reentrant"), ("False", "non-reentrant")])
def test_the_mode_of_checkpointing_is_read_off_the_graph(use_reentrant: str, mode: str) -> None:
    facts = whisper_model.observe(WHISPER.configuration(checkpointing="method", use_reentrant=use_reentrant))
    assert facts["proofs"]["checkpoint_modes"] == [mode]
    assert facts["proofs"]["checkpoint_calls"] == 4


def test_settings_are_proved_and_not_assumed() -> None:
    plain = whisper_model.observe(WHISPER.configuration())["proofs"]
    assert (plain["checkpoint_calls"], plain["encoder_trains"], plain["attention"]) == (0, True, "sdpa")
    other = WHISPER.configuration(encoder="frozen", attention="eager", decoder_layers=3, precision="bf16")
    proofs = whisper_model.observe(other)["proofs"]
    assert (proofs["encoder_trains"], proofs["attention"], proofs["decoder_layers"]) == (False, "eager", 3)
    assert proofs["logits"] == "torch.bfloat16"


def test_a_tensor_that_travels_by_keyword_with_its_gradient_is_seen() -> None:
    import functools

    from torch.utils import checkpoint

    weight = torch.ones(2, requires_grad=True)

    def layer(hidden: torch.Tensor, *, memory: torch.Tensor) -> torch.Tensor:
        return hidden * memory

    with watching() as seen:
        checkpoint.checkpoint(functools.partial(layer, memory=weight * 2), weight * 3, use_reentrant=True)
    assert seen.as_facts()["live_keywords"] == ["memory"]
    assert seen.modes == {"reentrant"}


def test_watching_leaves_the_checkpoint_function_as_it_was() -> None:
    from torch.utils import checkpoint

    before = checkpoint.checkpoint
    with watching():
        assert checkpoint.checkpoint is not before
    assert checkpoint.checkpoint is before
