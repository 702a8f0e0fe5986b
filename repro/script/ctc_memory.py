"""The part of a script that shows what an evaluation in a callback keeps on the device, and what that leads to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from repro.script import ctc, pieces
from repro.vocabulary import Configuration, Level

SIZES = """
ON_CUDA = torch.cuda.is_available()
# On a CPU every byte is counted, so that a run may be small. CUDA takes memory in segments of up to 20 MiB.
TRAIN_SET, EVAL_SET, BATCH, SAMPLES = (4096, 64, 32, 64000) if ON_CUDA else (480, 8, 16, 3200)
LAYERS, WIDTH = (4, 256) if ON_CUDA else (1, 16)
"""

DATA = '''

class Speech(torch.utils.data.Dataset):
    """Random sounds with random transcripts, made when they are asked for."""

    def __init__(self, size, seed@RAGGED_ARGUMENT@):
        self.size, self.seed@RAGGED_NAME@ = size, seed@RAGGED_VALUE@

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if not 0 <= index < self.size:
            raise IndexError(index)
        random = torch.Generator().manual_seed(10_000 * self.seed + index)
        samples = SAMPLES
@RAGGED@        characters = torch.randint(0, BLANK, (4,), generator=random)
        return {"input_values": torch.randn(samples, generator=random), "labels": characters}


def collate(rows):
    sounds = [row["input_values"] for row in rows]
    return {
        "input_values": pad_sequence(sounds, batch_first=True),
        "attention_mask": pad_sequence([torch.ones(len(s), dtype=torch.long) for s in sounds], batch_first=True),
        "labels": torch.stack([row["labels"] for row in rows]),
    }
'''
RAGGED = """        if self.ragged:
            samples = SAMPLES // 2 * int(torch.randint(1, 5, (1,), generator=random))
"""

METRICS = '''

class Transcriptions:
    """What scripts give as `compute_metrics`: here the length of what is transcribed, in characters per clip."""

    def __init__(self):
        self.texts, self.last = [], []

    def __call__(self, prediction, compute_result=True):
        kept, labels = prediction.predictions, prediction.label_ids
        for batch in kept if isinstance(labels, list) else [kept]:
            batch = batch[0] if isinstance(batch, tuple) else batch
            for likely in batch.argmax(-1) if batch.ndim == 3 else batch:
                likely = [BLANK if character < 0 else int(character) for character in likely]
                changes = [new for new, old in zip(likely, [None, *likely]) if new != old]
                self.texts.append([character for character in changes if character != BLANK])
        if not compute_result:
            return {}
        self.last, self.texts = self.texts, []
        return {"characters": sum(map(len, self.last)) / len(self.last)}
'''
COUNT = '''

def count(prediction):
    """Compute a metric that does not reduce logits to characters."""
    batches = prediction.predictions if isinstance(prediction.predictions, list) else [prediction.predictions]
    return {"examples": float(sum(len(batch[0] if isinstance(batch, tuple) else batch) for batch in batches))}
'''

DEVICE = '''

class CudaDevice:
    """The GPU, capped, so that it is really out of memory past the capacity."""

    def __init__(self, capacity):
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, capacity / whole) if capacity else 1.0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.peak = torch.cuda.max_memory_allocated()

    def live(self):
        return torch.cuda.memory_allocated()


class EmulatedDevice(TorchDispatchMode):
    """Counts the bytes of all tensors there are, and raises past a capacity what CUDA would: a CPU tells neither."""

    def __init__(self, capacity):
        super().__init__()
        self.capacity, self.watches, self.now, self.peak = capacity, {}, 0, 0

    def __enter__(self):
        self.numpy = torch.Tensor.numpy
        # What becomes numpy has left a GPU for good; on a CPU it would share the tensor's memory, and keep it.
        torch.Tensor.numpy = lambda tensor, **keywords: self.numpy(tensor, **keywords).copy()
        return super().__enter__()

    def __exit__(self, *error):
        torch.Tensor.numpy = self.numpy
        return super().__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.note(tensor.untyped_storage())
        return result

    def note(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if key in self.watches:
            return
        if self.capacity and self.now + size > self.capacity:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size:,} bytes. (Emulated, as there is no CUDA device here: "
                f"{self.now:,} bytes are in use, and it is to have {self.capacity:,}.)"
            )
        self.watches[key] = weakref.ref(storage, lambda _: self.forget(key, size))
        self.now += size
        self.peak = max(self.peak, self.now)

    def forget(self, key, size):
        del self.watches[key]
        self.now -= size

    def live(self):
        return self.now
'''


NOTING = """
    def on_prediction_step(self, args, state, control, **_):
        if self.busy:
            self.kept.append(self.device.live())
