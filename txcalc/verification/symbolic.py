"""Batch and lengths as symbols: PyTorch's fake tensors, and the conditions under which their results hold."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import sympy
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._prims_common import infer_size, is_contiguous_or_false, make_contiguous_strides_for
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.overrides import TorchFunctionMode
from torch.utils._sympy.functions import FloorDiv, Min, Mod, PythonMod

from txcalc.errors import Refuted
from txcalc.notation import Expression
from txcalc.num import floor_div
from txcalc.reference.linear import multiply_rows, symbolic

B, T, T_SRC = sympy.symbols("B T T_src", integer=True, positive=True)


@contextmanager
def without_logs() -> Iterator[None]:
    """Silences libraries' logs of errors, which the caller reports once."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


class NotForAll(Refuted):
    """The trace specialised on sizes or data, so it does not hold for all."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"no proof for every batch and length: {reason}")


class Environment(ShapeEnv):
    """Remembers the line of the module's code that asked for each condition."""

    def __init__(self) -> None:
        super().__init__(duck_shape=False)  # equal hints do not mean equal sizes
        self.lines: dict[Any, str] = {}

    def evaluate_sym_node(self, *arguments: Any, **options: Any) -> object:
        before = len(self.guards), len(self.replacements)
        answer = super().evaluate_sym_node(*arguments, **options)
        if before != (len(self.guards), len(self.replacements)):
            line = user_line(traceback.extract_stack())
            for expression in (*(guard.expr for guard in self.guards[before[0] :]), *self.replacements):
                self.lines.setdefault(expression, line)
        return answer

    def line(self, expression: Expression) -> str:
        line = self.lines.get(expression)
        return f" ({line})" if line else ""


_SKIPPED_FOLDERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent), str(Path(traceback.__file__).parent))


def user_line(stack: traceback.StackSummary | TracebackType | None) -> str:
    """The innermost line of user code in a traceback: "model.py:12: x = x[:, 0]"."""
    frames = traceback.extract_tb(stack) if isinstance(stack, TracebackType) else stack or ()
    for frame in reversed(frames):
        installed = "site-packages" in frame.filename
        if frame.filename.startswith(_SKIPPED_FOLDERS[:2]) or (
            frame.filename.startswith(_SKIPPED_FOLDERS[2]) and not installed
        ):
            continue
        return f"{Path(frame.filename).name}:{frame.lineno}: {frame.line}"
    return ""


aten = torch.ops.aten
_VIEWS = frozenset({aten.view.default, aten._unsafe_view.default})
_PRODUCTS_OF_MATRICES = frozenset({aten.mm.default, aten.addmm.default, aten.bmm.default})
# Each element from the operands' elements at its place, in their dtype.
_ELEMENTWISE = frozenset({
    aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.pow.Tensor_Scalar, aten.neg.default,
    aten.exp.default, aten.rsqrt.default, aten.relu.default, aten.silu.default, aten.gelu.default, aten.tanh.default,
    aten.sigmoid.default, aten.silu_backward.default, aten.gelu_backward.default, aten.threshold_backward.default,
    aten.tanh_backward.default, aten.sigmoid_backward.default,
})  # fmt: skip


