"""Parsers of what people type: accelerators, rates, shares, drafts, and changes of a model (`norm.place=post`)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from txcalc.errors import Fault, InputError
from txcalc.model import Model
from txcalc.units import DECIMAL, MONTH_HOURS, parse_seconds, parse_tokens

PRICE = r"(\d{1,9}(\.\d{0,9})?|\.\d{1,9})(e[+-]?\d)?"  # 2, 2.5, .5 or 1e3
SECONDS = {"s": 1, "min": 60, "h": 3600, "day": 86_400, "month": MONTH_HOURS * 3600}
OWN = "mtp"  # a draft: the model's own multi-token-prediction layer
Priced = tuple[str, int | None, float | None]  # accelerators: name, number, price per GPU-hour


def parse_accelerators(text: str, flag: str = "--gpu") -> tuple[str, int | None]:
    """Parses `h100-sxm:8` or `8xh100` to name and count; None: not given. `2xp5.48xlarge` are 16."""
    from txcalc.hardware.cards import find_instance, split_count

    first, name = split_count(text)
    number = first
    if first is None and ":" in text:
        name, _, digits = text.rpartition(":")
        if not name.strip() or not re.fullmatch(r"\s*\d{1,6}\s*", digits, re.ASCII):
            raise InputError(flag, [Fault(flag, text, "a name and a number", "h100-sxm:8")])
        number = int(digits)
    if not name.strip():
        raise InputError(flag, [Fault(flag, text, "a name, or a number and a name", "8xh100")])
    if number == 0:
        raise InputError(flag, [Fault(flag, text, "a number above 0")])
    if first is not None and re.search(r":\s*\d+\s*$", name, re.ASCII):
        raise InputError(flag, [Fault(flag, text, "one number", f"{first}x{name.rpartition(':')[0]}")])
    instance = find_instance(name)
    if instance and (number or instance.gpus > 1):  # of instances with one GPU, as many as are needed
        number = (number or 1) * instance.gpus
    return name, number


def parse_priced(text: str, flag: str = "--gpu") -> Priced:
    """Parses `h100-sxm:8@2.5`; None: not given. The price of an instance (`p5.48xlarge@55`) is of all its GPUs."""
    from txcalc import hardware
    from txcalc.hardware.cards import find_instance, numbers, resolve_name

    machines, at, price = text.rpartition("@")
    plain = re.fullmatch(rf"\s*{PRICE}\s*", price, re.ASCII)
    sized = re.match(r"\s*(\d+\s*[x×*])?\s*[\d.]+\s*([kmgt]i?b\s*@|@\s*[\d.]+\s*[kmgt]i?b)", text, re.I)
    if not at or (sized and not plain):
        return *parse_accelerators(text, flag), None
    if not plain:
        raise InputError(flag, [Fault(flag, text, "a price per GPU-hour after @", "h100-sxm:8@2.5")])
    if sized and ":" not in machines:
        numbers(parse_accelerators(text)[0], flag)  # refuses a bandwidth without a unit
    name, number = parse_accelerators(machines, flag)
    accelerators = hardware.names()
    if re.fullmatch(r"[\d.]+", name) and resolve_name(name, accelerators) not in accelerators:  # 4090@2 is a price
        mend = f"{name}GB@{price}GB/s; a price alone is --price {price}"
        raise InputError(flag, [Fault(flag, text, "a size and a bandwidth with their units", mend)])
    instance = find_instance(name)
    return name, number, float(price) / (instance.gpus if instance else 1)


def parse_api_prices(text: str) -> tuple[float, float]:
    """Parses `0.25/2`: the price of a million prompt tokens, and of a million answer tokens."""
    match = re.fullmatch(rf"\s*(?P<prompt>{PRICE})\s*/\s*(?P<answer>{PRICE})\s*", text, re.ASCII)
    prices = (float(match["prompt"]), float(match["answer"])) if match else (0.0, 0.0)
    if not any(prices):
        raise InputError("options", [Fault("--api", text, "prices of a million prompt and answer tokens", "0.25/2")])
    return prices


def prices_by_name(kinds: Sequence[Priced], price: float | None) -> dict[str, float | None]:
    """Prices by kind of accelerator; `price`: of all. Errors: `InputError` where one has two."""
    prices: dict[str, set[float]] = {name: set() for name, _, _ in kinds}
    for name, _, kind_price in kinds:
        prices[name] |= {value for value in (kind_price, price) if value is not None}
    if faults := [
        f"{name} has two prices: {' and '.join(f'{value:g}' for value in sorted(different))}"
        for name, different in prices.items()
        if len(different) > 1
    ]:
        raise InputError("options", faults)
    return {name: next(iter(of_kind), None) for name, of_kind in prices.items()}


def parse_share(value: float | str, flag: str) -> Fraction:
    """`30%`, `"0.3"` or `0.3`."""
    text = str(value)
    match = re.fullmatch(r"\s*((?:\d{1,9}(?:\.\d{1,20})?|\.\d{1,20})(?:e-\d{1,3})?)\s*(%?)\s*", text, re.ASCII)
    if not match:
        raise InputError("options", [Fault(flag, text, "a share such as 30% or 0.3")])
    return Fraction(match[1]) / (100 if match[2] else 1)


def parse_request_rate(text: float | str) -> float:
    """`5/s`, `300/min`, `1000/h`, `20k/day` or `3M/month` as requests per second."""
    if not isinstance(text, str):
        return text
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)([kM]?)\s*/\s*(s|min|h|day|month)\s*", text, re.ASCII)
    number = Fraction(match[1]) * DECIMAL.get(match[2].lower(), 1) / SECONDS[match[3]] if match else Fraction(0)
    if not number:
        mend = f"{text.strip()}/s?" if re.fullmatch(r"\s*[1-9]\d{0,8}\s*", text, re.ASCII) else ""
        raise InputError(
            "options", [Fault("--rate", text, "requests above 0 in a time, such as 5/s or 3M/month", mend)]
        )
    return float(number)


def parse_limit(text: float | str | None, flag: str) -> tuple[float | None, float | None]:
    """`200ms` or `p95:0.5s`: a percentile (None: the mean's) and seconds (None: no limit)."""
    if not isinstance(text, str):
        return None, text
    percent, colon, time = text.rpartition(":")
    match = re.fullmatch(r"\s*p(\d{1,2}(?:\.\d{1,6})?)\s*", percent, re.ASCII | re.I)
    if colon and not (match and float(match[1])):
        raise InputError("options", [Fault(flag, text, "a percentile between 0 and 100", f"p95:{time.strip()}")])
    return float(match[1]) if match else None, parse_seconds(time, flag)


def parse_arrivals(rate: float | str | None, path: str | None, burstiness: float) -> tuple[float | None, list[float]]:
    """Requests per second (None: a closed loop), and the arrival times of a file in seconds."""
    from txcalc.planning.serving.traffic import arrivals

    if rate is not None and path is not None:
        raise InputError("options", ["--rate and --arrivals contradict each other"])
    if burstiness != 1 and rate is None:
        raise InputError("options", ["--burstiness needs --rate"])
    return parse_request_rate(rate) if rate is not None else None, arrivals(path) if path is not None else []


def parse_draft(text: int | str | None) -> tuple[int | None, str | None]:
    """Parses a draft to tokens per step and its source: `4:llama-3.2-1b` a model, `4` a draft without cost, `mtp` or
    `2:mtp` the model's own prediction layer."""
    if text is None:
        return None, None
    if text == OWN:
        return 1, OWN
    number, colon, source = str(text).partition(":")
    if not (number.isascii() and number.isdecimal() and len(number) < 4) or (colon and not source.strip()):
        expected = "tokens per step, and what proposes them"
        raise InputError("options", [Fault("--draft", text, expected, "4:SOURCE, mtp, or 4")])
    return int(number), source if colon else None


def parse_degrees(degrees: Mapping[str, int | str | None]) -> dict[str, int]:
    """The degrees of parallelism that are numbers; those that are `auto` or None are left out."""
    written = {name: "auto" if value is None else str(value) for name, value in degrees.items()}
    faults = [
        Fault(f"--{name}", text, "a whole number from 1, or auto")
        for name, text in written.items()
        if text != "auto" and not re.fullmatch(r"0*[1-9]\d{0,5}", text, re.ASCII)
    ]
    if faults:
        raise InputError("options", faults)
    return {name: int(text) for name, text in written.items() if text != "auto"}


def parse_adapters(text: str | None, extra_keys: tuple[str, ...] = ()) -> tuple[dict[str, Any], dict[str, str]]:
    """`--lora r=16,targets=q+v` as changes of the description; and the values of `extra_keys`."""
    changes: dict[str, Any] = {}
    extra_values: dict[str, str] = {}
    faults: list[Fault | str] = []
    for pair in text.split(",") if text is not None else ():
        key, _, value = (piece.strip() for piece in pair.partition("="))
        if key in ("r", "rank") and value.isascii() and value.isdecimal() and len(value) < 10:
            changes["lora.rank"] = int(value)
        elif key in ("targets", "modules") and value:
            changes["lora.modules"] = value.split("+")
        elif key in extra_keys and value:
            extra_values[key] = value
        else:
            expected = ", ".join(("r=16", "targets=q+v", *(f"{name}=…" for name in extra_keys)))
            faults.append(Fault("--lora", pair, f"some of {expected}", f"r={pair}" if pair.isdecimal() else ""))
    if text is not None and not faults and "lora.rank" not in changes:
        faults.append(Fault("--lora", text, "a rank", "r=16,targets=q+v"))
    if faults:
        raise InputError("options", faults)
    return changes, extra_values


def parse_changes(pairs: Sequence[str] | None) -> dict[str, Any]:
    """`KEY=VALUE` texts as a mapping; a text may have several, separated by commas. A value is a number (`32k`), a TOML
    value, or bare text. Errors: `InputError`."""
    changes: dict[str, Any] = {}
    faults: list[Fault | str] = []
    for pair in (pair for text in pairs or () for pair in _pairs(text)):
        key, equals, value = (piece.strip() for piece in pair.partition("="))
        if not equals or not key or not value:
            faults.append(Fault("--set", pair, "KEY=VALUE", "--set h_kv=32"))
        elif key in changes:
            faults.append(f"--set {key} is given twice")
        else:
            changes[key] = _value(value)
    if faults:
        raise InputError("options", faults)
    return changes


def _pairs(text: str) -> list[str]:
    """The `KEY=VALUE` pairs of a text: it is split at commas before a key, outside of quotes and brackets."""
    pairs: list[str] = []
    for piece in re.split(r",(?=\s*[A-Za-z_][\w.]*\s*=)", text):
        if pairs and (
            pairs[-1].count("[") > pairs[-1].count("]") or any(pairs[-1].count(quote) % 2 for quote in "'\"")
        ):
            pairs[-1] += f",{piece}"
        else:
            pairs.append(piece)
    return pairs


def must_change(models: Sequence[Model], changes: Mapping[str, object]) -> None:
    """Refuses changes that leave every model as it was. Errors: `InputError`."""
    if changes and not any(model.changed for model in models):
        from txcalc.sources.idle import changes_nothing

        where = ", ".join(model.origin for model in models)
        raise InputError(where, [changes_nothing(key, value) for key, value in changes.items()])


def _value(text: str) -> Any:
    try:
        return parse_tokens(text)
    except InputError:
        pass
    if text.count(".") > 200:
        return text  # TOML's dotted keys take quadratic time
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError, ValueError):
        return text