"""

RUN = """
    trainer.remove_callback(PrinterCallback)
    evaluating = EvaluateWhileTraining(trainer, evaluated)
    evaluating.cured = cured
    started = [weight.detach().clone() for weight in model.parameters()]
    with (CudaDevice if ON_CUDA else EmulatedDevice)(capacity) as device:
        evaluating.device, evaluating.kept = device, []
        if callback:
            trainer.add_callback(evaluating)
        trainer.train()
    rows = [row for row in trainer.state.log_history if "train_loss" in row and "total_flos" not in row]
    names = ("train_loss", "train_characters", "train_examples")
    return types.SimpleNamespace(
        peak=device.peak,
        kept=evaluating.kept,
        evaluations=evaluating.calls,
        metrics={name: row[name] for row in rows[-1:] for name in names if name in row},
        texts=getattr(trainer.compute_metrics, "last", None),
        losses=[row["loss"] for row in trainer.state.log_history if "loss" in row],
        moved=any(not torch.equal(old, new.detach().cpu()) for old, new in zip(started, model.parameters())),
    )


def reproduce():
    without, reported = train(callback=False), train()
    # As far above what the run takes without the callback as it is below what it takes with it.
    capacity = int((without.peak * reported.peak) ** 0.5)
    print(f"without the callback it takes {without.peak:,} bytes, with it as reported {reported.peak:,}")
    growth = (reported.kept[-1] - reported.kept[0]) / (8 * (len(reported.kept) - 1))
    print(f"each example that it evaluates leaves {growth:,.0f} bytes behind, {growth * TRAIN_SET:,.0f} in all")
    print(f"now on a device of {capacity:,} bytes")
    try:
        return under(capacity@TWIN@)
    except RuntimeError as error:
        traceback.print_exc()
        places = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        outcome = name_of(error)
        if outcome == "out of memory in the evaluation" and "on_step_end" not in places:
            outcome = "out of memory in training"
    # What an emulated device says is no more than what a real one would do.
    return outcome if ON_CUDA else f"would be {outcome}"


def under(capacity@TWIN@):
    seen = train(capacity=capacity@HERE@)
    print(f"it takes {seen.peak:,} bytes; the callback evaluated at steps {seen.evaluations}, and gave {seen.metrics}")
@COMPARISON@    if not seen.losses or not all(loss - loss == 0 for loss in seen.losses):
        return "loss is not finite"
    return "trains" if seen.moved else "parameters do not move"
"""

COMPARISON = """    if not seen.evaluations:
        return "the callback never evaluates"
    if set(plain.metrics) - set(seen.metrics):
        return "a metric is gone"
    same = all(abs(seen.metrics[name] - value) <= 1e-4 * abs(value) for name, value in plain.metrics.items())
    if not same or seen.texts != plain.texts:
        return "a metric changes"
