# ruff: noqa: ARG001 - what stands for a model does not use all that it takes
"""What the census feeds a model: inputs that are corrected by what the model says, and configurations made small."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from repro.census import corrections, inputs, shrink, trial


class Picky(torch.nn.Module):
    """Takes what a test gives it as its forward, and has a configuration like a model."""

    def __init__(self, forward: Any) -> None:
        super().__init__()
        from transformers import PretrainedConfig

        self.config = PretrainedConfig(vocab_size=50, hidden_size=8, image_token_id=49)
        self.forward = forward


def settled(forward: Any, **given: Any) -> inputs.Inputs:
    """Correct inputs until the forward takes them, or nothing is left to correct."""
    model = Picky(forward)
    return corrections.settled(model, given, lambda better: model(**better))[0]


def test_a_required_argument_is_added() -> None:
    def forward(input_ids: Any, speaker_states: Any) -> None:
        assert speaker_states.shape[-1] == 8

    assert set(settled(forward, input_ids=torch.ones(2, 4, dtype=torch.long))) == {"input_ids", "speaker_states"}


def test_an_argument_that_the_message_names_is_added() -> None:
    def forward(input_ids: Any, flattened_patches: Any = None) -> None:
        if flattened_patches is None:
            raise ValueError("You have to specify flattened_patches")

    assert "flattened_patches" in settled(forward, input_ids=torch.ones(2, 4, dtype=torch.long))


def test_an_argument_that_is_none_where_it_is_used_is_added() -> None:
    def forward(input_ids: Any, target_sizes: Any = None) -> int:
        return int(target_sizes.shape[0])

    assert settled(forward, input_ids=torch.ones(2, 4, dtype=torch.long))["target_sizes"].shape == (2, 2)


def test_a_cache_that_cannot_be_used_is_done_without() -> None:
    def forward(input_ids: Any, use_cache: Any = None) -> None:
        if use_cache is not False:
            raise ValueError("`get_seq_length` can only be called on Attention layers")

    assert settled(forward, input_ids=torch.ones(2, 4, dtype=torch.long))["use_cache"] is False


def test_as_many_placeholders_are_put_in_as_there_are_features() -> None:
    def forward(input_ids: Any, labels: Any) -> None:
        count = int((input_ids == 49).sum())
        if count != 6:
            raise ValueError(f"Image features and image tokens do not match: tokens: {count}, features 6")
        assert labels.shape == input_ids.shape

    text = torch.ones(2, 4, dtype=torch.long)
    assert settled(forward, input_ids=text, labels=text)["input_ids"].shape == (2, 7)


@pytest.mark.parametrize(
    ("layer", "given", "wanted"),
    [
        (torch.nn.Linear(48, 4), (2, 5, 64), (2, 5, 48)),
        (torch.nn.Linear(48, 4), (2, 3, 32, 32), (2, 16, 48)),
        (torch.nn.Conv2d(1, 4, 3), (2, 3, 32, 32), (2, 1, 32, 32)),
        (torch.nn.Conv1d(1, 4, 3), (2, 80), (2, 1, 80)),
    ],
)
def test_a_shape_is_made_what_a_layer_wants(layer: Any, given: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    def forward(pixel_values: Any) -> Any:
        return layer(pixel_values)

    assert tuple(settled(forward, pixel_values=torch.randn(*given))["pixel_values"].shape) == wanted


def test_a_picture_is_made_as_large_as_the_model_wants_it() -> None:
    def forward(pixel_values: Any) -> None:
        if pixel_values.shape[-1] != 28:
            raise ValueError(f"Input image size ({pixel_values.shape[-2]}*{pixel_values.shape[-1]}) doesn't match "
                             "model (28*28).")  # fmt: skip

    assert settled(forward, pixel_values=torch.randn(2, 3, 64, 64))["pixel_values"].shape == (2, 3, 28, 28)


def test_an_error_that_tells_nothing_about_the_inputs_is_raised_as_it_came() -> None:
    def forward(input_ids: Any) -> None:
        raise ZeroDivisionError(str(input_ids.shape))

    with pytest.raises(ZeroDivisionError):
        settled(forward, input_ids=torch.ones(2, 4, dtype=torch.long))


def test_a_part_of_a_configuration_keeps_what_the_whole_made_of_it() -> None:
    from transformers import DepthAnythingConfig

    small = shrink.small_config(DepthAnythingConfig, "small").backbone_config
    assert (small.num_hidden_layers, small.hidden_size) == (4, 64)
    assert small.out_indices == [1, 2, 3, 4]
    assert small.reshape_hidden_states is False


def test_a_field_is_made_small_under_the_name_that_the_constructor_has_for_it() -> None:
    from transformers import PretrainedConfig

    class Renaming(PretrainedConfig):
        attribute_map = {"num_local_experts": "num_experts"}  # noqa: RUF012 - as the library's classes have it

        def __init__(self, num_local_experts: int = 256, **rest: Any) -> None:
            super().__init__(**rest)
            self.num_local_experts = num_local_experts

    assert shrink.small_config(Renaming, "small").num_experts == 4


def test_a_matrix_that_a_model_leaves_unset_gets_numbers_and_one_that_it_set_keeps_them() -> None:
    unset, set_by_model = torch.nn.Parameter(torch.zeros(4, 4)), torch.nn.Parameter(torch.ones(4, 4))
    trial._fill(unset)
    trial._fill(set_by_model)
    assert bool(unset.any())
    assert bool((set_by_model == 1).all())
