"""A clean start for every trial in a shared process: seeds, and the state that libraries keep between runs."""

from __future__ import annotations

import gc
import logging
import os
import random
import sys
import warnings

import numpy as np
import torch

# Nothing is ever downloaded, and nothing may draw bars or report to a tracker from inside a trial.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "WANDB_DISABLED": "true",
}


def quiet() -> None:
    """Set up a process for trials: offline, silent, one thread. To be called before transformers is imported."""
    os.environ.update(QUIET)
    # Tiny models gain nothing from threads, and several cells share the cores.
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module=r"(torch|transformers|accelerate|peft|datasets)\.")
    for name in ("transformers", "accelerate", "peft", "datasets"):
        logging.getLogger(name).setLevel(logging.ERROR)


def settle() -> None:
    """Take what is loaded by now out of the garbage collector's sight.

    The Trainer collects garbage at the end of every run, and walking the modules of torch and transformers would take
    a third of a small one.
    """
    gc.collect()
    gc.freeze()


def start(seed: int = 0) -> None:
    """Seed everything and forget what an earlier trial left behind, accelerate's singletons included."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    for variable in [name for name in os.environ if name.startswith(("ACCELERATE_", "FSDP_"))]:
        del os.environ[variable]
    if "transformers" in sys.modules:
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
