"""Source that scripts of more than one model family are made of."""

from __future__ import annotations

from repro.vocabulary import Configuration


def spelled(arguments: str) -> str:
    """Return the definition of `spelled(new, old)`, for training arguments of a class."""
    return f'''

def spelled(new, old):
    """Return the name of a training argument in this release."""
    return new if new in {arguments}.__dataclass_fields__ else old
'''


def mode(configuration: Configuration, argument: str) -> str:
    """Return `argument={...}` that chooses the mode of checkpointing, or nothing where none is chosen."""
    chosen = configuration["use_reentrant"]
    return f'{argument}={{"use_reentrant": {chosen}}}' if chosen != "unset" else ""


def checkpointing(configuration: Configuration) -> list[str]:
    """Return the entries of training arguments that switch checkpointing on."""
    lines = ['spelled("gradient_checkpointing", "activation_checkpointing"): True,']
    if chosen := mode(configuration, ""):
        lines.append(f'spelled("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"): {chosen[1:]},')
    return lines


def lora(modules: str, *more: str) -> list[str]:
    """Return the lines that wrap `model` with LoRA on the modules that an expression matches."""
    return [
        "import peft",
        "",
        f'modules = r"{modules}"',
        "# Fresh LoRA weights would have gradients of exactly zero in one half.",
        "lora = peft.LoraConfig(",
        *(f"    {argument}," for argument in ("r=2", "target_modules=modules", "init_lora_weights=False", *more)),
        ")",
        "model = peft.get_peft_model(model, lora)",
    ]
