"""Standalone scripts: what they pin and expect, and that they do it in an environment of their own."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.__main__ import main
from repro.catalog import failures
from repro.script.choose import ChoiceError, Chosen, choose, parsed
from repro.script.standalone import script
from repro.store.reader import read
from repro.store.reference import REFERENCE
from repro.vocabulary import Configuration, Failure

WHISPER = failures()["whisper-double-backward"]
RECORDS = read(REFERENCE).records
SCRIPTED = [failure for failure in failures().values() if failure.script is not None]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["repro", "script", *arguments])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def header(text: str) -> dict[str, Any]:
    """Read the inline metadata as PEP 723 defines it."""
    if sys.version_info < (3, 11):
        pytest.skip("reading TOML needs Python 3.11")
    import tomllib

    [found] = re.finditer(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$", text)
    assert found["type"] == "script"
    lines = found["content"].splitlines(keepends=True)
    return tomllib.loads("".join(line[2:] if line.startswith("# ") else line[1:] for line in lines))


@pytest.mark.parametrize("failure", SCRIPTED, ids=lambda failure: failure.id)
def test_the_pins_are_those_of_a_stored_cell_in_which_it_fails(failure: Failure) -> None:
    chosen = choose(failure, RECORDS)
    assert chosen.expected in {symptom.outcome for symptom in failure.symptoms}
    metadata = header(script(chosen))
    pins = dict(pin.split("==") for pin in metadata["dependencies"])
    assert pins["transformers"] == chosen.cell.transformers
    assert "+" not in pins["torch"]
    assert chosen.cell.torch.startswith(pins["torch"])
    for name in ("accelerate", "numpy"):
        assert chosen.resolved[name].startswith(pins[name])
    assert metadata["requires-python"] == f"=={'.'.join(chosen.python.split('.')[:2])}.*"


@pytest.mark.parametrize("failure", SCRIPTED, ids=lambda failure: failure.id)
def test_a_script_needs_nothing_of_this_project(failure: Failure) -> None:
    tree = ast.parse(script(choose(failure, RECORDS)))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not any(name.split(".")[0] == "repro" for name in imported)


CONFIGURATIONS = st.fixed_dictionaries({factor.name: st.sampled_from(factor.levels) for factor in WHISPER.factors})


@settings(max_examples=60)
@given(CONFIGURATIONS)
def test_every_allowed_configuration_makes_a_script_that_says_its_levels(levels: dict[str, Any]) -> None:
    configuration = Configuration(levels)
    if not WHISPER.allows(configuration):
        return
    assert WHISPER.script is not None
    body = WHISPER.script(configuration)
    ast.parse(body)
    assert (".gradient_checkpointing_enable(" in body) == (levels["checkpointing"] in ("method", "both"))
    assert ('spelled("gradient_checkpointing"' in body) == (levels["checkpointing"] in ("arguments", "both"))
    expected_modes = 0 if levels["use_reentrant"] == "unset" else 1 + (levels["checkpointing"] == "both")
    assert body.count(f'"use_reentrant": {levels["use_reentrant"]}') == expected_modes
    assert ("import peft" in body) == (levels["lora"] != "off")
    assert ("freeze_encoder" in body) == (levels["encoder"] == "frozen" and levels["lora"] == "off")
    assert (f"{levels['precision']}=True" in body) == (levels["precision"] != "fp32")
    assert f"decoder_layers={levels['decoder_layers']}," in body
    assert ("retain_graph=True" in body) == (levels["retain_graph"] == "yes")
    assert ("processing" in body) == (levels["tokenizer"] == "given")


@pytest.mark.parametrize("failure", SCRIPTED, ids=lambda failure: failure.id)
@settings(max_examples=30)
@given(data=st.data())
def test_every_allowed_configuration_makes_a_script_that_is_python(failure: Failure, data: st.DataObject) -> None:
    assert failure.script is not None
    scope = failure.reported_scope
    levels = {f.name: data.draw(st.sampled_from(f.levels_at(scope, "cuda"))) for f in failure.factors_at(scope)}
    configuration = failure.configuration(**levels)
    if failure.allows(configuration):
        body = failure.script(configuration)
        assert "def reproduce():" in body
        assert not re.search(r"@[A-Z]+@", body)
        assert max(map(len, body.splitlines())) <= 120
        compile(body, "script", "exec")


@pytest.mark.parametrize("failure", SCRIPTED, ids=lambda failure: failure.id)
def test_every_advice_that_changes_a_setting_has_a_script_of_its_own(failure: Failure) -> None:
    failing = script(choose(failure, RECORDS))
    for claim in failure.claims:
        if claim.kind == "statement" or not claim.change:
            continue
        try:
            chosen = choose(failure, RECORDS, claim=claim.id)
        except ChoiceError as error:
            if not re.search("nothing to run|no cell that could tell", str(error)):
                raise
        else:
            followed = script(chosen)
            assert claim.id in followed
            assert followed.partition('"""')[2] != failing.partition('"""')[2], claim.id


def test_a_claim_changes_the_configuration_and_what_is_expected() -> None:
    cured = choose(WHISPER, RECORDS, claim="use-reentrant-false")
    assert cured.expected == "trains"
    assert cured.configuration == WHISPER.reported.but(use_reentrant="False")
    useless = choose(WHISPER, RECORDS, claim="W1")
    assert useless.expected == choose(WHISPER, RECORDS).expected
    assert "observed with" in useless.how


def test_advice_to_upgrade_leads_to_another_cell() -> None:
    failing, upgraded = choose(WHISPER, RECORDS), choose(WHISPER, RECORDS, claim="upgrade")
    assert upgraded.cell.transformers != failing.cell.transformers
    assert upgraded.configuration == failing.configuration
    assert upgraded.expected == "trains"


def test_what_was_not_observed_is_predicted_and_says_so() -> None:
    chosen = choose(WHISPER, RECORDS, configuration="decoder_layers=3,attention=eager,accumulation=4")
    assert "predicts" in chosen.how
    assert chosen.expected == "double backward"
    blind = [record for record in RECORDS if record["kind"] != "mechanism"]
    with pytest.raises(ChoiceError, match="nothing stored tells"):
        choose(WHISPER, blind, configuration="decoder_layers=3,attention=eager,accumulation=4")


def test_settings_are_read_from_the_reported_or_from_the_plain_run() -> None:
    reported = WHISPER.reported
    assert parsed(WHISPER, "", reported) == reported
    assert parsed(WHISPER, "decoder_layers=1", reported) == reported.but(decoder_layers=1)
    assert parsed(WHISPER, "plain, use_cache=False", reported) == WHISPER.configuration(use_cache="False")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--configuration", "speed=11"], "no factor 'speed'"),
        (["--configuration", "encoder=green"], "no level 'green'"),
        (["--configuration", "encoder"], "factor=level"),
        (["--configuration", "plain,use_reentrant=True"], "no mode to choose"),
        (["--claim", "W99"], "no claim 'W99'"),
        (["--claim", "fp16-off"], "no cell that could tell"),
        (["--configuration", "precision=fp16"], "needs a CUDA device"),
        (["--claim", "W4"], "states something"),
        (["--transformers", "1.2.3"], "no cell with transformers 1.2.3"),
    ],
)
def test_what_does_not_exist_is_told_with_what_does(
    arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, WHISPER.id, *arguments) == 2
    assert told in capsys.readouterr().err


def test_a_failure_without_a_script_says_what_else_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("repro.catalog.find", lambda _: replace(WHISPER, script=None))
    assert run(monkeypatch, WHISPER.id) == 3
    assert "repro run" in capsys.readouterr().err


def test_the_command_writes_to_a_file_or_to_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, WHISPER.id) == 0
    printed = capsys.readouterr().out
    assert run(monkeypatch, WHISPER.id, "--out", str(tmp_path / "it.py")) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "it.py").read_text("utf-8") == printed
    assert run(monkeypatch, WHISPER.id, "--out", str(tmp_path / "no" / "it.py")) == 3


def uv_run(path: Path) -> tuple[int, str]:
    """Run a script by uv in a fresh environment; its pins come from the index, or from wheels that pip is told of."""
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    finds = os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS", "")
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"OMP_NUM_THREADS": "1", "UV_FIND_LINKS": finds.replace(" ", ",")}
    command = [uv, "run", "--no-project", "--isolated", str(path)]
    done = subprocess.run(command, cwd=path.parent, env=environment, capture_output=True, text=True, timeout=900)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("failure", SCRIPTED, ids=lambda failure: failure.id)
def test_in_a_fresh_environment_the_failure_is_seen_and_with_a_cure_it_is_gone(
    failure: Failure, tmp_path: Path
) -> None:
    chosen = choose(failure, RECORDS)
    (tmp_path / "failure.py").write_text(script(chosen), "utf-8")
    code, said = uv_run(tmp_path / "failure.py")
    assert code == 0, said
    assert re.search(f"observed: (would be )?{chosen.expected}\n", said), said
    [symptom] = [symptom for symptom in failure.symptoms if symptom.outcome == chosen.expected]
    assert not symptom.exception or re.search(f"{symptom.exception}: .*{symptom.message}", said)
    (tmp_path / "cured.py").write_text(script(cured(failure)), "utf-8")
    code, said = uv_run(tmp_path / "cured.py")
    assert code == 0, said
    assert "observed: trains\n" in said


def cured(failure: Failure) -> Chosen:
    """Choose the first advice that is known to cure a failure where it is reported."""
    for claim in failure.claims:
        if claim.kind == "advice" and claim.change and not claim.needs_device and claim.base is None:
            with contextlib.suppress(ChoiceError):
                chosen = choose(failure, RECORDS, claim=claim.id)
                if chosen.expected == "trains":
                    return chosen
    raise LookupError(f"no advice cures {failure.id}")


@pytest.mark.slow
def test_a_script_tells_when_what_is_expected_does_not_happen(tmp_path: Path) -> None:
    text = script(cured(WHISPER)).replace('EXPECTED = "trains"', 'EXPECTED = "double backward"')
    (tmp_path / "wrong.py").write_text(text, "utf-8")
    code, said = uv_run(tmp_path / "wrong.py")
    assert code == 1, said
    assert "NOT as expected" in said


@pytest.mark.slow
def test_without_a_gpu_the_script_says_what_an_evaluation_keeps_of_each_example(tmp_path: Path) -> None:
    """Logits of 40 frames, 256 characters and 4 bytes; the rest are labels and losses."""
    (tmp_path / "it.py").write_text(script(choose(failures()["callback-eval-oom"], RECORDS)), "utf-8")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "it.py")], env=environment, capture_output=True, text=True, timeout=600
    )
    kept = int(re.search(r"leaves ([\d,]+) bytes behind", done.stdout)[1].replace(",", ""))  # type: ignore[index]
    assert 40 * 256 * 4 <= kept < 1.02 * 40 * 256 * 4
    assert "observed: would be out of memory in the evaluation" in done.stdout
    assert "Emulated, as there is no CUDA device" in done.stderr


@pytest.mark.gpu
def test_on_a_gpu_the_script_is_really_out_of_memory(tmp_path: Path) -> None:
    (tmp_path / "it.py").write_text(script(choose(failures()["callback-eval-oom"], RECORDS)), "utf-8")
    done = subprocess.run([sys.executable, str(tmp_path / "it.py")], capture_output=True, text=True, timeout=600)
    assert "observed: out of memory in the evaluation" in done.stdout, done.stderr
    assert "OutOfMemoryError: CUDA out of memory" in done.stderr
    assert "Emulated" not in done.stderr
