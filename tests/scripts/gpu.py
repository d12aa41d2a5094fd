"""All that is to be measured on a machine with a CUDA device, which needs no network:

    pip wheel --no-deps -w WHEELS fvcore iopath yacs portalocker tabulate termcolor tqdm tomli_w   # where there is one
    python tests/scripts/gpu.py WHEELS --gpu h100-sxm --out presets/measurements/h100.json

PyTorch, NumPy, SymPy, typer, rich, msgspec, PyYAML and Pillow have to be there. In this order, and what an earlier run
of the same command has measured is not measured again:

1. The wheels go into an empty folder, with pip's --no-index; what cannot be imported then is named.
2. Small models of every kind are checked on the device, with every exact oracle.
3. The list of `txcalc measure` runs; the file is written after every step. With --only ITEM that item alone.
4. The description of --gpu with what was measured of PyTorch's kernels on it goes into --hardware FILE: in the place of
   `presets/hardware/NAME.toml` it is what `train` and `verify` say of that card from then on. What servers' kernels
   reach was measured apart, and stays.

Nothing new begins after --limit seconds of it all. `--device cpu` tries it where there is no such device.
`--again FILE` needs none: what the library expects now is written beside what FILE has measured.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NEEDED = ("torch", "numpy", "sympy", "typer", "rich", "fvcore", "iopath", "yacs", "yaml", "PIL", "tomli_w")
EXACT = ("parameters", "bytes", "fvcore", "flops", "training")
SMALL = (
    "D=64 L=2 h=4 h_kv=2 F=128 V=100",
    "D=64 L=2 h=4 F=128 V=100 plain ln learned=64 tied",
    "D=64 L=2 h=4 h_kv=2 F=128 V=100 window=8",
    "D=64 L=2 h=4 h_kv=2 F=64 V=100 E=4 k=2",
)


def main() -> int:
    options = arguments()
    if options.again:
        sys.path.insert(0, str(ROOT))
        document = json.loads(options.again.read_text())
        report(f"{predict_again(document):,} predictions")
        options.again.write_text(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        return 0
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "PIP_NO_INDEX": "1", "HF_HUB_OFFLINE": "1"}
        install(options.wheels, Path(folder), env)
        if missing := absent(env):
            print(f"cannot be imported: {', '.join(missing)} (put their wheels into {options.wheels})", file=sys.stderr)
            return 3
        report(f"installed, {time.monotonic() - start:.0f} s")
        if code := checked(options.device, env):
            return code
        report(f"checked, {time.monotonic() - start:.0f} s")
        if options.check:
            return 0
        left = max(1.0, options.limit - (time.monotonic() - start))
        out = (
            options.out.relative_to(ROOT) if options.out.is_relative_to(ROOT) else options.out
        )  # it is written into the file
        command = ["measure", "--device", options.device, "--out", str(out), "--limit", f"{left:.0f}"]
        command += ["--gpu", options.gpu] if options.gpu else []
        command += [word for name in options.only for word in ("--only", name)]
        code = txcalc(command, env)
        if options.hardware and options.out.is_file():
            write = "import gpu; from pathlib import Path; print(gpu.described(gpu.json.loads(Path(gpu.sys.argv[1])"
            write += ".read_text()), Path(gpu.sys.argv[2])), end='')"
            path = [env["PYTHONPATH"], str(Path(__file__).parent)]
            description = subprocess.run(
                [sys.executable, "-c", write, str(options.out), str(options.card)],
                env={**env, "PYTHONPATH": os.pathsep.join(path)}, cwd=ROOT, check=True, capture_output=True, text=True,
            )  # fmt: skip
            options.hardware.write_text(description.stdout)
        complete = options.out.is_file() and json.loads(options.out.read_text())["complete"]
        report("complete" if complete else "the same command goes on where this ended")
        return code


def predict_again(document: dict[str, Any]) -> int:
    """Puts what the library expects now, of the file's own ceilings, in the place of what it expected of each time, of
    a training step's speed and of the crossing; how many figures these are."""
    from txcalc import hardware, load, reference
    from txcalc.planning.serving.durations import Cost
    from txcalc.verification import device, suite, workloads

    kind, seen = document["device"]["kind"], 0
    accelerator = hardware.parse(document["ceilings"]["accelerator"], "this-machine", "ceilings")
    for item in suite.LISTS[kind]:
        entry = document["items"][item.name]
        model = load(item.source, dict(item.changes))
        model = model if entry["layers"] == entry["of_layers"] else reference.truncate(model, entry["layers"])
        subject = workloads.DeviceModel(model, kind, device.DTYPES[item.dtype])
        prompts = [workloads.Load("prefill", 1, tokens) for tokens in item.overtaking]
        figures = [figure for step in entry["steps"].values() for figure in step.get("figures", ())]
        ran = {re.sub(", (captured|cross-entropy)$", "", figure["load"]) for figure in figures}
        timed, learned = ([sized(work, ran) for work in loads] for loads in (item.times, item.speed))
        costs = {str(work): workloads.expected_times(subject, work, accelerator) for work in (*timed, *prompts)}
        steps = {f"{work}, cross-entropy": workloads.expected_step(subject, work, accelerator)[1] for work in learned}
        ratios = [
            workloads.attention_share({part: cost.achievable for part, cost in costs[str(prompt)].items()})
            for prompt in prompts
        ]
        for figure in figures:
            work, captured = (
                figure["load"].removesuffix(f", {workloads.CAPTURED}"),
                workloads.CAPTURED in figure["load"],
            )
            if figure["quantity"] == "time" and work in costs:
                cost = costs[work].get(workloads.CAPTURED if captured else figure["part"], Cost())
                figure |= {"floor": cost.floor, "predicted": cost.achievable}
            elif figure["quantity"] == "time":
                figure |= {"floor": steps[work].floor, "predicted": steps[work].seconds}
            elif figure["quantity"] == "speed of training":
                figure["predicted"] = steps[work].tokens / steps[work].seconds
            elif work == "by expected times":
                figure["predicted"] = workloads.crossing(item.overtaking, ratios)
            else:
                continue
            seen += 1
    return seen


