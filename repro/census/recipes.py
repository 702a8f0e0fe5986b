"""What single model families need beyond the generic rules, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "MoonshineStreamingConfig": {"num_key_value_heads": 4, "num_attention_heads": 4},
    "SeamlessM4Tv2Config": {"variance_predictor_embed_dim": 64},
    "FunAsrNanoConfig": {"adaptor_config": {"intermediate_size": 16}},
    "Wav2Vec2BertConfig": {"vocab_size": 32},
    "Wav2Vec2ConformerConfig": {"vocab_size": 32},
}
"""By configuration class: constructor arguments laid over the generic ones (nested for sub-configurations)."""

BASES: Mapping[str, Callable[..., Any]] = {}
"""By configuration class: how to build it where its constructor needs sub-configurations."""

KEEP_WIDTHS = frozenset({"mimi", "encodec", "dac", "kyutai_speech_to_text_codec", "pocket_tts_audio_tokenizer"})
"""Model types whose widths depend on each other in ways that their field names do not show (strided convolutions)."""

_HIDDEN = ("hidden", 2, 10, 64)

INPUTS: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "SpeechT5Model": {"input_values": _HIDDEN, "decoder_input_values": _HIDDEN},
    "SpeechT5EncoderWithoutPrenet": {"input_values": _HIDDEN},
    "SpeechT5Decoder": {"hidden_states": _HIDDEN, "encoder_hidden_states": _HIDDEN},
    "SpeechT5DecoderWithoutPrenet": {"input_values": _HIDDEN, "encoder_hidden_states": _HIDDEN},
    "SpeechT5DecoderWithTextPrenet": {"input_values": ("ids", 2, 10), "encoder_hidden_states": _HIDDEN},
    "SpeechEncoderDecoderModel": {"input_values": ("noise", 2, 8000), "decoder_input_ids": ("ids", 2, 10)},
    "NeuCodecModel": {"input_features": ("noise", 1, 64, 160), "input_values": ("noise", 1, 1, 16000)},
    "FunAsrNanoEncoder": {"input_features": ("noise", 2, 64, 560), "input_features_mask": ("ones", 2, 64)},
    "GraniteSpeech5ForCTC": {"input_features": ("noise", 2, 64, 320)},
    "GraniteSpeech5Encoder": {"input_features": ("noise", 2, 64, 320)},
    "AudioFlamingo3Encoder": {"input_features": ("noise", 2, 128, 3000), "input_features_mask": ("ones", 2, 3000)},
    "Qwen3ASREncoder": {"input_features": ("noise", 2, 128, 200), "input_features_mask": ("ones", 2, 200)},
    "DiaDecoder": {"input_ids": ("ids", 2, 10, 9), "encoder_hidden_states": _HIDDEN},
    "Pop2PianoStack": {"input_ids": ("ids", 2, 10), "use_cache": ("no",)},
    "MoonshineStreamingDecoder": {"input_ids": ("ids", 2, 10), "encoder_hidden_states": _HIDDEN},
    "MusicgenForConditionalGeneration": {"input_ids": ("ids", 2, 10), "decoder_input_ids": ("ids", 8, 10)},
    "MusicgenMelodyForConditionalGeneration": {"input_ids": ("ids", 2, 10), "decoder_input_ids": ("ids", 8, 10)},
    "Phi4MultimodalAudioModel": {"hidden_states": ("noise", 2, 64, 80), "mask": ("ones", 2, 64)},
}
"""By model class: inputs for the small configuration, as (kind, *shape).

`hidden` needs a gradient, as it would inside a model."""