"""

PREPROCESS = {
    "argmax": "lambda logits, labels: logits.argmax(dim=-1)",
    "argmax and labels": "lambda logits, labels: (logits.argmax(dim=-1), labels)",
}
SCHEDULES: Mapping[Level, tuple[str, str, int]] = {
    "every 5 steps": ('spelled("eval_strategy", "evaluation_strategy"): "steps",', '"eval_steps": 5,', 5),
    "every 100 steps": ('spelled("eval_strategy", "evaluation_strategy"): "steps",', '"eval_steps": 100,', 100),
    "epoch": ('spelled("eval_strategy", "evaluation_strategy"): "epoch",', "", 5),
    "epoch, as written": ('"evaluation_strategy": "epoch",', "", 5),
}
CURES: Mapping[str, tuple[str, Mapping[Level, str]]] = {
    "batch_metrics": ("batch_eval_metrics", {"yes": "True"}),
    "concat": ("eval_do_concat_batches", {"no": "False"}),
    "loss_only": ("prediction_loss_only", {"yes": "True"}),
    "auto_find": ("auto_find_batch_size", {"yes": "True"}),
    "accumulation": ("eval_accumulation_steps", {1: "1", 4: "4", 15: "15", 1000: "1000"}),
    "eval_batch": ("per_device_eval_batch_size", {1: "1", 2: "2", 8: "8"}),
    "empty_cache_steps": ("torch_empty_cache_steps", {1: "1"}),
}
WORKLOAD: Mapping[str, Level] = {"lengths": "equal", "vocabulary": 256, "metrics": "wer", "dataset": "training set"}
"""What is no cure: what the callback's evaluation gives with a cure is compared with the same workload without it."""


def script(configuration: Configuration) -> str:
    """Return source that defines `reproduce()` for a configuration of the callback that fills the device."""
    c = configuration
    ragged = c["lengths"] == "ragged"
    data = DATA.replace("@RAGGED@", RAGGED if ragged else "")
    for mark, text in (("ARGUMENT", ", ragged=False"), ("NAME", ", self.ragged"), ("VALUE", ", ragged")):
        data = data.replace(f"@RAGGED_{mark}@", text if ragged else "")
    parts = [
        "import contextlib\n" * ("no_grad" in str(c["guard"])),
        "import copy\nimport gc\nimport tempfile\nimport types\nimport weakref\n\n",
        "from torch.nn.utils.rnn import pad_sequence\n",
        "from torch.utils._python_dispatch import TorchDispatchMode\n",
        "from torch.utils._pytree import tree_leaves\n",
        "from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments, ",
        "Wav2Vec2Config, Wav2Vec2ForCTC\n",
        SIZES,
        ctc.model("LAYERS", "WIDTH"),
        data,
        METRICS,
        COUNT if c["metrics"] == "count" else "",
        pieces.spelled("TrainingArguments"),
        DEVICE,
        _callback(c),
        NOTING,
        _train(c),
        RUN,
    ]
    changed = any(c[name] != level for name, level in WORKLOAD.items())
    here = ", changed=True, cured=True" if c["callback"] != "off" else ", callback=False, changed=True, cured=True"
    text = "".join(parts).replace("@HERE@", here)
    if c["callback"] == "off":
        return text.replace("@COMPARISON@", "").replace("@TWIN@", "")
    plain = "train(changed=True)" if changed else "reported"
    text = text.replace("under(capacity@TWIN@)\n    except", f"under(capacity, {plain})\n    except")
    return text.replace("@TWIN@", ", plain").replace("@COMPARISON@", COMPARISON)


def _callback(c: Configuration) -> str:
    guard = str(c["guard"]).split("+")
    batch = "" if c["call_batch"] == "unset" else f", per_device_eval_batch_size={c['call_batch']}"
    call = f'self.trainer.evaluate(self.dataset, metric_key_prefix="train"{batch})'
    before = {"eval": "self.trainer.model.eval()", "zero_grad": "self.trainer.optimizer.zero_grad(set_to_none=True)"}
    after = {"eval": "self.trainer.model.train()", "empty_cache": "torch.cuda.empty_cache()"}
    around = {"gc": "gc.collect()"}
    lines = [*_if_cured(guard, {**before, **around})]
    if "no_grad" in guard:
        lines += ["with torch.no_grad() if self.cured else contextlib.nullcontext():", f"    {call}"]
    else:
        lines.append(call)
    lines += _if_cured(guard, {**after, **around})
    every = " or self.cured" if c["callback"] == "every step" else ""
    return ctc.callback("on_step_end", f"(control.should_evaluate{every})", lines, "returns the copy")