def sized(work: Any, ran: set[str]) -> Any:
    """The load that ran in the place of one that was asked: with half the batch until it fitted."""
    while str(work) not in ran and work.batch > 1:
        work = work._replace(batch=work.batch // 2)
    return work


def arguments() -> argparse.Namespace:
    about = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about.add_argument("wheels", type=Path, nargs="?", help="a folder of wheels")
    about.add_argument("--again", type=Path, metavar="FILE", help="predict again what a file has measured")
    about.add_argument("--out", type=Path, default=Path("measurements.json"), help="the file of measurements")
    about.add_argument("--hardware", type=Path, help="the description of --gpu with what was measured, .toml")
    about.add_argument("--gpu", help="whose datasheet it has, as txcalc presets --hardware names it")
    about.add_argument("--device", default="cuda")
    about.add_argument("--limit", type=float, default=540, help="seconds after which nothing new begins")
    about.add_argument("--only", action="append", default=[], metavar="ITEM", help="of the list only this; repeatable")
    about.add_argument("--check", action="store_true", help="steps 1 and 2 alone")
    options = about.parse_args()
    if not (options.wheels or options.again):
        about.error("a folder of wheels is needed, or --again FILE")
    if options.hardware and not options.gpu:
        about.error("--hardware needs --gpu: the card whose description it is")
    if options.again and not options.again.is_file():
        about.error(f"--again: there is no file {options.again}")
    if options.gpu:
        sys.path.insert(0, str(ROOT))
        from txcalc import hardware
        from txcalc.errors import TxcalcError

        try:
            options.card = ROOT / "presets" / "hardware" / f"{hardware.load(options.gpu).name}.toml"
        except TxcalcError as error:
            about.error(str(error))
    for name in ("wheels", "out", "hardware"):
        if getattr(options, name):
            setattr(options, name, getattr(options, name).absolute())
    return options


def install(wheels: Path, target: Path, env: dict[str, str]) -> None:
    """Every wheel of the folder, none of what they need: that is there, or is a wheel too."""
    wheel_files = sorted(map(str, wheels.glob("*.whl")))
    if wheel_files:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
        subprocess.run([*pip, "--no-cache-dir", "--target", str(target), *wheel_files], env=env, check=True)


def absent(env: dict[str, str]) -> list[str]:
    """What cannot be imported with the wheels."""
    look = f"import importlib.util as u; print(*[n for n in {NEEDED!r} if u.find_spec(n) is None])"
    answer = subprocess.run([sys.executable, "-c", look], env=env, cwd=ROOT, check=True, capture_output=True, text=True)
    return answer.stdout.split()


def described(document: dict[str, Any], card: Path) -> str:
    """A card's description, with the curves of PyTorch's kernels that were measured, and their source, in the place of
    earlier ones: the share of the peak that products and attention of prompts reach, of the bandwidth products and
    attention of decode steps, and a start's seconds. What else is in a curve is assumed, as of servers' kernels."""
    from txcalc.sources.export import as_toml

    calibration = document["ceilings"]["accelerator"]["calibration"]["engine"]["torch"]
    for kernel in (curve for kind in calibration.values() for curve in kind.values()):
        kernel |= {key: float(f"{figure:.4g}") for key, figure in kernel.items() if key != "source"}
        kernel["source"] = "txcalc"
    device, command = document["device"], re.sub(r" --(limit|only|out) .+?(?= --|$)", "", document["command"])
    measured = f"{command}, {document['date']}: {device['name']}, torch {device['torch']}"
    source = f"{measured}; entries that were not measured are assumed"
    description = re.sub(
        r"^txcalc = .*\n", "", card.read_text().partition("\n[calibration.engine.torch")[0], flags=re.MULTILINE
    )
    description = description.replace("[sources]\n", f"[sources]\ntxcalc = {json.dumps(source)}\n").rstrip()
    return f"{description}\n\n{as_toml({'calibration': {'engine': {'torch': calibration}}})}"


def checked(device: str, env: dict[str, str]) -> int:
    """Every exact oracle of small models: 0 when every figure is equal."""
    oracles = [word for oracle in EXACT for word in ("--oracle", oracle)]
    answer = subprocess.run(
        [sys.executable, "-m", "txcalc", "verify", *SMALL, "--device", device, *oracles, "--json"],
        env=env, cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    sys.stderr.write(answer.stderr)
    if answer.returncode in (0, 1) and answer.stdout:
        document = json.loads(answer.stdout)
        compared, unequal = (sum(model[key] for model in document["models"]) for key in ("figures", "unequal"))
        report(f"{compared - unequal:,} of {compared:,} figures of {len(SMALL)} small models are equal")
    return answer.returncode


def txcalc(command: list[str], env: dict[str, str]) -> int:
    return subprocess.run([sys.executable, "-m", "txcalc", *command], env=env, cwd=ROOT).returncode


def report(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
