"""What scripts of a CTC trainer with a callback that evaluates share: a tiny wav2vec2, sounds, and the callback."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

MODEL = '''
BLANK, CHARACTERS = 28, 29


def tiny_wav2vec2(vocabulary=32):
    """Build a wav2vec2 of a few thousand random weights; dropout is off, so that nothing is a coin toss."""
    config = Wav2Vec2Config(
        vocab_size=vocabulary,
        hidden_size=@WIDTH@,
        num_hidden_layers=@LAYERS@,
        num_attention_heads=2,
        intermediate_size=2 * @WIDTH@,
        feat_extract_norm="layer",
        conv_dim=(8, 8),
        conv_stride=(10, 8),
        conv_kernel=(10, 8),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        hidden_dropout=0.0,
        activation_dropout=0.0,
        attention_dropout=0.0,
        feat_proj_dropout=0.0,
        final_dropout=0.0,
        layerdrop=0.0,
        apply_spec_augment=False,
        ctc_loss_reduction="mean",
        ctc_zero_infinity=True,
        pad_token_id=BLANK,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    return Wav2Vec2ForCTC(config)


class CTCTrainer(Trainer):
    """A Trainer that asks the model for its CTC loss itself, as many scripts have it."""

    def compute_loss(self, model, inputs, return_outputs=False, **_):
        outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss
'''


def model(layers: str, width: str) -> str:
    """Return the source of the model and of the trainer."""
    return MODEL.replace("@LAYERS@", layers).replace("@WIDTH@", width)


def callback(event: str, condition: str, call: Iterable[str], returned: str) -> str:
    """Return the source of a callback that evaluates.

    `event` is the method that it overrides, `condition` what has to hold, `call` the lines that evaluate, `returned`
    one of the levels of what becomes of `control`. A callback of an event that evaluating fires has to overlook it.
    """
    lines = [*_body(event, condition, call, returned)]
    body = "\n".join(f"        {line}".rstrip() for line in lines)
    return f'''

class EvaluateWhileTraining(TrainerCallback):
    """Evaluates in the middle of training, as people do who want to see the metrics of the training set, too."""

    def __init__(self, trainer, dataset):
        self.trainer, self.dataset = trainer, dataset
        self.busy, self.calls = False, []

    def {event}(self, args, state, control, **_):
{body}
'''


def _body(event: str, condition: str, call: Iterable[str], returned: str) -> Iterator[str]:
    if event != "on_step_end":
        yield "if self.busy or not self.trainer.is_in_train:"
        yield "    return None"
    if condition:
        yield f"if not {condition}:"
        yield "    return None"
    if returned in ("returns the copy", "restores the flags"):
        yield "as_it_was = copy.deepcopy(control)"
    yield "self.busy = True"
    yield "self.calls.append(state.global_step)"
    yield from call
    yield "self.busy = False"
    if returned == "restores the flags":
        yield "vars(control).update(vars(as_it_was))"
    results = {
        "returns the copy": "as_it_was",
        "returns it": "control",
        "returns a late copy": "copy.deepcopy(control)",
    }
    yield f"return {results.get(returned, 'None')}"
