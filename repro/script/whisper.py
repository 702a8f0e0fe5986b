"""The part of a script that fine-tunes a tiny Whisper: written line by line, as a configuration says."""

from __future__ import annotations

from collections.abc import Iterator

from repro.script import pieces
from repro.vocabulary import Configuration

MODEL = '''
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, WhisperConfig, WhisperForConditionalGeneration

WORDS, PAD, START, END = 10, 10, 11, 12
MEL_BINS, FRAMES = 8, 100


def tiny_whisper():
    """Build a Whisper of a few thousand random weights; dropout is off, so that nothing is a coin toss."""
    config = WhisperConfig(
        vocab_size=13,
        num_mel_bins=MEL_BINS,
        d_model=16,
        encoder_layers=2,
        decoder_layers=@LAYERS@,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_source_positions=FRAMES // 2,
        max_target_positions=16,
        dropout=0.0,
        pad_token_id=PAD,
        bos_token_id=START,
        decoder_start_token_id=START,
        eos_token_id=END,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    config._attn_implementation = "@ATTENTION@"
    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(config)
    model.generation_config.forced_decoder_ids = None
    return model


class Speech(torch.utils.data.Dataset):
    """Random spectrograms with random transcripts: the outcome does not depend on what there is to learn."""

    def __init__(self, size, seed):
        random = torch.Generator().manual_seed(seed)
        self.features = torch.randn(size, MEL_BINS, FRAMES, generator=random)
        self.words = torch.randint(0, WORDS, (size, 4), generator=random)

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        return {"input_features": self.features[index], "labels": [*self.words[index].tolist(), END]}


def collate(rows):
    return {
        "input_features": torch.stack([row["input_features"] for row in rows]),
        "labels": torch.tensor([row["labels"] for row in rows]),
    }
'''

METRICS = '''

def compute_metrics(prediction):
    """Return the share of wrong tokens, as `wer`: enough to choose a best model by."""
    predicted = prediction.predictions
    predicted = predicted[0] if isinstance(predicted, tuple) else predicted
    predicted = predicted.argmax(-1) if predicted.ndim == 3 else predicted
    width = min(predicted.shape[1], prediction.label_ids.shape[1])
    labels = prediction.label_ids[:, :width]
    return {"wer": float((predicted[:, :width] != labels)[labels >= 0].mean())}
'''

CHECK = """
    # No error is not enough: a run whose gradients are lost is a failure too, and the worst kind.
    started = {name: weight.detach().clone() for name, weight in model.named_parameters() if weight.requires_grad}
    gradients = {}

    def look(optimizer, *_):
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                gradients.setdefault(name, None if weight.grad is None else weight.grad.abs().max().item())

    hook = register_optimizer_step_pre_hook(look)
    try:
        trainer.train()
    finally:
        hook.remove()
"""

VERDICT = """
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    print("losses:", losses)
    if not losses or not all(loss - loss == 0 for loss in losses):
        return "loss is not finite"
    if any(gradients.get(name) is None for name in started):
        return "gradients missing"
    weights = dict(model.named_parameters())
    if any(gradients[name] and torch.equal(started[name], weights[name].detach()) for name in started):
        return "parameters do not move"
    return "trains"
"""


def script(configuration: Configuration) -> str:
    """Return source that defines `reproduce()` for a configuration of the failures of fine-tuning Whisper."""
    c = configuration
    parts = [
        _imports(c),
        MODEL.replace("@LAYERS@", str(c["decoder_layers"])).replace("@ATTENTION@", str(c["attention"])),
    ]
    if _measures(c):
        parts.append(METRICS)
    parts.append(pieces.spelled("Seq2SeqTrainingArguments"))
    lines = [*_model(c), *_arguments(c), *_trainer(c)]
    parts.append("\n\ndef reproduce():\n" + "\n".join(f"    {line}".rstrip() for line in lines) + "\n")
    parts.append(CHECK)
    if c["predict_after"] != "no":
        argument = ", predict_with_generate=True" if c["predict_after"] == "with argument" else ""
        parts.append(f"    print(trainer.predict(test_dataset=trainer.eval_dataset{argument}).metrics)\n")
    return "".join([*parts, VERDICT])


