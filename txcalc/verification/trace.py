"""Traces a user's module: parameters, and FLOPs as formulas in B and T, with fvcore's count."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from txcalc.errors import Fault, InputError, Refuted, UnknownName
from txcalc.notation import Expression
from txcalc.verification import device as devices, flops, macs
from txcalc.verification.parameters import sizes_by_module
from txcalc.verification.symbolic import T_SRC, B, NotForAll, SymbolicSize, Symbols, T, user_line, without_logs

POINT = {"B": 3, "T": 5, "T_src": 2}  # where fvcore counts by default
LETTERS = {"B": B, "T": T, "T_src": T_SRC}
IDS = "B,T:int64"
MAX_SIZE = 1 << 20


class Input(NamedTuple):
    """A tensor input: its name ("": the first argument), and its sizes as letters or ints."""

    name: str
    shape: tuple[str | int, ...]
    dtype: torch.dtype


class TracedModule(NamedTuple):
    """A module: its class, its own parameters and FLOPs (a formula) without its children's, and fvcore's count at the
    point."""

    path: str
    kind: str
    params: int
    flops: Expression
    fvcore: int


class ModuleTrace(NamedTuple):
    """The costs of a module, and the sizes for which the formulas hold, or at which they were measured (`domain`).

    `point` has the sizes of fvcore's count; `free` lists operators known to multiply no matrices, `skipped` others that
    PyTorch's counter or fvcore did not count; `untraced` says why fvcore could not trace the module, or is "".
    """

    name: str
    parts: list[TracedModule]
    domain: str
    point: dict[str, int]
    free: list[str]
    skipped: dict[str, Counter[str]]
    untraced: str

    @property
    def complete(self) -> bool:
        """False where an operator that may cost FLOPs has no count: the FLOPs are a lower bound."""
        return flops.ORACLE not in self.skipped


def trace(
    source: str | nn.Module,
    inputs: Iterable[str] = (),
    batch: int | None = None,
    tokens: int | None = None,
    source_tokens: int | None = None,
    device: str = "meta",
) -> ModuleTrace:
    """The costs of a module, or of the result of `FILE.py:factory` or `module:Class`, called without arguments on the
    meta device.

    The costs are formulas for every batch and length; with `batch`, `tokens` or `source_tokens`, or on another device
    (with real numbers), ints measured at these sizes. `inputs` are "NAME=B,T:int64"; the default is token ids, or for a
    module object also vectors of its first matrix's width.
    Errors: `InputError` for a source that cannot be loaded, makes no module or rejects the inputs; `Refuted` if a size
    or the data decides what is computed.
    """
    devices.check(device)
    texts = list(inputs)
    specs = _inputs(texts)
    requested = {"B": batch, "T": tokens, "T_src": source_tokens}
    faults: list[Fault | str] = [
        Fault(name, value, f"a whole number from 1 to {MAX_SIZE:,}")
        for name, value in zip(("--batch", "--tokens", "--source-tokens"), requested.values(), strict=True)
        if value is not None and not 1 <= value <= MAX_SIZE
    ]
    if faults:
        raise InputError("trace", faults)
    measured = device != "meta" or any(value is not None for value in requested.values())
    net = module(source, device)
    if isinstance(source, nn.Module):
        specs, source = (specs if texts else accepted_inputs(net)), type(source).__name__
    used = {letter for spec in specs for letter in spec.shape if isinstance(letter, str)}
    point = {letter: requested[letter] or size for letter, size in POINT.items() if letter in used}
    run = partial(run_module, source, net, specs)
    tensors = [zeros_for(spec, point, device) for spec in specs]
    with torch.no_grad(), user_code():
        if measured:
            counter = flops.count(net, lambda: run(tensors))
            costs, domain = counter.by_module, ", ".join(f"{letter} = {size:,}" for letter, size in point.items())
        else:
            counter, costs, domain = _symbolic(net, specs, tensors, run)
        nameless = [spec.name for spec in specs] == [""]
        fvcore_flops, skipped, untraced = _fvcore(net, tensors) if nameless else ({}, {}, NAMED)
    params = sizes_by_module(net)
    parts = [
        TracedModule(path, type(part).__name__, params[path], costs.get(path, 0), fvcore_flops.get(path, 0))
        for path, part in net.named_modules()
        if params[path] or costs.get(path, 0) or fvcore_flops.get(path, 0)
    ]
    free = sorted(name for name in counter.free if not name.startswith("prim::"))
    by_oracle = {flops.ORACLE: counter.uncounted, macs.ORACLE: skipped}
    totals = {oracle: sum(counts.values(), Counter[str]()) for oracle, counts in by_oracle.items() if counts}
    return ModuleTrace(source, parts, domain, point, free, totals, untraced)


MEASURE = "--batch and --tokens measure it at one size, with --device cpu if data decides"
NAMED = "it takes inputs without names"
_INPUT = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>[^:=]+):(?P<dtype>\w+)")


def _inputs(texts: Iterable[str]) -> list[Input]:
    """Errors: `InputError` with every invalid input."""
    specs: list[Input] = []
    faults: list[Fault | str] = []
    for text in list(texts) or [IDS]:
        match = _INPUT.fullmatch(text)
        shape = [part.strip() for part in match["shape"].split(",")] if match else []
        dtype = getattr(torch, match["dtype"], None) if match else None
        sizes = [int(part) if part.isdecimal() and len(part) < 8 else part for part in shape]
        valid = all(part in LETTERS or (isinstance(part, int) and 1 <= part <= MAX_SIZE) for part in sizes)
        if not match or not valid or not isinstance(dtype, torch.dtype):
            expected = "NAME=SIZES:DTYPE, as in pixel_values=B,3,224,224:float32"
            faults.append(Fault("--input", text, expected, "sizes are B, T, T_src or numbers"))
        else:
            specs.append(Input(match["name"] or "", tuple(sizes), dtype))
    names = [spec.name for spec in specs]
    if not faults and len(names) > 1 and (len(set(names)) < len(names) or "" in names):
        faults.append(Fault("--input", ", ".join(names), "a different name for each"))
    if faults:
        raise InputError("trace", faults)
    return specs


def accepted_inputs(net: nn.Module) -> list[Input]:
    """The inputs that a module on meta accepts: token ids, or vectors as wide as its first matrix.

    Errors: `InputError` for a module that accepts neither.
    """
    ids, name = Input("", ("B", "T"), torch.int64), type(net).__name__
    matrix = next((weight for weight in net.parameters() if weight.dim() == 2 and weight.is_floating_point()), None)
    vectors = [] if matrix is None else [Input("", ("B", "T", matrix.shape[1]), matrix.dtype)]
    reason: Fault | str = ""
    for spec in (ids, *vectors):
        try:
            with torch.no_grad(), user_code():
                run_module(name, net, [spec], [zeros_for(spec, POINT, "meta")])
            return [spec]
        except InputError as error:
            reason = reason or error.faults[0]
    mend = 'txcalc.trace(module, inputs="pixel_values=B,3,224,224:float32") says what it takes'
    raise InputError(name, [f"{reason} ({mend})"])


def _symbolic(
    net: nn.Module, specs: Sequence[Input], tensors: Sequence[Tensor], run: Callable[[Sequence[Tensor]], None]
) -> tuple[flops.Count, dict[str, object], str]:
    """The count, its formulas by module, and the sizes for which they hold. Errors: `Refuted` if there are none."""
    symbols = Symbols(tuple(tensors), tuple(tuple(_size(length) for length in spec.shape) for spec in specs))
    try:
        with symbols.mode:
            counter = flops.count(net, lambda: run(symbols.inputs))
        domain = symbols.domain()
        return counter, {path: symbols.read(value) for path, value in counter.by_module.items()}, domain
    except NotForAll as refusal:
        raise Refuted(f"{refusal}; {MEASURE}") from None


def _size(length: str | int) -> SymbolicSize | None:
    return SymbolicSize(LETTERS[length], 1) if isinstance(length, str) else None


def zeros_for(spec: Input, point: Mapping[str, int], device: str) -> Tensor:
    shape = [point[length] if isinstance(length, str) else length for length in spec.shape]
    return torch.zeros(shape, dtype=spec.dtype, device=device)


def _fvcore(net: nn.Module, tensors: Sequence[Tensor]) -> tuple[dict[str, int], dict[str, Counter[str]], str]:
    try:
        return *macs.count(net, tuple(tensors)), ""
    except Exception as error:  # fvcore's tracer lacks newer operators
        return {}, {}, _one_line(error)


def run_module(source: str, net: nn.Module, specs: Sequence[Input], tensors: Sequence[Tensor]) -> None:
    """Runs one forward pass; reports an error in one line."""
    by_name = {spec.name: tensor for spec, tensor in zip(specs, tensors, strict=True) if spec.name}
    try:
        net(**by_name) if by_name else net(*tensors)
    except Refuted:
        raise
    except (Exception, SystemExit) as error:
        message, line = _one_line(error), user_line(error.__traceback__)
        where = f", at {line}" if line else ""
        if depends_on_data(error):
            reason = f" (at {line})" if line else f" ({message})"
            raise Refuted(f"{source}: what it computes depends on data, no formula holds{reason}; {MEASURE}") from None
        takes = " and ".join(spec.name for spec in specs if spec.name) or "token ids (batch, length)"
        raise InputError(source, [f"does not run on {takes}: {message}{where}"]) from None


def depends_on_data(error: BaseException) -> bool:
    message = str(error)
    names = ("GuardOnDataDependentSymNode", "DynamicOutputShapeException", "DataDependentOutputException")
    on_meta = isinstance(error, NotImplementedError | RuntimeError) and "meta" in message and "nonzero" in message
    return "data-dependent" in message or type(error).__name__ in names or on_meta


def module(source: str | nn.Module, device: str = "meta") -> nn.Module:
    """What `FILE.py:name` or `package.module:name` makes, or the copy of a module, with weights on `device`."""
    if isinstance(source, nn.Module):
        name = type(source).__name__
        return _prepare(name, _attempt(name, device, "cannot be copied", _copy, source, device), device)
    place, colon, name = source.rpartition(":")
    if not colon or not place or not name:
        raise InputError("trace", [Fault("source", source, "FILE.py:factory or module:Class")])
    holder = _load_source(place)
    if not hasattr(holder, name):
        names = [key for key, value in vars(holder).items() if callable(value) or isinstance(value, nn.Module)]
        raise UnknownName(place, "factory or module", name, names)
    target = getattr(holder, name)
    if not isinstance(target, nn.Module):
        if not callable(target):
            raise InputError(source, [f"is {type(target).__name__}, expected a function or class that makes a module"])
        target = _attempt(source, device, "fails", target)
    if not isinstance(target, nn.Module):
        raise InputError(source, [f"returns {type(target).__name__}, expected an nn.Module"])
    return _prepare(source, target, device)


def _copy(net: nn.Module, device: str) -> nn.Module:
    """A copy of a module; on meta without its values."""
    tables = [table for part in net.modules() for table in (vars(part), part._parameters, part._buffers)]
    values = [value for table in tables for value in table.values()] if device == "meta" else []
    memo: dict[int, object] = {}
    for tensor in (value for value in values if isinstance(value, Tensor)):
        empty = torch.empty_like(tensor, device="meta")
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    return deepcopy(net, memo)


def _prepare(source: str, candidate: nn.Module, device: str) -> nn.Module:
    what = f"has weights that PyTorch's {device} device does not take"
    net = cast(nn.Module, _attempt(source, device, what, candidate.to, device)).eval()
    choose: Any = getattr(net, "set_experts_implementation", None)
    if callable(choose):
        choose("batched_mm")  # transformers' implementation without data-dependent shapes: k products per token
    return net


def _load_source(place: str) -> object:
    """A Python file, or a module by name (also in the current folder)."""
    if not place.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        return _attempt(place, "meta", "cannot be imported", importlib.import_module, place)
    path = Path(place)
    if not path.is_file():
        raise InputError(place, ["is not a file"])
    spec = importlib.util.spec_from_file_location(f"traced_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    holder = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look up their module
    sys.path.insert(0, str(path.parent.resolve()))
    _attempt(place, "meta", "cannot be imported", spec.loader.exec_module, holder)
    return holder


@contextmanager
def user_code() -> Iterator[None]:
    """A context for user code: its output goes to stderr, and PyTorch's error logs are discarded."""
    with without_logs(), redirect_stdout(sys.stderr):
        yield


def _attempt(where: str, device: str, what: str, work: Callable[..., Any], *arguments: object) -> Any:
    """Runs user code; any exception becomes an `InputError` of one line. A module that cannot be built on meta (it
    reads a tensor's value) is built on the CPU."""
    try:
        with user_code():
            try:
                with torch.device(device):
                    return work(*arguments)
            except (RuntimeError, TypeError, NotImplementedError) as error:
                if "meta" not in str(error):
                    raise
                return work(*arguments)
    except (Exception, SystemExit) as error:
        reason = ": ".join(dict.fromkeys((type(error).__name__, _one_line(error))))
        raise InputError(where, [f"{what}: {reason}"]) from None


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) < 160 else text[:159] + "…"