class Fakes(FakeTensorMode):
    """Fake tensors, some of whose sizes are symbols of `env`."""

    def __init__(self, env: ShapeEnv) -> None:
        super().__init__(shape_env=env, allow_non_fake_inputs=True)
        self.cache_enabled = False  # no shape repeats, and hashing symbols costs as much as the operator
        self._folding = ExitStack()
        self._depth = 0  # PyTorch re-enters it for composite operators

    def __enter__(self) -> Self:
        super().__enter__()
        if not self._depth:
            self._folding.enter_context(_Folding())
        self._depth += 1
        return self

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _ELEMENTWISE and (like := _largest(args)) is not None:
            return self._empty(like.shape, like)
        if func is aten.native_layer_norm.default and (x := args[0]).dtype == torch.float32 and _contiguous(x):
            rows = (*x.shape[: -len(args[1])], *(1 for _ in args[1]))
            return tuple(self._empty(shape, x) for shape in (x.shape, rows, rows))
        if func is aten.native_layer_norm_backward.default and _contiguous(args[1]):
            *_, weight, bias, wanted = args  # gradients of the input, its weight and its bias
            tensors = zip((args[1], weight, bias), wanted, strict=True)
            return tuple(self._empty(tensor.shape, tensor) if needed else None for tensor, needed in tensors)
        faked = func in _VIEWS and isinstance(args[0], FakeTensor)
        if faked and len(args[1]) and args[0].dim() and _contiguous(args[0]):
            # A contiguous tensor can take any shape of as many elements; PyTorch would compare dimension by dimension.
            shape = infer_size(args[1], args[0].numel())
            strides = make_contiguous_strides_for(shape)
            return _mark_contiguous(aten.as_strided.default(args[0], shape, strides, args[0].storage_offset()))
        result: Any = super().dispatch(func, types, args, kwargs)
        return _mark_contiguous(result) if func in _PRODUCTS_OF_MATRICES else result

    def _empty(self, shape: Sequence[Any], like: Tensor) -> Tensor:
        """A contiguous result of an operator."""
        with in_kernel_invocation_manager(self):
            result = torch.empty(shape, dtype=like.dtype, device="meta")
        return _mark_contiguous(FakeTensor(self, result, like.device))

    def __exit__(self, *error: Any) -> None:
        self._depth -= 1
        if not self._depth:
            self._folding.close()
        super().__exit__(*error)


def _contiguous(tensor: Tensor) -> bool:
    """Whether a tensor is contiguous; it is asked once, since with symbols this takes a millisecond."""
    if "known_contiguous" not in tensor.__dict__:
        tensor.__dict__["known_contiguous"] = is_contiguous_or_false(tensor)
    return bool(tensor.__dict__["known_contiguous"])


def _mark_contiguous(tensor: Tensor) -> Tensor:
    tensor.__dict__["known_contiguous"] = True
    return tensor


def _largest(operands: tuple[Any, ...]) -> Tensor | None:
    """The operand with the result's shape, if it is contiguous and each other has the same sizes or ones; else None.
    PyTorch would compare symbols instead, which takes several milliseconds."""
    tensors = [operand for operand in operands if isinstance(operand, Tensor)]
    largest = max(tensors, key=Tensor.dim)
    plain = largest.is_floating_point() and all(isinstance(tensor, FakeTensor) for tensor in tensors)
    if not plain or any((t.dtype, t.device) != (largest.dtype, largest.device) for t in tensors):
        return None
    for tensor in tensors:
        pairs = zip(reversed(tensor.shape), reversed(largest.shape), strict=False)
        if any(_expression(size) not in (1, _expression(whole)) for size, whole in pairs):
            return None
    return largest if _contiguous(largest) else None


def _expression(size: Any) -> Expression:
    return size.node.expr if isinstance(size, torch.SymInt) else size


class _Folding(TorchFunctionMode):
    """Computes a user's products of many rows with one matrix as ours (`reference.linear.multiply_rows`)."""

    def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
        if not kwargs and func is F.linear and (len(args) == 2 or args[2] is None) and symbolic(args[0]):
            return multiply_rows(args[0], args[1].t())
        if not kwargs and func in _PRODUCTS and args[1].dim() == 2 and symbolic(args[0]):
            return multiply_rows(*args)
        return func(*args, **(kwargs or {}))


_PRODUCTS = frozenset({torch.matmul, Tensor.matmul, Tensor.__matmul__})


class SymbolicSize(NamedTuple):
    """A dimension that is `factor` times a letter."""

    letter: Expression
    factor: int