def _imports(c: Configuration) -> str:
    names = ["functools"] * (c["retain_graph"] == "yes") + ["inspect"] * (c["tokenizer"] == "given") + ["tempfile"]
    return "".join(f"import {name}\n" for name in names)


def _measures(c: Configuration) -> bool:
    return c["evaluation"] != "no" or c["predict_after"] != "no"


def _model(c: Configuration) -> Iterator[str]:
    yield "model = tiny_whisper()"
    if c["use_cache"] != "untouched":
        yield f"model.config.use_cache = {c['use_cache']}"
    if c["encoder"] == "frozen" and c["lora"] == "off":
        yield "model.freeze_encoder()"
    if c["lora"] == "before":
        yield from _lora(c)
    if c["checkpointing"] in ("method", "both"):
        yield f"model.gradient_checkpointing_enable({pieces.mode(c, 'gradient_checkpointing_kwargs')})"
    if c["stray_variable"] == "set":
        yield "model_gradient_checkpointing = True  # noqa: F841 - a line of the report: a variable that nobody reads"
    if c["lora"] == "after":
        yield from _lora(c)


def _lora(c: Configuration) -> Iterator[str]:
    inside = ".*decoder.*" if c["encoder"] == "frozen" else ".*"
    yield from pieces.lora(rf"{inside}\.(q_proj|v_proj)")


def _arguments(c: Configuration) -> Iterator[str]:
    yield 'directory = tempfile.TemporaryDirectory(prefix="reproduce-")'
    yield "args = Seq2SeqTrainingArguments("
    yield "    output_dir=directory.name,"
    yield "    max_steps=2,"
    yield "    per_device_train_batch_size=2,"
    yield "    per_device_eval_batch_size=2,"
    if c["accumulation"] != 1:
        yield f"    gradient_accumulation_steps={c['accumulation']},"
    yield "    learning_rate=1e-3,"
    yield "    logging_steps=1,"
    yield "    report_to=[],"
    yield "    disable_tqdm=True,"
    yield "    remove_unused_columns=False,"
    if c["lora"] != "off":
        yield '    label_names=["labels"],'
    if c["precision"] != "fp32":
        yield f"    {c['precision']}=True,"
    if c["predict_with_generate"] == "yes":
        yield "    predict_with_generate=True,"
        yield "    generation_max_length=8,"
    if c["best_model"] == "yes":
        yield "    load_best_model_at_end=True,"
        yield '    metric_for_best_model="wer",'
        yield "    greater_is_better=False,"
        yield '    save_strategy="steps",'
        yield "    save_steps=1,"
        yield "    save_total_limit=1,"
    else:
        yield '    save_strategy="no",'
    yield "    **{"
    yield '        spelled("use_cpu", "no_cuda"): not torch.cuda.is_available(),'
    if c["evaluation"] != "no":
        yield '        spelled("eval_strategy", "evaluation_strategy"): "steps",'
        yield '        "eval_steps": 1,'
    if c["checkpointing"] in ("arguments", "both"):
        yield from (f"        {entry}" for entry in pieces.checkpointing(c))
    yield "    },"
    yield ")"


def _trainer(c: Configuration) -> Iterator[str]:
    if c["tokenizer"] == "given":
        yield "names = inspect.signature(Seq2SeqTrainer).parameters"
        yield 'processing = "processing_class" if "processing_class" in names else "tokenizer"'
        yield "extractor = transformers.WhisperFeatureExtractor(feature_size=MEL_BINS, chunk_length=1)"
    yield "trainer = Seq2SeqTrainer("
    yield "    model=model,"
    yield "    args=args,"
    yield f"    train_dataset=Speech({2 * 2 * int(c['accumulation'])}, seed=0),"
    yield "    eval_dataset=Speech(4, seed=1),"
    yield "    data_collator=collate,"
    if _measures(c):
        yield "    compute_metrics=compute_metrics,"
    if c["tokenizer"] == "given":
        yield "    **{processing: extractor},"
    yield ")"
    if c["retain_graph"] == "yes":
        yield "trainer.accelerator.backward = functools.partial(trainer.accelerator.backward, retain_graph=True)"