def _if_cured(guard: list[str], lines: Mapping[str, str]) -> Iterator[str]:
    wanted = [line for name, line in lines.items() if name in guard]
    if wanted:
        yield "if self.cured:"
        yield from (f"    {line}" for line in wanted)


def _train(c: Configuration) -> str:
    lines = "\n".join(f"    {line}".rstrip() for line in (*_workload(c), *_arguments(c), *_trainer(c)))
    return f'''

def train(callback=True, changed=False, cured=False, capacity=None):
    """Train on a device of some capacity, None for all there is, and tell what was seen.

    `changed`: with another workload than the reported one, `cured`: with the other settings; where there are any.
    """
{lines}
'''


def _workload(c: Configuration) -> Iterator[str]:
    yield f"model = tiny_wav2vec2(vocabulary={c['vocabulary']} if changed else 256)"
    ragged = ", changed" if c["lengths"] == "ragged" else ""
    yield f"train_set, eval_set = Speech(TRAIN_SET, 0{ragged}), Speech(EVAL_SET, 1{ragged})"
    if c["dataset"] == "training set":
        yield "evaluated = train_set"
    else:
        part = f"Speech(EVAL_SET, 0{ragged})" if c["dataset"] == "part of the training set" else "eval_set"
        yield f"evaluated = {part} if changed else train_set"


def _arguments(c: Configuration) -> Iterator[str]:
    strategy, every, steps = SCHEDULES["every 5 steps"]
    yield f"schedule = {{{strategy} {every}}}"
    if c["schedule"] != "every 5 steps":
        strategy, every, steps = SCHEDULES[c["schedule"]]
        yield "if cured:"
        yield f"    schedule = {{{f'{strategy} {every}'.strip(' ,')}}}"
    cures = [f'"{argument}": {levels[c[name]]},' for name, (argument, levels) in CURES.items() if c[name] in levels]
    if c["checkpointing"] == "yes":
        cures.append('spelled("gradient_checkpointing", "activation_checkpointing"): True,')
    if cures:
        yield "cures = {"
        yield from (f"    {cure}" for cure in cures)
        yield "}"
    yield 'directory = tempfile.TemporaryDirectory(prefix="reproduce-")'
    yield "args = TrainingArguments("
    yield "    output_dir=directory.name,"
    yield f"    max_steps={steps} if cured else 5," if steps != 5 else "    max_steps=5,"
    yield "    logging_steps=5,"
    yield "    per_device_train_batch_size=BATCH,"
    yield "    learning_rate=1e-3,"
    yield '    save_strategy="no",'
    yield "    report_to=[],"
    yield "    disable_tqdm=True,"
    yield "    remove_unused_columns=False,"
    yield "    seed=0,"
    yield "    **schedule,"
    yield '    **{spelled("use_cpu", "no_cuda"): not ON_CUDA},'
    if cures:
        yield "    **(cures if cured else {}),"
    yield ")"


def _trainer(c: Configuration) -> Iterator[str]:
    measure = {"wer": "Transcriptions()", "count": "count", "none": "None"}[str(c["metrics"])]
    yield "trainer = CTCTrainer("
    yield "    model=model,"
    yield "    args=args,"
    yield "    train_dataset=train_set,"
    yield "    eval_dataset=eval_set,"
    yield "    data_collator=collate,"
    yield (
        f"    compute_metrics={measure} if changed else Transcriptions(),"
        if c["metrics"] != "wer"
        else ("    compute_metrics=Transcriptions(),")
    )
    if c["preprocess"] != "none":
        yield f"    preprocess_logits_for_metrics=({PREPROCESS[str(c['preprocess'])]}) if cured else None,"
    yield ")"
