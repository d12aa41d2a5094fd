"""An interactive page about models in one file that loads nothing from the network.

The page contains styles, data (JSON), libraries (`vendor`), the models' programs and the views (`app`). A content
security policy in its head forbids network access and every script whose digest it does not list.
"""

from __future__ import annotations

import html
import json
import sys
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from txcalc import hardware
from txcalc.errors import Fault, InputError
from txcalc.explorer import Explorer
from txcalc.ledger import KINDS
from txcalc.planning.crossover import RULES
from txcalc.planning.memory import ADAMW_MIXED
from txcalc.program import HELPERS
from txcalc.render.page import models

FOLDER = Path(__file__).parent
SCRIPTS = ("core", "charts", "learn", "memory", "compare", "serve", "train", "main")
MOST_MODELS = 20
MOST_BYTES = 1_500_000

OLD = """
try { BigInt(1) } catch (missing) { document.getElementById("old").hidden = false }
"""


def checked(number: int) -> None:
    """Errors: `InputError` for more models than a page can hold."""
    if number > MOST_MODELS:
        raise InputError("report", [Fault("models", number, f"at most {MOST_MODELS} in one page")])


def page(
    explorers: Sequence[tuple[str, Explorer]],
    serve: Sequence[Mapping[str, Any]],
    train: Sequence[Mapping[str, Any]],
    title: str,
    command: str,
) -> str:
    """The page of models, each with its name in commands, and of the plans of `render.page.plans`.

    Errors: `InputError` for a page of more than 1.5 MB.
    """
    version = vars(sys.modules["txcalc"])["__version__"]
    data = {
        "version": version,
        "title": title,
        "command": command,
        "kinds": KINDS,
        "rules": [rule._asdict() for rule in RULES],
        "state": ADAMW_MIXED,
        "gpus": [(gpu.name, gpu.peaks["bf16"]) for gpu in map(hardware.load, hardware.names()) if "bf16" in gpu.peaks],
        "models": [models.data(source, explorer) for source, explorer in explorers],
        "serve": serve,
        "train": train,
        "licences": (FOLDER / "vendor" / "LICENSES.txt").read_text(),
    }
    programs = ",\n".join(models.programs(explorer) for _, explorer in explorers)
    views = "\n".join((FOLDER / "app" / f"{name}.js").read_text() for name in SCRIPTS)
    start = 'const DATA=JSON.parse(document.getElementById("data").textContent);'
    scripts = [
        OLD,
        (FOLDER / "vendor" / "vendor.min.js").read_text(),
        f'"use strict";{{\n{start}\n{HELPERS}\nconst PROGRAMS=[\n{programs}\n];\n{views}}}',
    ]
    stored = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    whole = (FOLDER / "page.html").read_text("utf-8")
    text = whole.format(
        digests=" ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts),
        version=version,
        title=html.escape(title),
        style=(FOLDER / "style.css").read_text(),
        summaries="".join(f"<p>{html.escape(models.lines(explorer)[0])}</p>" for _, explorer in explorers),
        scripts="\n".join(
            [
                f'<script type="application/json" id="data">{stored}</script>',
                *(f"<script>{script}</script>" for script in scripts),
            ]
        ),
    )
    size = len(text.encode())
    if size > MOST_BYTES:
        raise InputError(
            "report", [f"the page has {size:,} bytes, more than {MOST_BYTES:,}: name fewer models or GPUs"]
        )
    return text
