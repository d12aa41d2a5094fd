"""How fast txcalc is: start-up against a trivial typer app, peak memory, modules loaded, sweeps, one ledger.

    python tests/scripts/bench.py [RUNS]

Figures to look at, not a test: they depend on the machine and on what else it does. Processes are interleaved, and
the least of many runs is the one that was disturbed least.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

ROOT = Path(__file__).parents[2]
SHOW = [sys.executable, "-m", "txcalc", "show", "llama-3.1-8b"]
TRAIN = [sys.executable, "-m", "txcalc", "train", "llama-3.1-8b", "--gpu", "h100-sxm:8", "--layout", "fsdp=8"]
HEAVY = ("torch", "numpy", "sympy", "pydantic", "huggingface_hub", "transformers")

# The least that a command line of this kind can be: two commands, one of which prints one rich table.
TRIVIAL = '''
import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer()

@app.command()
def one(name: str, count: int = 1) -> None:
    """Print a table."""
    table = Table("name", "count")
    for i in range(10):
        table.add_row(name, str(i * count))
    Console().print(table)

@app.command()
def two() -> None:
    """Print nothing."""

app()
'''


def spent(command: list[str], environment: dict[str, str]) -> tuple[float, float, int]:
    """Wall seconds, CPU seconds and peak memory (KiB) of one process."""
    started = perf_counter()
    quiet = subprocess.DEVNULL
    child = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=quiet, stderr=quiet)
    _, status, usage = os.wait4(child.pid, 0)
    wall = perf_counter() - started
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, command
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss


def start_up(runs: int) -> None:
    """`show` piped, in colour, and not compiled beforehand (a fresh checkout), and `train`, each to the trivial app."""
    import typer

    print(f"start-up, {runs} interleaved runs, typer {typer.__version__}, Python {sys.version.split()[0]}")
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "trivial.py"
        script.write_text(TRIVIAL)
        plain = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        plain["PYTHONPYCACHEPREFIX"] = folder
        cases = {
            "trivial app": ([sys.executable, str(script), "one", "x"], plain),
            "show": (SHOW, plain),
            "show, in colour": (SHOW, {**plain, "FORCE_COLOR": "1"}),
            "train": (TRAIN, plain),
            "train, uncompiled": (TRAIN, {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}),
            "show, uncompiled": (SHOW, {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}),
        }
        seen: dict[str, list[tuple[float, float, int]]] = {name: [] for name in cases}
        for i in range(runs + 1):
            for name, (command, environment) in cases.items():
                run = spent(command, environment)
                seen[name] += [run] if i else []  # the first compiles
    trivial = seen.pop("trivial app")
    for name, of in seen.items():
        ratios = []
        for clock in (0, 1):
            for least in (min, median):
                ratios.append(least(run[clock] for run in of) / least(run[clock] for run in trivial))
        wall, cpu = (min(run[clock] for run in of) * 1000 for clock in (0, 1))
        peak = max(run[2] for run in of) / 1000
        words = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        cost = f"{wall:4.0f} ms ({cpu:.0f} of CPU), {peak:.0f} MB"
        print(f"  {name:<17} {cost}; to the trivial app (wall least, median; CPU): {words}")
    print(f"  {'trivial app':<17} {min(run[0] for run in trivial) * 1000:4.0f} ms; show may take 1.5 of it, and 60 MB")


def modules() -> None:
    code = (
        "import sys\nfrom txcalc.cli import app\n"
        "try: app(['show', 'llama-3.1-8b'])\n"
        "except SystemExit: print(*sorted(sys.modules), file=sys.stderr)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stderr.split()
    seen = [name for name in HEAVY if name in loaded]
    ours = sum(name.startswith("txcalc") for name in loaded)
    print(f"modules loaded: {len(loaded)}, {ours} of them txcalc's; of {', '.join(HEAVY)}: {', '.join(seen) or 'none'}")


def sweeps() -> None:
    from txcalc import load
    from txcalc.sweeps.sweep import Sweep, parse_axis

    cases = (
        (
            "block, D × F × h × T, flops",
            "D=512 h=8 F=1376 L=1",
            ("D=1k:8k:+1k", "T=1k:128k:2x", "h=1:64:2x", "F=64:64k:+64"),
        ),
        ("block, T, flops", "D=512 h=8 F=1376 L=1", ("T=1:512k:1",)),
        ("llama-3.1-8b, T, flops", "llama-3.1-8b", ("T=1:512k:1",)),
        ("llama-3.1-405b, T × B, flops beyond 2^63", "llama-3.1-405b", ("B=64,128", "T=1:1M:4")),
    )
    for name, source, over in cases:
        grid = Sweep(load(source), [parse_axis(text) for text in over], ["flops"])
        seconds = []
        for _ in range(3):
            started = process_time()
            for _ in grid:
                pass
            seconds.append(process_time() - started)
        print(f"sweep of {name}: {grid.points:,} points, {grid.points / min(seconds) / 1e6:.1f} million a second")


def ledgers() -> None:
    """A 60-layer hybrid: Jamba's pattern, its layers folded by kind."""
    from txcalc import load

    model = load("jamba-v0.1", {"n_layers": 60})
    seconds = []
    for _ in range(200):
        started = perf_counter()
        ledger = model.ledger(tokens=4096)
        for quantity in ("params", "active", "flops", "flops_masked", "flops_other", "saved", "cache", "bytes"):
            ledger.total(quantity)
        seconds.append(perf_counter() - started)
    entries = len(ledger.entries)
    print(f"ledger of a 60-layer hybrid: {entries} entries, every quantity, {min(seconds) * 1000:.2f} ms (at most 1)")


if __name__ == "__main__":
    start_up(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
    modules()
    ledgers()
    sweeps()