class Symbols:
    """Inputs whose batch and lengths are symbols, under `mode`; `read` converts measured figures to B, T and T_src.

    PyTorch assumes that a symbol is 2 or more: sizes of 1 broadcast, and are measured at points.
    """

    for_all = True

    def __init__(self, inputs: tuple[Tensor, ...], sizes: tuple[tuple[SymbolicSize | None, ...], ...]) -> None:
        self.env = Environment()
        self.mode = Fakes(self.env)
        self._letters: dict[Any, Any] = {}
        self.inputs = tuple(map(self._fake, inputs, sizes))

    def _fake(self, tensor: Tensor, sizes: tuple[SymbolicSize | None, ...]) -> Tensor:
        dynamic = [DimDynamic.STATIC if size is None else DimDynamic.DYNAMIC for size in sizes]
        fake = self.mode.from_tensor(tensor, symbolic_context=StatelessSymbolicContext(dynamic_sizes=dynamic))
        for length, size in zip(fake.shape, sizes, strict=True):
            if size is not None and isinstance(length, torch.SymInt):
                self._letters[length.node.expr] = size.letter * size.factor
        return fake

    def read(self, value: object) -> Expression:
        """A symbolic int as a formula in letters; an int as it is."""
        if isinstance(value, int):
            return value
        expression = value.node.expr if isinstance(value, torch.SymInt) else sympy.sympify(value)
        formula = sympy.expand(self._lettered(self.env.simplify(expression)).replace(FloorDiv, floor_div))
        unknown = formula.free_symbols - {B, T, T_SRC}
        if unknown:
            raise NotForAll(f"what is computed depends on data ({', '.join(sorted(map(str, unknown)))})")
        return formula

    def _lettered(self, expression: Expression) -> Expression:
        # PyTorch's Min is its own class, which differs from SymPy's.
        return sympy.sympify(expression).subs(self._letters).replace(Min, sympy.Min)

    def domain(self) -> str:
        """The sizes for which the trace holds. Errors: `NotForAll` where a symbol was fixed to a value."""
        for symbol, value in self.env.replacements.items():
            letter, replacement = self._letters.get(symbol, symbol), self._lettered(value)
            if letter != replacement:
                raise NotForAll(f"the trace holds only where {letter} = {replacement}{self.env.line(symbol)}")
        limits = []
        for guard in self.env.guards:
            condition = self._lettered(guard.expr)
            if condition == sympy.true:
                continue
            remainders = condition.atoms(sympy.Mod, Mod, PythonMod)
            if isinstance(condition, sympy.Eq) or any(r.args[1].is_number for r in remainders):
                raise NotForAll(f"the trace holds only where {condition}{self.env.line(guard.expr)}")
            limits.append(_readable(condition))
        letters = ", ".join(sorted({str(s) for e in self._letters.values() for s in e.free_symbols}))
        return f"all {letters} ≥ 2" + "".join(f", {limit}" for limit in sorted(set(limits)))


PRIME = 1_000_003  # no other size is a multiple of this batch


class OneSize:
    """Inputs of one length, under `mode`: like `Symbols`, but with numbers as lengths; `read` takes multiples of the
    batch as proportional to B. Four times as fast."""

    for_all = False

    def __init__(self, make: Callable[[], tuple[Tensor, ...]], where: str, batch: int = PRIME) -> None:
        self.mode: Any = FakeTensorMode(allow_non_fake_inputs=True) if batch == PRIME else nullcontext()
        self.where, self.batch = where, batch
        with self.mode:
            self.inputs = make()

    def read(self, value: Any) -> Expression:
        """A multiple of B, or a number."""
        value = int(value)
        return sympy.Integer(value) if value % self.batch else value // self.batch * B

    def domain(self) -> str:
        return self.where


def _readable(condition: Expression) -> str:
    """A condition in readable form: T ≤ 16, T ≠ 16."""
    if not isinstance(condition, sympy.core.relational.Relational):
        return str(condition)
    condition = condition.reversed if condition.lhs.is_number else condition
    sign = {"<=": "≤", ">=": "≥", "!=": "≠"}.get(condition.rel_op, condition.rel_op)
    return f"{condition.lhs} {sign} {condition.rhs}"
