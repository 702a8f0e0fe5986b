"""What single model families need beyond the generic rules, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_FEW_PATCHES = {"model_args": {"depth": 2, "embed_dim": 64, "num_heads": 4, "attn_pool_num_heads": 4, "img_size": 28}}
_FEW_EXPERTS = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 64}
_SPARSE_SECOND = {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2}
_PICTURE_WORDS = {"<image>": 99}
_IN_THREE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
_THREE_PARTS = {
    "num_hidden_layers": 3,
    "layer_types": ["full_attention"] * 3,
    **dict.fromkeys(("n_input_layers", "n_recurrent_layers", "n_output_layers"), 1),
}
_FORECAST = {"prediction_length": 8, "context_length": 16}

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "Apertus1p5Config": {
        "audio_config": {"codebook_dim": 64, "hidden_size": 64, "codebook_size": 16},
        "vision_config": {"codebook_size": 16},
        "image_token_offset": 90,
        "audio_token_offset": 106,
    },
    "Dots3NoteConfig": {
        "vision_config": {"adapter_in_dim": 64, "adapter_out_dim": 64},
        "audio_config": {"adapter_input_size": 64, "adapter_out_dim": 64},
    },
    "Dots3NoteAudioConfig": {"adapter_input_size": 64, "adapter_out_dim": 64},
    "Dots3NoteVisionConfig": {"adapter_in_dim": 64, "adapter_out_dim": 64},
    "MoonshineStreamingConfig": {"num_key_value_heads": 4, "num_attention_heads": 4},
    "Data2VecVisionConfig": {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]},
    "MoshiDepthConfig": {"input_size": 64},
    "NemotronH_Omni_Reasoning_V3_Config": {"vision_config": {"video_temporal_patch_size": 2}},
    "NeuCodecConfig": {"quantization_dim": 128},
    "Xcodec2Config": {"quantization_dim": 128},
    "VitsConfig": {"speaking_rate": 100.0},
    "Qwen3OmniMoeCode2WavConfig": {"decoder_dim": 64},
    "MuseSparkAudioConfig": {"num_hidden_layers": 4, "hidden_sizes": [32, 32, 64, 64], "depths": [1, 1, 1, 1]},
    "MuseSparkConfig": {
        "audio_config": {"num_hidden_layers": 4, "hidden_sizes": [32, 32, 64, 64], "depths": [1, 1, 1, 1]}
    },
    "Qwen3OmniMoeTalkerTextConfig": {"shared_expert_intermediate_size": 64},
    "Qwen3OmniMoeTalkerConfig": {"spatial_merge_size": 2, "text_config": {"shared_expert_intermediate_size": 64}},
    "Gemma3nTextConfig": {"num_kv_shared_layers": 0},
    "Gemma3nConfig": {
        "text_config": {"num_kv_shared_layers": 0},
        "vision_config": {"hidden_size": 2048, "model_args": {"channel_multiplier": 0.1}},
    },
    "PeVideoEncoderConfig": {"vision_config": _FEW_PATCHES},
    "PeVideoConfig": {"video_config": {"vision_config": _FEW_PATCHES}},
    "PeAudioVideoEncoderConfig": {"video_config": {"vision_config": _FEW_PATCHES}},
    "PeAudioVideoConfig": {"audio_video_config": {"video_config": {"vision_config": _FEW_PATCHES}}},
    "SeamlessM4Tv2Config": {
        "variance_predictor_embed_dim": 64,
        "variance_predictor_hidden_dim": 64,
        "variance_pred_dropout": 0.0,
    },
    "FunAsrNanoConfig": {"adaptor_config": {"intermediate_size": 16}},
    "CLIPSegConfig": {"extract_layers": [0, 1]},
    "DbrxConfig": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "DeepseekV2Config": {"num_experts_per_tok": 2},
    "DeepseekOcr2Config": {"text_config": _SPARSE_SECOND},
    "DeepseekOcr2TextConfig": _SPARSE_SECOND,
    "DiffusionGemmaConfig": {"text_config": _FEW_EXPERTS},
    "DiffusionGemmaTextConfig": _FEW_EXPERTS,
    "Dots1Config": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "ChameleonConfig": {"vocabulary_map": _PICTURE_WORDS},
    "Emu3Config": {"vocabulary_map": _PICTURE_WORDS},
    "Ernie4_5_MoeConfig": {"moe_k": 2},
    "EsmConfig": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "Granite4VisionConfig": {"deepstack_layer_map": [[0, 0], [1, 1]], "downsample_rate": "1/2"},
    "PerceptionLMConfig": {"vision_config": {"architecture": "vit_pe_core_large_patch14_336", **_FEW_PATCHES}},
    "DoryConfig": _THREE_PARTS,
    "GPTNeoConfig": {"attention_types": [[["global", "local"], 1]]},
    "Glm46VConfig": {"text_config": {"rope_parameters": _IN_THREE}},
    "Glm4vConfig": {"text_config": {"rope_parameters": _IN_THREE}},
    "Glm4vTextConfig": {"rope_parameters": _IN_THREE},
    "GlmImageConfig": {"text_config": {"rope_parameters": _IN_THREE}},
    "GlmImageTextConfig": {"rope_parameters": _IN_THREE},
    "Llama4VisionConfig": {"intermediate_size": 256},
    "Llama4Config": {"vision_config": {"intermediate_size": 256}},
    "SegGptConfig": {"intermediate_hidden_state_indices": [0, 1], "merge_index": 0},
    "Step3p7TextConfig": {"sliding_window": 16},
    "Step3p7Config": {"text_config": {"sliding_window": 16}},
    "T5Gemma2Config": {"dropout_rate": 0.0},
    "T5Gemma2DecoderConfig": {"dropout_rate": 0.0},
    "T5Gemma2TextConfig": {"dropout_rate": 0.0},
    "XmodConfig": {"default_language": "en_XX", "languages": ["en_XX", "de_DE"]},
    "FastVlmConfig": {"vision_config": {"architecture": "fastvit_mci0"}},
    "JambaConfig": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "Mamba2Config": {"num_heads": 8},
    "NemotronConfig": {"num_key_value_heads": 4},
    "Lfm2MoeConfig": {"layer_types": ["conv", "full_attention"]},
    "InformerConfig": _FORECAST,
    "TimeSeriesTransformerConfig": _FORECAST,
    "AutoformerConfig": _FORECAST,
    "Wav2Vec2BertConfig": {"vocab_size": 32},
    "Wav2Vec2ConformerConfig": {"vocab_size": 32},
}
"""By configuration class: constructor arguments laid over the generic ones (nested for sub-configurations)."""

BASES: Mapping[str, Callable[..., Any]] = {}
"""By configuration class: how to build it where its constructor needs sub-configurations."""

KEEP_WIDTHS = frozenset(
    {
        "mimi",
        "mimi_decoder",
        "encodec",
        "dac",
        "kyutai_speech_to_text_codec",
        "pocket_tts_audio_tokenizer",
        "pocket_tts_audio_tokenizer_decoder",
    }
)
"""Model types whose widths depend on each other in ways that their field names do not show (strided convolutions)."""

_HIDDEN = ("hidden", 2, 10, 64)
_PACKED_SPEECH = {"input_features": ("noise", 128, 128), "feature_lens": ("are", [64, 64])}
_STREAMED_SPEECH = {"input_ids": ("ids", 2, 8), "input_features": ("noise", 2, 128, 64)}
_MASKED_SPEECH = {
    "input_ids": ("ids", 2, 10),
    "input_features": ("noise", 2, 64, 128),
    "input_features_mask": ("ones", 2, 64),
}
_SPELLED = {"char_input_ids": ("ids", 2, 20), "char_count_per_id": ("are", [[2] * 10] * 2)}
_EXAMPLE = {
    "pixel_values": ("noise", 2, 3, 448, 448),
    "prompt_pixel_values": ("noise", 2, 3, 448, 448),
    "prompt_masks": ("noise", 2, 3, 448, 448),
}
_TWO_IMAGES = {"grid_thw": ("are", [[1, 4, 4], [1, 4, 4]])}

INPUTS: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "SpeechT5Model": {"input_values": _HIDDEN, "decoder_input_values": _HIDDEN},
    "SpeechT5EncoderWithoutPrenet": {"input_values": _HIDDEN},
    "SpeechT5Decoder": {"hidden_states": _HIDDEN, "encoder_hidden_states": _HIDDEN},
    "SpeechT5DecoderWithoutPrenet": {"input_values": _HIDDEN, "encoder_hidden_states": _HIDDEN},
    "SpeechT5DecoderWithTextPrenet": {"input_values": ("ids", 2, 10), "encoder_hidden_states": _HIDDEN},
    "SpeechEncoderDecoderModel": {"input_values": ("noise", 2, 8000), "decoder_input_ids": ("ids", 2, 10)},
    "MllamaVisionModel": {
        "pixel_values": ("noise", 2, 1, 4, 3, 448, 448),
        "aspect_ratio_ids": ("are", [[1], [1]]),
        "aspect_ratio_mask": ("ones", 2, 1, 4),
    },
    "SegGptModel": _EXAMPLE,
    "SegGptForImageSegmentation": _EXAMPLE,
    "NeuCodecModel": {"input_features": ("noise", 1, 50, 64), "input_values": ("noise", 1, 1, 16000)},
    "FunAsrNanoEncoder": {"input_features": ("noise", 2, 64, 560), "input_features_mask": ("ones", 2, 64)},
    "GraniteSpeech5ForCTC": {"input_features": ("noise", 2, 64, 320)},
    "GraniteSpeech5Encoder": {"input_features": ("noise", 2, 64, 320)},
    "AudioFlamingo3Encoder": {"input_features": ("noise", 2, 128, 64), "input_features_mask": ("ones", 2, 64)},
    "Dots3NoteAudioModel": {"input_features": ("noise", 2, 64, 64), "chunk_sample_lengths": ("are", [10240, 10240])},
    "Qwen2_5OmniAudioEncoder": _PACKED_SPEECH,
    "Qwen3OmniMoeAudioEncoder": _PACKED_SPEECH,
    "Qwen2_5OmniVisionEncoder": {"hidden_states": ("noise", 32, 1176), **_TWO_IMAGES},
    "Qwen3OmniMoeVisionEncoder": {"hidden_states": ("noise", 32, 1536), **_TWO_IMAGES},
    "MuseSparkVisionModel": {"pixel_values": ("noise", 32, 1176), **_TWO_IMAGES},
    "MoshiDepthDecoder": {"input_ids": ("ids", 2, 4), "last_hidden_state": ("hidden", 2, 4, 64)},
    "Dots3NoteVisionModel": {"pixel_values": ("noise", 32, 588), **_TWO_IMAGES},
    "MuseSparkAudioModel": {"input_values": ("noise", 2, 3840)},
    "Qwen3OmniMoeCode2Wav": {"codes": ("ids", 2, 16, 4)},
    "Nemotron3_5TranscribeForConditionalGeneration": _MASKED_SPEECH,
    "Nemotron3_5TranscribeModel": _MASKED_SPEECH,
    "Xcodec2Model": {"input_features": ("noise", 2, 25, 64), "input_values": ("noise", 2, 1, 8000)},
    "WhisperDecoderWrapper": {"input_ids": ("ids", 2, 10), "encoder_hidden_states": _HIDDEN},
    "SeamlessM4Tv2TextToUnitModel": {"inputs_embeds": _HIDDEN, **_SPELLED},
    "SeamlessM4Tv2TextToUnitForConditionalGeneration": {"inputs_embeds": _HIDDEN, **_SPELLED},
    "SeamlessM4Tv2TextToUnitDecoder": {"encoder_hidden_states": _HIDDEN, **_SPELLED},
    "Qwen2_5OmniToken2WavDiTModel": {
        "hidden_states": ("noise", 2, 8, 80),
        "condition_vector": ("noise", 2, 16, 80),
        "speaker_embedding": ("noise", 2, 8, 192),
        "quantized_code": ("ids", 2, 4),
        "time_step": ("noise", 2),
    },
    "Qwen2_5OmniToken2WavModel": {
        "code": ("ids", 1, 4),
        "conditioning": ("noise", 1, 64),
        "reference_mel": ("noise", 1, 16, 80),
        "num_steps": ("is", 3),
    },
    "Qwen3OmniMoeCode2WavDecoderBlock": {"hidden": ("hidden", 2, 64, 8)},
    "InklingVisionModel": {"pixel_values": ("noise", 2, 2, 40, 40, 3)},
    "Qwen2_5OmniToken2WavBigVGANModel": {"mel_spectrogram": ("noise", 1, 80, 4)},
    "MimiDecoderModel": {"latents": ("noise", 2, 512, 8)},
    "PocketTTSAudioTokenizerDecoderModel": {"latents": ("noise", 2, 512, 8)},
    "Gemma3nAudioEncoder": {"audio_mel": ("noise", 2, 64, 128), "audio_mel_mask": ("are", [[False] * 64] * 2)},
    "Gemma4AudioModel": {"input_features": ("noise", 2, 64, 128), "attention_mask": ("ones", 2, 64)},
    "Gemma4VisionModel": {"pixel_values": ("noise", 2, 36, 768), "pixel_position_ids": ("grid", 2, 6, 6)},
    "PeAudioModel": {"input_ids": ("ids", 2, 10), "input_values": ("noise", 2, 1, 8000)},
    "PeAudioFrameLevelModel": {"input_ids": ("ids", 2, 10), "input_values": ("noise", 2, 1, 8000)},
    "VoxtralRealtimeTextModel": {"input_ids": ("ids", 2, 10), "t_cond": ("noise", 1, 64)},
    "VoxtralRealtimeForConditionalGeneration": _STREAMED_SPEECH,
    "VoxtralRealtimeModel": _STREAMED_SPEECH,
    "Qwen3ASREncoder": {"input_features": ("noise", 2, 128, 200), "input_features_mask": ("ones", 2, 200)},
    "DiaDecoder": {"input_ids": ("ids", 2, 10, 9), "encoder_hidden_states": _HIDDEN},
    "Pop2PianoStack": {"input_ids": ("ids", 2, 10), "use_cache": ("is", False)},
    "MoonshineStreamingDecoder": {"input_ids": ("ids", 2, 10), "encoder_hidden_states": ("noise", 2, 10, 64)},
    "MusicgenForConditionalGeneration": {"input_ids": ("ids", 2, 10), "decoder_input_ids": ("ids", 8, 10)},
    "MusicgenMelodyForConditionalGeneration": {"input_ids": ("ids", 2, 10), "decoder_input_ids": ("ids", 8, 10)},
    "Phi4MultimodalAudioModel": {"hidden_states": ("noise", 2, 64, 80), "mask": ("ones", 2, 64)},
}
"""By model class: inputs for the small configuration, as (kind, *shape), or ("are", numbers), ("is", value).

`hidden` needs a gradient, as it would inside a model; `grid` numbers the patches of a picture by column and row."""
