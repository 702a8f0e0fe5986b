"""The pytest plugin: one item per trial, results on request, limits, and a GPU that is not silently absent.

Loaded by the project's `conftest.py`, and by `-p repro.observe.plugin` in a cell.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repro.catalog import failures, find
from repro.observe import choose
from repro.observe.limits import BYTES, SECONDS, Limits
from repro.observe.observer import Observer
from repro.vocabulary import Trial

OBSERVER = pytest.StashKey[Observer]()
CHOSEN = pytest.StashKey[list[Trial]]()

MARKERS = (
    "gpu: needs a CUDA device; `-m gpu` without one is an error, unless `--gpu=optional`",
    "slow: takes more than some ten seconds",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that choose trials, say where results go, and limit each trial."""
    group = parser.getgroup("repro", "trials of training failures")
    group.addoption("--results", metavar="DIR", help="write observations there, as JSON Lines (default: nowhere)")
    group.addoption("--failures", metavar="LIST", default="", help="these failures only, comma-separated")
    group.addoption("--trials", metavar="FILE", help="only the trials named in this file, one id per line")
    group.addoption("--trial", metavar="ID", action="append", default=[], help="only this trial; may be repeated")
    group.addoption("--trial-set", choices=choose.TRIAL_SETS, default="full", help="which trials (default: full)")
    group.addoption("--trial-seconds", type=float, default=SECONDS, help="limit of a trial (default: %(default)s)")
    group.addoption("--trial-bytes", type=int, default=BYTES, help="resident memory of a trial (default: %(default)s)")
    group.addoption("--requested", default="", help="what was asked for when this cell was built, stored with it")
    group.addoption("--exclude-newer", default=None, help="the date this cell was resolved for, stored with it")
    group.addoption(
        "--gpu",
        choices=("required", "optional"),
        default="required",
        help="with -m gpu and no CUDA device: an error (default), or skips",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and keep libraries quiet before anything imports them."""
    from repro.observe import fresh

    fresh.quiet()
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Choose the trials early: a name that does not exist is an error of usage, not one of some test file."""
    session.config.stash[CHOSEN] = chosen_trials(session.config)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Name the cell."""
    cell = _observer(config).cell
    return [
        f"cell: {cell['cell']} (python {cell['python']})",
        f"results: {config.getoption('--results') or 'not kept'}",
    ]


def _observer(config: pytest.Config) -> Observer:
    if OBSERVER not in config.stash:
        results = config.getoption("--results")
        limits = Limits(config.getoption("--trial-seconds"), config.getoption("--trial-bytes"))
        config.stash[OBSERVER] = Observer(
            Path(results) if results else None,
            limits,
            config.getoption("--requested"),
            config.getoption("--exclude-newer"),
        )
    return config.stash[OBSERVER]


@pytest.fixture(scope="session")
def observer(request: pytest.FixtureRequest) -> Observer:
    """Return what runs trials in this process."""
    return _observer(request.config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give every test that takes a `trial` one item per trial."""
    if "trial" in metafunc.fixturenames:
        chosen = metafunc.config.stash[CHOSEN]
        metafunc.parametrize("trial", chosen, ids=[trial.id for trial in chosen])


def chosen_trials(config: pytest.Config) -> list[Trial]:
    """Return the trials that the options ask for. Raises pytest.UsageError for a name that does not exist."""
    try:
        names = [name for name in config.getoption("--failures").split(",") if name]
        chosen = [find(name) for name in names] or list(failures().values())
    except LookupError as error:
        raise pytest.UsageError(str(error)) from error
    device = _observer(config).cell["device"]
    trials = [t for f in chosen if not f.retired for t in choose.trials(f, config.getoption("--trial-set"), device)]
    wanted = list(config.getoption("--trial"))
    listing = config.getoption("--trials")
    if listing:
        wanted += [line.strip() for line in Path(listing).read_text().splitlines() if line.strip()]
    if not wanted and not listing:
        return trials
    by_id = {trial.id: trial for trial in trials}
    unknown = [name for name in wanted if name not in by_id]
    if unknown:
        raise pytest.UsageError(f"no such trial: {', '.join(unknown[:3])} (in set {config.getoption('--trial-set')})")
    return [by_id[name] for name in dict.fromkeys(wanted)]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse or skip what needs a GPU where there is none."""
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_gpu or _has_cuda():
        return
    if _asks_for_gpu(config) and config.getoption("--gpu") == "required":
        raise pytest.UsageError(
            "-m gpu was asked for, and there is no CUDA device here. Run it on a machine that has one, or say "
            "--gpu=optional to skip these tests."
        )
    for item in on_gpu:
        item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count what really ran."""
    if report.when == "call" and report.outcome != "skipped":
        _RAN.append(report.nodeid)


_RAN: list[str] = []


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Turn `-m gpu` that ran nothing into an error: skipping everything must not look like success."""
    config = session.config
    worker = hasattr(config, "workerinput")
    if worker or not _asks_for_gpu(config) or config.getoption("--gpu") == "optional" or config.option.collectonly:
        return
    if _RAN or exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return
    session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        terminal.ensure_newline()
        terminal.write_line(
            "-m gpu ran no test: each was deselected or skipped, which is no success. --gpu=optional allows it.",
            red=True,
        )


def _asks_for_gpu(config: pytest.Config) -> bool:
    expression: Any = config.getoption("markexpr", default="") or ""
    words = expression.replace("(", " ").replace(")", " ").split()
    return any(word == "gpu" and (i == 0 or words[i - 1] != "not") for i, word in enumerate(words))


def _has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())
