"""The part of a script that shows what a callback that evaluates makes of a run's schedule."""

from __future__ import annotations

from collections.abc import Iterator

from repro.script import ctc, pieces
from repro.vocabulary import Configuration

EVENTS = {"every epoch": "on_epoch_end", "after an evaluation": "on_evaluate", "after a log": "on_log"}
FLAGS = {"when should_evaluate": "control.should_evaluate", "when should_log": "control.should_log"}

DATA = '''

class Speech(torch.utils.data.Dataset):
    """Random sounds with random transcripts: the outcome does not depend on what there is to learn."""

    def __init__(self, size, seed):
        random = torch.Generator().manual_seed(seed)
        self.sounds = torch.randn(size, 3200, generator=random)
        self.characters = torch.randint(0, BLANK, (size, 4), generator=random)

    def __len__(self):
        return len(self.sounds)

    def __getitem__(self, index):
        return {"input_values": self.sounds[index], "labels": self.characters[index]}


def collate(rows):
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
'''

RUN = """
    batches = []
    training_step = trainer.training_step

    def noting(model, inputs, *more, **keywords):
        batches.append(inputs["input_values"].sum().item())
        return training_step(model, inputs, *more, **keywords)

    trainer.training_step = noting
    started = [weight.detach().clone() for weight in model.parameters()]
    trainer.train()
    moved = any(not torch.equal(*pair) for pair in zip(started, (w.detach().cpu() for w in model.parameters())))
    return trainer.state.log_history, batches, moved


def reproduce():
    log, batches, moved = train(@CALLBACK@)
    plain_log, plain_batches, _ = train(callback=False)
    rows = [{row["step"]: row[loss] for row in log if loss in row} for loss in ("eval_loss", "loss")]
    plain = [{row["step"]: row[loss] for row in plain_log if loss in row} for loss in ("eval_loss", "loss")]
    lost = [sorted(set(due) - set(seen)) for due, seen in zip(plain, rows)]
    for kind, due, seen in zip(("evaluations", "loss logs"), plain, rows):
        print(f"{kind}: due at steps {sorted(due)}, logged at {sorted(seen)}")
    # An evaluation draws random numbers: from the first batch that is another one, losses cannot be compared.
    same = next((i for i, (a, b) in enumerate(zip(batches, plain_batches)) if a != b), len(batches))
    if all(lost):
        return "evaluations and loss logs lost"
    if any(lost):
        return "evaluations lost" if lost[0] else "loss logs lost"
    if any(seen[step] != due[step] for due, seen in zip(plain, rows) for step in due if step <= same):
        return "logged losses change"
    if not all(loss - loss == 0 for loss in rows[1].values()):
        return "loss is not finite"
    return "trains" if moved else "parameters do not move"
"""


def script(configuration: Configuration) -> str:
    """Return source that defines `reproduce()` for a configuration of the callback that cancels a schedule."""
    c = configuration
    on = c["callback"] != "off"
    parts = [
        "import copy\n" * (c["control"] in ("returns the copy", "returns a late copy", "restores the flags")),
        "import tempfile\n\n",
        f"from transformers import Trainer, {'TrainerCallback, ' * on}TrainingArguments, ",
        "Wav2Vec2Config, Wav2Vec2ForCTC\n",
        ctc.model("1", "16"),
        DATA,
        pieces.spelled("TrainingArguments"),
        _callback(c) if on else "",
        "\n\ndef train(callback):\n",
        '    """Train two epochs of three steps; return the log, a sum of each batch, and whether weights moved."""\n',
        "\n".join(f"    {line}".rstrip() for line in _trainer(c)),
        "\n",
        RUN.replace("@CALLBACK@", f"callback={on}"),
    ]
    return "".join(parts)


def _callback(c: Configuration) -> str:
    dataset = "self.dataset, " if c["dataset"] == "training set" else ""
    prefix = "train" if c["dataset"] == "training set" else "eval"
    if c["method"] == "predict" and not dataset:
        dataset = "self.trainer.eval_dataset, "
    call = f'self.trainer.{c["method"]}({dataset}metric_key_prefix="{prefix}")'
    event = EVENTS.get(str(c["callback"]), "on_step_end")
    return ctc.callback(event, FLAGS.get(str(c["callback"]), ""), [call], str(c["control"]))


def _trainer(c: Configuration) -> Iterator[str]:
    yield "model = tiny_wav2vec2()"
    yield 'directory = tempfile.TemporaryDirectory(prefix="reproduce-")'
    yield "args = TrainingArguments("
    yield "    output_dir=directory.name,"
    yield "    num_train_epochs=2,"
    yield "    per_device_train_batch_size=2,"
    yield "    per_device_eval_batch_size=2,"
    yield "    learning_rate=1e-3,"
    yield f"    logging_steps={c['logging_steps']},"
    if c["strategy"] == "steps":
        yield f"    eval_steps={c['eval_steps']},"
    if c["best_model"] == "yes":
        yield "    load_best_model_at_end=True,"
        yield '    metric_for_best_model="loss",'
        yield f"    save_steps={c['eval_steps']},"
        yield "    save_total_limit=1,"
    yield f'    save_strategy="{c["strategy"] if c["best_model"] == "yes" else "no"}",'
    yield "    report_to=[],"
    yield "    disable_tqdm=True,"
    yield "    remove_unused_columns=False,"
    yield "    seed=0,"
    yield "    **{"
    yield '        spelled("use_cpu", "no_cuda"): not torch.cuda.is_available(),'
    yield f'        spelled("eval_strategy", "evaluation_strategy"): "{c["strategy"]}",'
    yield "    },"
    yield ")"
    yield "train_set, eval_set = Speech(6, seed=0), Speech(2, seed=1)"
    yield "trainer = CTCTrainer("
    yield "    model=model, args=args, train_dataset=train_set, eval_dataset=eval_set, data_collator=collate"
    yield ")"
    if c["callback"] != "off":
        yield "if callback:"
        yield "    trainer.add_callback(EvaluateWhileTraining(trainer, train_set))"
