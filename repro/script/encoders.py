"""The part of a script that trains a tiny speech encoder with its head, and compares gradients with the plain run."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from repro.script import pieces
from repro.vocabulary import Configuration

TRANSFORMER = """
hidden_size=16,
num_hidden_layers=@LAYERS@,
num_attention_heads=2,
intermediate_size=32,
"""
CONVOLUTIONS = """
conv_dim=(8, 8),
conv_stride=(10, 8),
conv_kernel=(10, 8),
num_conv_pos_embeddings=4,
num_conv_pos_embedding_groups=2,
"""
STILL = """
hidden_dropout=0.0,
activation_dropout=0.0,
attention_dropout=0.0,
layerdrop=0.0,
"""
STILL_IN_FRONT = """
feat_proj_dropout=0.0,
final_dropout=0.0,
apply_spec_augment=False,
"""
TOKENS = """
vocab_size=TOKENS,
pad_token_id=BLANK,
bos_token_id=START,
eos_token_id=END,
"""
CTC = """
ctc_loss_reduction="mean",
ctc_zero_infinity=True,
"""
LIKE_WAV2VEC2 = TRANSFORMER + CONVOLUTIONS + TOKENS + STILL + STILL_IN_FRONT + CTC

SEW_D = """
feat_extract_norm="group",
squeeze_factor=2,
position_buckets=4,
max_position_embeddings=16,
pooler_hidden_size=16,
"""
SPEECHT5 = """
hidden_size=16,
encoder_layers=@LAYERS@,
decoder_layers=@LAYERS@,
encoder_attention_heads=2,
decoder_attention_heads=2,
encoder_ffn_dim=32,
decoder_ffn_dim=32,
encoder_max_relative_position=8,
positional_dropout=0.0,
encoder_layerdrop=0.0,
decoder_layerdrop=0.0,
feat_extract_norm="layer",
decoder_start_token_id=START,
max_text_positions=32,
"""
WHISPER = """
d_model=16,
encoder_layers=@LAYERS@,
decoder_layers=1,
encoder_attention_heads=2,
decoder_attention_heads=2,
encoder_ffn_dim=32,
decoder_ffn_dim=32,
num_mel_bins=8,
max_source_positions=50,
num_labels=WORDS,
classifier_proj_size=16,
dropout=0.0,
encoder_layerdrop=0.0,
"""
LAYER_NORM = 'feat_extract_norm="layer",\n'
CTC_ITEM = '"input_values": self.sounds[index], "labels": self.words[index]'


@dataclass(frozen=True)
class Family:
    """How a script writes one family of models.

    `settings` are the lines of its configuration (`own` those that only OmniASR's outer one has), `shape` is what one
    example of sound is, `item` what a data set returns for it. The rest are the places that are frozen or hooked:
    expressions that parameter names match, and names of modules.
    """

    config: str
    model: str
    settings: str
    own: str = ""
    shape: str = "4800"
    item: str = CTC_ITEM
    convolutions: str = ""
    by_method: bool = True
    front: str = ""
    positions: str = ""
    head: str = ""
    entrance: str = ""
    hook: str = "entrance.register_forward_hook(lambda module, inputs, output: output.requires_grad_(True))"
    saved: str = ""
    layers: str = ""


FAMILIES: Mapping[str, Family] = {
    "wav2vec2": Family(
        "Wav2Vec2Config",
        "Wav2Vec2ForCTC",
        LIKE_WAV2VEC2 + LAYER_NORM,
        front=r"feature_projection|pos_conv_embed|encoder\.layer_norm|masked_spec_embed",
        head="lm_head",
        entrance="wav2vec2.feature_projection.projection",
        saved='["lm_head"]',
    ),
    "whisper": Family(
        "WhisperConfig",
        "WhisperForAudioClassification",
        WHISPER,
        shape="8, 100",
        item='"input_features": self.sounds[index], "labels": self.words[index, 0]',
        convolutions=r"encoder\.conv[12]\.",
        by_method=False,
        front=r"encoder\.conv[12]\.|embed_positions",
        head=r"encoder\.layer_norm|projector|classifier",
        entrance="encoder.conv2",
        saved='["projector", "classifier"]',
    ),
    "sew-d": Family(
        "SEWDConfig",
        "SEWDForCTC",
        LIKE_WAV2VEC2 + SEW_D,
        positions=r"rel_embeddings|encoder\.encoder\.LayerNorm",
    ),
    "speecht5": Family(
        "SpeechT5Config",
        "SpeechT5ForSpeechToText",
        SPEECHT5 + CONVOLUTIONS + TOKENS + STILL + STILL_IN_FRONT,
        positions=r"embed_positions\.pe_k",
    ),
    "wavlm": Family(
        "WavLMConfig",
        "WavLMForCTC",
        LIKE_WAV2VEC2 + LAYER_NORM,
        positions="rel_attn_embed",
        layers="wavlm.encoder.layers",
    ),
    "omniasr": Family(
        "OmniASRCTCConfig",
        "OmniASRForCTC",
        TRANSFORMER + CONVOLUTIONS + STILL,
        own="vocab_size=TOKENS,\npad_token_id=BLANK,\nblank_token_id=BLANK,\n",
        shape="1, 4800",
        item='"input_values": self.sounds[index], "padding_mask": torch.ones(4800), "labels": self.words[index]',
        convolutions=r"subsampling\.conv_layers",
        by_method=False,
        entrance="model.audio_tower.subsampling",
        hook="entrance.register_forward_pre_hook(lambda module, inputs: (inputs[0].requires_grad_(True),))",
    ),
}

DATA = '''

class Speech(torch.utils.data.Dataset):
    """Random sounds with random labels: the outcome does not depend on what there is to learn."""

    def __init__(self, size):
        random = torch.Generator().manual_seed(0)
        self.sounds = torch.randn(size, @SHAPE@, generator=random)
        self.words = torch.randint(0, WORDS, (size, 3), generator=random)

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        return {@ITEM@}


def collate(rows):
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
'''

ENDLESS = '''

class EndlessError(RuntimeError):
    """Stops a backward that would go on until threads or memory are used up."""


def stop_what_is_endless(model):
    """Count how often the layers run: once in a forward, and once more in its backward where they are recomputed."""
    layers, runs = model.@LAYERS@, 0

    def count(*_):
        nonlocal runs
        runs += 1
        if runs > 16 * len(layers):
            raise EndlessError(f"{runs} runs of checkpointed code, in {len(layers)} layers and at most two steps")

    for layer in layers:
        # Inside the layer: a hook on the layer itself may stay outside of what is recomputed.
        layer.feed_forward.register_forward_pre_hook(count)
'''

TRAIN = """
    started = {name: weight.detach().clone() for name, weight in model.named_parameters() if weight.requires_grad}
    gradients = {}

    def look(optimizer, *_):
        for name, weight in model.named_parameters():
            if weight.requires_grad and not name.endswith("k_proj.bias"):  # that one is zero by nature
                gradients.setdefault(name, None if weight.grad is None else weight.grad.detach().clone())

    hook = register_optimizer_step_pre_hook(look)
    try:
        trainer.train()
    finally:
        hook.remove()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    weights = dict(model.named_parameters())
    still = [
        name
        for name, gradient in gradients.items()
        if gradient is not None and gradient.any() and torch.equal(started[name], weights[name].detach())
    ]
    return losses, gradients, still


def reproduce():
    losses, gradients, still = train()
    print("losses:", losses)
    # No error is not enough: a run whose gradients are lost is a failure too, and the worst kind.
    _, wanted, _ = train(checkpointing=False)
    wanted = {name: gradient for name, gradient in wanted.items() if gradient is not None}
    missing = [name for name in wanted if gradients.get(name) is None]
    print(f"gradients missing, of {len(wanted)}: {len(missing)}", *missing[:3])
    if missing:
        return "gradients missing"
    for name, gradient in wanted.items():
        if not torch.allclose(gradients[name], gradient, rtol=1e-3, atol=1e-4 * gradient.abs().max().item()):
            return "gradients wrong"
    if not losses or not all(loss - loss == 0 for loss in losses):
        return "loss is not finite"
    return "parameters do not move" if still else "trains"
"""


def script(family: str, configuration: Configuration) -> str:
    """Return source that defines `reproduce()` for a configuration of the failures of a family of speech encoders."""
    its, c = FAMILIES[family], configuration
    train = "\n".join(f"    {line}".rstrip() for line in (*_model(its, c), *_trainer(c)))
    parts = [
        "import tempfile\n\n",
        "from torch.optim.optimizer import register_optimizer_step_pre_hook\n",
        f"from transformers import {its.config}, {its.model}, Trainer, TrainingArguments\n\n",
        "WORDS, BLANK, START, END, TOKENS = 10, 10, 11, 12, 13\n",
        _tiny(its, c),
        DATA.replace("@SHAPE@", its.shape).replace("@ITEM@", its.item),
        pieces.spelled("TrainingArguments"),
        ENDLESS.replace("@LAYERS@", its.layers) if its.layers else "",
        "\n\ndef train(checkpointing=True):\n",
        '    """Take two steps; return the losses, the first gradients, and the weights that stayed as they were."""\n',
        train,
        "\n",
        TRAIN,
    ]
    return "".join(parts)


def _tiny(its: Family, c: Configuration) -> str:
    settings = its.settings.replace("@LAYERS@", str(c.get("layers", 2)))
    lines = "\n".join(line for line in settings.splitlines() if line)
    if its.own:
        lines = f"{its.own}audio_config=dict(\n{textwrap.indent(lines, '    ')}\n),"
    return f'''

def tiny_model():
    """Build a model of a few thousand random weights; dropout is off, so that nothing is a coin toss."""
    config = {its.config}(
{textwrap.indent(lines, " " * 8)}
    )
    torch.manual_seed(0)
    return {its.model}(config)
'''


def _model(its: Family, c: Configuration) -> Iterator[str]:
    yield "model = tiny_model()"
    yield from _frozen(its, str(c.get("frozen", "nothing")))
    if c.get("head") == "frozen":
        yield from _freeze(its.head)
    if c.get("lora") == "before":
        yield from _lora(its, c)
    if c["checkpointing"] == "method":
        yield "if checkpointing:"
        yield f"    model.gradient_checkpointing_enable({pieces.mode(c, 'gradient_checkpointing_kwargs')})"
    if c.get("lora") == "after":
        yield from _lora(its, c)
    if c.get("inputs") == "enable_input_require_grads":
        yield "if checkpointing:"
        yield "    model.enable_input_require_grads()"
    elif c.get("inputs") == "hook":
        whole = "model" if c.get("lora", "off") == "off" else "model.get_base_model()"
        yield f'entrance = {whole}.get_submodule("{its.entrance}")'
        yield "if checkpointing:"
        yield f"    {its.hook}"
    if its.layers:
        yield "stop_what_is_endless(model)"


def _frozen(its: Family, what: str) -> Iterator[str]:
    if what in ("convolutions", "all before the layers") and its.by_method:
        yield "model.freeze_feature_encoder()"
    if what == "convolutions" and not its.by_method:
        yield from _freeze(its.convolutions)
    if what == "relative positions":
        yield from _freeze(its.positions)
    if what == "all before the layers":
        yield from _freeze(its.front)


def _freeze(names: str) -> Iterator[str]:
    yield "for name, weight in model.named_parameters():"
    yield f'    if re.search(r"{names}", name):'
    yield "        weight.requires_grad_(False)"


def _lora(its: Family, c: Configuration) -> list[str]:
    saved = [f"modules_to_save={its.saved}"] if c["head"] == "trainable" else []
    return pieces.lora(r".*encoder.*\.(q_proj|v_proj)", *saved)


def _trainer(c: Configuration) -> Iterator[str]:
    yield 'directory = tempfile.TemporaryDirectory(prefix="reproduce-")'
    yield 'arguments = {spelled("use_cpu", "no_cuda"): not torch.cuda.is_available()}'
    if c["checkpointing"] == "arguments":
        yield "if checkpointing:"
        yield "    arguments |= {"
        yield from (f"        {entry}" for entry in pieces.checkpointing(c))
        yield "    }"
    yield "args = TrainingArguments("
    yield "    output_dir=directory.name,"
    yield "    max_steps=2,"
    yield "    per_device_train_batch_size=2,"
    yield "    learning_rate=1e-3,"
    yield "    logging_steps=1,"
    yield '    save_strategy="no",'
    yield "    report_to=[],"
    yield "    disable_tqdm=True,"
    yield "    remove_unused_columns=False,"
    yield '    label_names=["labels"],'
    yield "    **arguments,"
    yield ")"
    yield "trainer = Trainer(model=model, args=args, train_dataset=Speech(4), data_collator=collate)"
