"""Runs one job of a workflow here, as GitHub would: its `run:` steps in order, to the first failure.

    python tests/harness/run_workflow.py nightly plan --state /tmp/night --input transformers=4.53,latest
    python tests/harness/run_workflow.py nightly cell --state /tmp/night --row transformers=4.53.3
    python tests/harness/run_workflow.py nightly merge --state /tmp/night

The state directory holds what passes from job to job: artifacts, laid out as the actions for them would, and results
and outputs of the jobs before. A checkout is a copy of this working tree, `setup-python` a fresh environment of this
Python; what else is no shell is told, and not done.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

if __package__:
    from .workflow_expressions import evaluate, holds, interpolate
else:
    from workflow_expressions import evaluate, holds, interpolate  # type: ignore[import-not-found,no-redef]

ROOT = Path(__file__).resolve().parents[2]
GITHUB = {
    "repository": "owner/name",
    "ref": "refs/heads/main",
    "ref_name": "main",
    "run_id": "1",
    "server_url": "https://github.com",
    "event_name": "schedule",
    "token": "",
    "event": {"repository": {"default_branch": "main"}},
}


class StepError(Exception):
    """A step failed; the message says how."""


@dataclass
class Job:
    """One job, or one row of its matrix, and where it runs."""

    steps: Sequence[Mapping[str, Any]]
    context: dict[str, Any]
    state: Path
    workspace: Path
    source: Path = ROOT
    given: Mapping[str, str] = field(default_factory=dict)
    skip: Sequence[str] = ()
    env: dict[str, str] = field(default_factory=dict)
    failed: bool = False

    def run(self) -> bool:
        """Run every step whose condition holds, and tell whether all succeeded."""
        self.context["steps"] = {}
        with tempfile.TemporaryDirectory(prefix="workflow-") as scratch:
            for number, step in enumerate(self.steps, 1):
                self._step(f"{number}/{len(self.steps)}", step, Path(scratch))
        return not self.failed

    def _step(self, number: str, step: Mapping[str, Any], scratch: Path) -> None:
        name = str(step.get("name") or step.get("uses") or step["run"].strip().splitlines()[0])
        if not holds(str(step.get("if", "")), self.context, failed=self.failed):
            say(f"{number} not run, its condition does not hold: {name}")
            return
        if any(text in f"{name}\n{step.get('run', '')}" for text in self.skip):
            say(f"{number} skipped, as asked: {name}")
            return
        say(f"{number} {name}")
        try:
            outputs = self._shell(step, scratch) if "run" in step else self._action(step, scratch)
        except StepError as error:
            say(f"{number} FAILED{' (allowed)' if step.get('continue-on-error') else ''}: {error}")
            self.failed = self.failed or not step.get("continue-on-error")
            return
        if "id" in step:
            self.context["steps"][step["id"]] = {"outputs": outputs}

    def _shell(self, step: Mapping[str, Any], scratch: Path) -> dict[str, str]:
        script = scratch / "step.sh"
        script.write_text(interpolate(step["run"], self.context))
        files = {name: scratch / name for name in ("GITHUB_OUTPUT", "GITHUB_ENV", "GITHUB_PATH")}
        for file in files.values():
            file.write_text("")
        own = {name: interpolate(value, self.context) for name, value in step.get("env", {}).items()}
        summary = {"GITHUB_STEP_SUMMARY": str(self.state / "summary.md")}
        env = {**os.environ, **self.env, **own, **summary, **{n: str(f) for n, f in files.items()}, **self.given}
        # Without `shell:` GitHub runs `bash -e`.
        done = subprocess.run(["bash", "-e", script], cwd=self.workspace, env=env, check=False)
        self.env.update(_assignments(files["GITHUB_ENV"]))
        for line in files["GITHUB_PATH"].read_text().split():
            self._on_path(Path(line))
        if done.returncode:
            raise StepError(f"exit code {done.returncode}")
        return _assignments(files["GITHUB_OUTPUT"])

    def _action(self, step: Mapping[str, Any], scratch: Path) -> dict[str, str]:
        action = step["uses"].partition("@")[0].removeprefix("actions/")
        given = {name: interpolate(value, self.context) for name, value in step.get("with", {}).items()}
        if action == "checkout":
            checkout(self.source, self.workspace)
        elif action == "setup-python":
            venv.create(scratch / "python", with_pip=True)
            self._on_path(scratch / "python" / "bin")
        elif action == "upload-artifact":
            upload(self.workspace, self.state / "artifacts", given)
        elif action == "download-artifact":
            download(self.workspace, self.state / "artifacts", given)
        else:
            say(f"    left out: {step['uses']}")
        return {}

    def _on_path(self, directory: Path) -> None:
        self.env["PATH"] = f"{directory}{os.pathsep}{self.env.get('PATH', os.environ['PATH'])}"


def _assignments(file: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in file.read_text().splitlines() if "=" in line)


def say(text: str) -> None:
    print(f"== {text}", flush=True)


def checkout(source: Path, workspace: Path) -> None:
    """Copy what git would have: files that are tracked, or could be."""
    listed = ["git", "-C", str(source), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (source / name).is_file():
            (workspace / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, workspace / name)


def upload(workspace: Path, artifacts: Path, given: Mapping[str, str]) -> None:
    """Keep files under a name, relative to what all paths have in common; a directory alone is that itself."""
    target = artifacts / given["name"]
    if target.exists():
        raise StepError(f"there is an artifact {given['name']!r} already")
    paths = [workspace / line.strip() for line in given["path"].splitlines() if line.strip()]
    hidden = given.get("include-hidden-files") == "true"
    files = [file for path in paths for file in _files(path) if hidden or not _hidden(file.relative_to(workspace))]
    if not files:
        if given.get("if-no-files-found") == "error":
            raise StepError(f"no files to keep as {given['name']!r}")
        say(f"    warning: no files to keep as {given['name']!r}")
        return
    above = Path(os.path.commonpath([path if path.is_dir() else path.parent for path in paths]))
    for file in files:
        (target / file.relative_to(above)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target / file.relative_to(above))


def _files(path: Path) -> Iterator[Path]:
    yield from (each for each in (path.rglob("*") if path.is_dir() else [path]) if each.is_file())


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def download(workspace: Path, artifacts: Path, given: Mapping[str, str]) -> None:
    """Lay out one artifact by name, or all that a pattern fits."""
    kept = sorted(path for path in artifacts.glob("*") if path.is_dir())
    target = workspace / given.get("path", ".")
    if "name" in given:
        kept = [path for path in kept if path.name == given["name"]]
        if not kept:
            raise StepError(f"there is no artifact {given['name']!r}")
    else:
        kept = [path for path in kept if fnmatch.fnmatchcase(path.name, given["pattern"])]
    for path in kept:
        apart = "" if "name" in given or given.get("merge-multiple") == "true" else path.name
        shutil.copytree(path, target / apart, dirs_exist_ok=True)


def rows(job: Mapping[str, Any], context: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a job's matrix; one empty row where it has none."""
    matrix = job.get("strategy", {}).get("matrix", {})
    if isinstance(matrix, str):
        matrix = evaluate(matrix.removeprefix("${{").removesuffix("}}"), context)
    axes = {name: values for name, values in matrix.items() if name != "include"}
    crossed = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return (crossed if axes else []) + list(matrix.get("include", [])) or [{}]


