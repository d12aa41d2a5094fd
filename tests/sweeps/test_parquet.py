"""Sweeps in Parquet files: exact, in order, the same bytes whoever computes them; what was stopped leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command import typed

import txcalc
from txcalc import InputError

pytest.importorskip("numpy", reason="needs NumPy (pip install 'txcalc[sweep]')")
arrow = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow (pip install 'txcalc[frames]')")
parquet: Any = pytest.importorskip("txcalc.sweeps.parquet")

# Figures beyond 64 bits, a decode step and none, in three row groups and a rest of one row.
OVER = {"P": [0, 5], "B": "1:65:+1", "T": "1k:512k:2x"}
QUANTITIES = ("params", "flops", "cache_bytes")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "CHUNK", 433)


def swept() -> Any:
    return txcalc.sweep("llama-3.1-405b", over=OVER, quantities=QUANTITIES)


@contextmanager
def dask() -> Iterator[Executor]:
    distributed = pytest.importorskip("distributed", reason="needs Dask (pip install 'txcalc[cluster]')")
    settings = {"processes": False, "n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**settings) as machines, parquet.cluster(machines.scheduler_address) as executor:
        yield executor


@pytest.mark.slow
def test_every_row_is_there_in_order_and_exact(tmp_path: Path) -> None:
    sweep = swept()
    shares: list[float] = []
    written = parquet.write(sweep.grids[0], tmp_path / "grid.parquet", tell=shares.append)
    assert shares == [433 / 1300, 866 / 1300, 1299 / 1300, 1]
    table = arrow.read_table(tmp_path / "grid.parquet")
    rows = [{key: int(value) for key, value in row.items()} for row in table.to_pylist()]
    assert rows == sweep.rows
    assert max(row["flops"] for row in rows) > 2**63
    assert written.rows == len(rows) == 1300 and written.groups == 4
    assert written.columns["flops"].startswith("decimal128") and written.columns["T"] == "int64"
    assert written.bytes == (tmp_path / "grid.parquet").stat().st_size


def test_a_wide_number_that_no_corner_has_widens_its_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept().to_parquet(tmp_path / "one.parquet")
    monkeypatch.setattr(parquet, "wide_columns", lambda sweep: frozenset())
    swept().to_parquet(tmp_path / "two.parquet")
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_the_bytes_are_the_same_whoever_computes_them(tmp_path: Path) -> None:
    """One process, two, threads, and Dask's workers."""
    files = [tmp_path / f"{i}.parquet" for i in range(4)]
    sweep = swept()
    sweep.to_parquet(files[0])
    sweep.to_parquet(files[1], workers=2)
    with ThreadPoolExecutor(3) as threads:
        sweep.to_parquet(files[2], executor=threads)
    with dask() as machines:
        sweep.to_parquet(files[3], executor=machines)
    assert len({file.read_bytes() for file in files}) == 1


def test_a_query_reads_it(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="needs duckdb (pip install 'txcalc[test]')")
    place = tmp_path / "grid.parquet"
    rows = swept().rows
    swept().to_parquet(place)
    (totals,) = duckdb.sql(f"select max(flops), count(*) from '{place}' where T = 4096").fetchall()
    assert (int(totals[0]), totals[1]) == (max(row["flops"] for row in rows if row["T"] == 4096), 130)


def test_what_is_stopped_leaves_no_file(tmp_path: Path) -> None:
    def stop(share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        swept().to_parquet(tmp_path / "grid.parquet", tell=stop)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
@pytest.mark.slow
def test_ctrl_c_ends_every_process_with_130(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "txcalc", "sweep", "gpt2", "--over", "B=1:1M:1", "--over", "T=1:50k:1"]
    command += ["--out", str(tmp_path / "grid.parquet"), "--workers", "2"]
    listening = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # what a shell starts with & ignores Ctrl-C
    child = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True, preexec_fn=listening)
    for _ in range(600):
        if list(tmp_path.glob("*.part")):
            break
        time.sleep(0.1)
    time.sleep(3)
    os.killpg(child.pid, signal.SIGINT)
    try:
        err = child.communicate(timeout=120)[1]
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
    assert child.returncode == 130
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_bad_input_is_refused(tmp_path: Path) -> None:
    sweep, place = swept(), tmp_path / "grid.parquet"
    place.write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        sweep.to_parquet(place)
    assert place.read_text() == "mine"
    for wrong in (tmp_path / "grid.csv", tmp_path / "no" / "grid.parquet"):
        with pytest.raises(InputError):
            sweep.to_parquet(wrong)
    with pytest.raises(InputError, match="one model"):
        txcalc.sweep("gpt2", "gpt2-xl", over={"T": [1]}).to_parquet(tmp_path / "two.parquet")
    with pytest.raises(InputError, match="workers is 0"):
        sweep.to_parquet(tmp_path / "none.parquet", workers=0)
    with pytest.raises(InputError, match="names no axis"):
        txcalc.sweep("gpt2", over={})
    with pytest.raises(InputError, match=r"T is 1\.5"):
        txcalc.sweep("gpt2", over={"T": [1.5]})
    assert sweep.to_parquet(place, force=True).rows == 1300


def test_the_command_line_streams_too(tmp_path: Path) -> None:
    place = tmp_path / "grid.parquet"
    command = ["sweep", "gpt2", "--over", "T=1:2000:1", "--out", str(place)]
    result = typed(*command)
    assert result.exit_code == 0 and "2,000 rows" in result.stdout
    assert arrow.read_table(place)["T"].to_pylist() == list(range(1, 2001))
    assert typed(*command).exit_code == 2, "the file is there"
    assert typed(*command, "--json", "--force").exit_code == 2
    assert typed(*command[:4], "--workers", "2").exit_code == 2
    large = typed("sweep", "gpt2", "--over", "T=1:1M:1", "--over", "B=1:1k:1", "--format", "csv")
    assert large.exit_code == 2 and "--out streams them" in large.stderr
