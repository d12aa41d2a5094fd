"""An interactive page about models in one file that loads nothing from the network.

The page contains styles, data (JSON), libraries (`vendor`), the models' programs and the views (`app`). A content
security policy in its head forbids network access and every script whose digest it does not list.
"""

from __future__ import annotations

import html
import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from txcalc.planning.training.memory import CATEGORIES
from txcalc.program import HELPERS, Guard, Program
from txcalc.questions.explorer import Explorer
from txcalc.questions.page import PageData, further_theorems
from txcalc.render.train import CAUSES

FOLDER = Path(__file__).parent
SCRIPTS = ("core", "charts", "learn", "memory", "compare", "serve", "train", "main")
WORDS = {"feed_forward": "feed-forward", **CATEGORIES, **CAUSES}  # what the page calls a key of its data

OLD = """
try { BigInt(1) } catch (missing) { document.getElementById("old").hidden = false }
"""


def page(data: PageData, explorers: Sequence[Explorer]) -> str:
    """The page, with the programs of its models."""
    models = ",\n".join(map(programs, explorers))
    licences = (FOLDER / "vendor" / "LICENSES.txt").read_text("utf-8")
    document = {**exact(data.to_dict()), "licences": licences, "words": WORDS}
    views = "\n".join((FOLDER / "app" / f"{name}.js").read_text("utf-8") for name in SCRIPTS)
    start = 'const DATA=JSON.parse(document.getElementById("data").textContent);'
    scripts = [
        OLD,
        (FOLDER / "vendor" / "vendor.min.js").read_text("utf-8"),
        f'"use strict";{{\n{start}\n{HELPERS}\nconst PROGRAMS=[\n{models}\n];\n{views}}}',
    ]
    stored = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    whole = (FOLDER / "page.html").read_text("utf-8")
    return whole.format(
        digests=" ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts),
        version=data.version,
        title=html.escape(data.title),
        style=(FOLDER / "style.css").read_text("utf-8"),
        summaries="".join(f"<p>{html.escape(model.summary[0])}</p>" for model in data.models),
        scripts="\n".join(
            [
                f'<script type="application/json" id="data">{stored}</script>',
                *(f"<script>{script}</script>" for script in scripts),
            ]
        ),
    )


def exact(value: object) -> Any:
    """Integers that JavaScript would round, as strings."""
    if isinstance(value, dict):
        return {key: exact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [exact(item) for item in value]
    return str(value) if type(value) is int and abs(value) > 2**53 else value


def programs(explorer: Explorer) -> str:
    """A JavaScript object of functions over BigInt: totals, leaves, both sides of conditions, sizes that follow from
    sliders."""
    letters = explorer.letters
    followed = ",".join(f"{letter}:{program.javascript()}" for letter, program in explorer.follows.items())
    domains = ",".join(_sides(letters, domain.program.conditions) for domain in explorer.domains)
    extra_theorems = ",".join(
        "{"
        + ",".join(f"{name}:{_sides(letters, program.conditions)}" for name, _, program in further_theorems(domain))
        + "}"
        for domain in explorer.domains
    )
    return (
        f"{{totals:{explorer.totals.javascript()},\nleaves:{explorer.leaves.javascript()},\n"
        f"checks:{_sides(letters, explorer.totals.conditions)},\nfollows:{{{followed}}},\ndomains:[{domains}],\n"
        f"further:[{extra_theorems}]}}"
    )


def _sides(letters: tuple[str, ...], conditions: Sequence[Guard]) -> str:
    """A function that gives both sides of every condition."""
    sides = {f"{i}{side}": number for i, c in enumerate(conditions) for side, number in (("a", c.a), ("b", c.b))}
    return Program(letters, sides).javascript()