def run_job(
    workflow: Path,
    name: str,
    state: Path,
    *,
    inputs: Mapping[str, Any] | None = None,
    variables: Mapping[str, str] | None = None,
    github: Mapping[str, Any] | None = None,
    wanted: Mapping[str, str] | None = None,
    **more: Any,
) -> str:
    """Run a job, all rows of its matrix or those `wanted`, and return its result, which is kept for the next jobs."""
    document = yaml.safe_load(workflow.read_text())
    job = document["jobs"][name]
    (state / "artifacts").mkdir(parents=True, exist_ok=True)
    ledger = state / "jobs.json"
    before = json.loads(ledger.read_text()) if ledger.exists() else {}
    needed = job.get("needs", [])
    needed = [needed] if isinstance(needed, str) else needed
    context = {
        "github": {**GITHUB, **(github or {})},
        "inputs": dict(inputs or {}),
        "vars": dict(variables or {}),
        "needs": {each: before.get(each, {"result": "skipped", "outputs": {}}) for each in needed},
    }
    unlike = any(each["result"] != "success" for each in context["needs"].values())
    result = "skipped"
    outputs: dict[str, str] = {}
    if "uses" in job:
        raise SystemExit(f"{name} is a workflow of its own; run its jobs: {job['uses']}")
    if holds(str(job.get("if", "")), context, failed=unlike):
        result = "success"
        for row in rows(job, context):
            if any(str(row.get(key)) != value for key, value in (wanted or {}).items()):
                continue
            say(f"{name}: {row.get('name') or row or 'one row'}".replace("{", "").replace("}", ""))
            workspace = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=state))
            one = Job(job["steps"], {**context, "matrix": row}, state, workspace, **more)
            if not one.run():
                result = "failure"
            outputs |= {key: interpolate(value, one.context) for key, value in job.get("outputs", {}).items()}
    say(f"{name}: {result}")
    ledger.write_text(json.dumps({**before, name: {"result": result, "outputs": outputs}}, indent=1))
    return result


def _pairs(values: Sequence[str]) -> dict[str, Any]:
    return dict(value.split("=", 1) for value in values)


def main() -> int:
    """Read the command line, and run one job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workflow", help="the name of a workflow here, or a file")
    parser.add_argument("job")
    parser.add_argument("--state", type=Path, required=True, help="what passes between jobs; made if it is not there")
    parser.add_argument("--source", type=Path, default=ROOT, help="what a checkout is a copy of")
    for option, what in {
        "row": "only rows of the matrix with this value",
        "input": "an input of the workflow",
        "var": "a repository variable",
        "github": "an entry of the context `github`",
        "env": "set in every step, over what the workflow says",
    }.items():
        parser.add_argument(f"--{option}", metavar="NAME=VALUE", action="append", default=[], help=what)
    parser.add_argument("--skip", metavar="TEXT", action="append", default=[], help="steps in which this occurs")
    said = parser.parse_args()
    path = Path(said.workflow)
    workflow = path if path.suffix else ROOT / ".github" / "workflows" / f"{path}.yml"
    result = run_job(
        workflow,
        said.job,
        said.state.resolve(),
        inputs=_pairs(said.input),
        variables=_pairs(said.var),
        github=_pairs(said.github),
        wanted=_pairs(said.row),
        source=said.source,
        given=_pairs(said.env),
        skip=said.skip,
    )
    return 1 if result == "failure" else 0


if __name__ == "__main__":
    sys.exit(main())
