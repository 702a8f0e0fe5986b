"""Cells: specified, built by the real uv from tiny wheels, cached, checked, removed."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from repro.cells import ambient, spec
from repro.cells.build import Builder
from repro.cells.cache import Cache, disk, together
from repro.cells.cell import CellError, existing, in_cell
from repro.cells.locks import BusyError, lock
from repro.cells.places import python_path, suite
from repro.cells.releases import Release, SelectionError, table
from repro.cells.spec import Spec, python_of, specify

from . import tiny_index

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def release(version: str) -> Release:
    found = table().get("transformers", version)
    assert found is not None
    return found


def tiny_spec(version: str = "4.53.3") -> Spec:
    return Spec(version, "2.13.0", HERE, datetime.date(2025, 8, 19))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """An empty cache, with tiny wheels as the only index."""
    index = tiny_index.make(tmp_path / "wheels")
    monkeypatch.setenv("UV_FIND_LINKS", str(index))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    return Cache(tmp_path / "cells")


def test_a_cell_is_dated_28_days_after_its_release_and_keeps_that_date() -> None:
    made = specify(release("4.36.2"), table(), "2.13.0")
    assert made.exclude_newer == datetime.date(2024, 1, 15)
    assert "torch" in made.undated()
    assert "numpy" not in made.undated()


def test_a_torch_of_its_time_is_the_newest_before_the_release_and_dates_what_it_needs() -> None:
    made = specify(release("4.53.3"), table(), spec.TORCH_OF_ITS_TIME)
    newest = table().newest_before("torch", release("4.53.3").uploaded)
    assert newest is not None
    assert made.torch == newest.version
    assert "sympy" not in made.undated()
    assert made.id != spec.twin(made).id


def test_a_torch_that_never_was_is_refused_with_the_nearest() -> None:
    with pytest.raises(SelectionError, match=r"no torch 2\.6\.7\. Nearest: 2\.6\.0"):
        specify(release("4.53.3"), table(), "2.6.7")
    with pytest.raises(SelectionError, match="no version of torch"):
        specify(release("4.53.3"), table(), "old")


def test_a_python_that_the_release_excludes_is_refused_before_anything_is_built() -> None:
    assert specify(release("4.53.3"), table(), python="3.11.7").python == "3.11.7"
    for nonsense in ("3", "2.7", "python3.11", "3.11 "):
        with pytest.raises(SelectionError, match="is no Python; say for example"):
            specify(release("4.53.3"), table(), python=nonsense)
    with pytest.raises(SelectionError, match=r"transformers 5\.24\.0 wants Python >=3\.1.*, not 3\.9"):
        specify(release("5.24.0"), table(), python="3.9")


def test_everything_that_changes_a_build_changes_the_cells_id() -> None:
    one = tiny_spec()
    others = [
        Spec("4.52.4", one.torch, one.python, one.exclude_newer),
        Spec(one.transformers, "2.12.0", one.python, one.exclude_newer),
        Spec(one.transformers, one.torch, "3.99", one.exclude_newer),
        Spec(one.transformers, one.torch, one.python, datetime.date(2025, 8, 20)),
        Spec(one.transformers, one.torch, one.python, one.exclude_newer, torch_of_its_time=True),
    ]
    assert len({one.id, *(other.id for other in others)}) == 1 + len(others)


def test_pips_settings_are_translated_unless_uv_has_its_own() -> None:
    pip = {"PIP_FIND_LINKS": "a b", "PIP_INDEX_URL": "file:///index"}
    assert ambient.uv_environment(pip)["UV_FIND_LINKS"] == "a,b"
    assert ambient.uv_environment(pip)["UV_DEFAULT_INDEX"] == "file:///index"
    own = ambient.uv_environment({**pip, "UV_FIND_LINKS": "mine", "UV_INDEX_URL": "file:///mine"})
    assert own["UV_FIND_LINKS"] == "mine"
    assert "UV_DEFAULT_INDEX" not in own


def test_pips_files_are_read_and_its_variables_win(tmp_path: Path) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = file:///from-file\n[install]\nfind-links =\n  one\n  two\n")
    environ = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": str(config)}
    assert ambient.uv_environment(environ)["UV_DEFAULT_INDEX"] == "file:///from-file"
    assert ambient.uv_environment(environ)["UV_FIND_LINKS"] == "one,two"
    assert ambient.uv_environment({**environ, "PIP_INDEX_URL": "x"})["UV_DEFAULT_INDEX"] == "x"
    config.write_text("no section\n")
    assert "x" not in ambient.uv_environment(environ).get("UV_DEFAULT_INDEX", "")


def test_a_cell_is_built_once_and_found_again(cache: Cache) -> None:
    built = Builder(cache).get(tiny_spec())
    assert built.transformers == "4.53.3"
    assert built.exclude_newer == "2025-08-19"
    mark = built.python.parent / "mark"
    mark.touch()
    assert Builder(cache).get(tiny_spec()) == built
    assert mark.exists(), "it was built again"
    assert [cached.id for cached in cache.cells()] == [tiny_spec().id]
    assert cache.check(cache.cells()[0]) == ""
    assert cache.leftovers() == []


def test_two_matrices_that_want_one_cell_build_it_once(cache: Cache) -> None:
    with ThreadPoolExecutor(4) as pool:
        cells = list(pool.map(lambda _: Builder(cache).get(tiny_spec()), range(4)))
    assert all(cell == cells[0] for cell in cells)
    assert cache.leftovers() == []


def test_a_cell_that_cannot_be_resolved_says_why_and_leaves_nothing(cache: Cache) -> None:
    with pytest.raises(CellError, match=r"4\.49\.0") as raised:
        Builder(cache).get(tiny_spec("4.49.0"))
    assert raised.value.stage == "resolve"
    assert not cache.cells()
    assert not cache.leftovers()


def test_without_a_network_the_reason_is_told(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UV_NO_INDEX", "UV_OFFLINE", "UV_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/none")
    monkeypatch.setenv("UV_FIND_LINKS", str(cache.root.parent))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(CellError, match=r"(?s)Failed to fetch.*[Rr]efused"):
        Builder(cache).get(tiny_spec())


def test_a_stopped_builder_ends_while_another_process_builds(cache: Cache) -> None:
    stop = threading.Event()
    with lock(cache.lock_path(tiny_spec().id)), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Builder(cache, stop).get, tiny_spec())
        stop.set()
        with pytest.raises(CellError, match="interrupted"):
            waiting.result(timeout=10)


def test_a_damaged_cell_is_named_and_rebuilt(cache: Cache) -> None:
    built = Builder(cache).get(tiny_spec())
    subprocess.run([built.python, "-c", "import shutil, torch; shutil.rmtree(torch.__path__[0] + '-2.13.0.dist-info')"])
    assert "torch is gone, was 2.13.0" in cache.check(cache.cells()[0])
    (cache.directory(tiny_spec().id) / "cell.json").write_text("{")
    assert cache.cells() == []
    assert Builder(cache).get(tiny_spec()).resolved["torch"] == "2.13.0"


def test_a_cell_in_use_is_not_removed(cache: Cache) -> None:
    built = Builder(cache).get(tiny_spec())
    with cache.using(built):
        with cache.using(built), pytest.raises(BusyError):
            cache.remove(tiny_spec().id)
        assert built.python.exists()
    cache.remove(tiny_spec().id)
    assert cache.cells() == []


def test_a_killed_build_is_seen_and_removed_but_not_one_under_way(cache: Cache) -> None:
    (cache.root / f".{tiny_spec().id}.abcdef.partial").mkdir(parents=True)
    with lock(cache.lock_path(tiny_spec().id)):
        assert cache.remove_leftovers() == 0
    assert len(cache.leftovers()) == 1
    assert cache.remove_leftovers() == 1
    assert cache.leftovers() == []


def test_disk_use_counts_shared_files_once_and_frees_only_its_own(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for directory in (one, two):
        directory.mkdir()
    (one / "own").write_bytes(b"x" * 40960)
    (one / "shared").write_bytes(b"x" * 81920)
    os.link(one / "shared", two / "shared")
    os.link(one / "own", one / "own again")
    assert disk(one).whole == 40960 + 81920
    assert disk(one).freed == 40960
    assert disk(two).freed == 0
    assert together([one, two]) == 40960 + 81920


def test_a_cell_sees_this_package_and_nothing_else_of_the_desk() -> None:
    assert [entry.name for entry in python_path().iterdir()] == ["repro"]
    environment = in_cell({"PYTHONPATH": "/desk", "PYTEST_ADDOPTS": "-x", "HOME": "/h"})
    assert environment["PYTHONPATH"] == str(python_path())
    assert "PYTEST_ADDOPTS" not in environment
    assert suite().is_dir()


def test_an_environment_that_lacks_something_is_refused_with_the_command_that_adds_it(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = python_of(tmp_path / "bare")
    with pytest.raises(CellError, match=r"lacks torch, transformers.*uv pip install --python .*bare.*torch"):
        existing(python, "environment bare")


def test_what_is_no_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SelectionError, match="does not exist"):
        python_of(tmp_path / "nowhere")
    with pytest.raises(SelectionError, match="holds no interpreter"):
        python_of(tmp_path)
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(CellError, match="does not work: exit code 3"):
        existing(python_of(broken), "environment broken")


def repro(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "repro", *words], capture_output=True, text=True, env={**os.environ, **variables}
    )


def test_the_command_lists_checks_and_removes(cache: Cache) -> None:
    for version in ("4.52.4", "4.53.3"):
        Builder(cache).get(tiny_spec(version))
    where = {"REPRO_CELLS": str(cache.root)}
    rows = json.loads(repro("cells", "--json", **where).stdout)
    assert [row["transformers"] for row in rows] == ["4.52.4", "4.53.3"]
    assert all(0 < row["bytes_freed_by_removal"] <= row["bytes"] for row in rows)
    assert repro("cells", "check", **where).returncode == 0
    wrong = repro("cells", "remove", "transformers-4.53.3", **where)
    assert wrong.returncode == 2
    assert "Did you mean transformers-4.53.3-torch" in wrong.stderr
    assert repro("cells", "remove", "--unused-for", "1", **where).returncode == 0
    assert len(cache.cells()) == 2
    assert repro("cells", "remove", rows[0]["id"], **where).returncode == 0
    assert [cached.id for cached in cache.cells()] == [rows[1]["id"]]
    assert repro("cells", "remove", "--all", **where).returncode == 0
    assert cache.cells() == []


def test_a_cache_that_cannot_be_written_is_an_error_of_the_cell(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CellError, match="cannot write to"):
        Builder(Cache(tmp_path / "file" / "cells")).get(tiny_spec())
