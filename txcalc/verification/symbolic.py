"""Batch and lengths as symbols: PyTorch's fake tensors, and the conditions under which their results hold."""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import sympy
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._guards import SLoc
from torch._prims_common import infer_size, make_contiguous_strides_for
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.overrides import TorchFunctionMode
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod

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
    """Records the line of the module's code that led to each guard."""

    def __init__(self) -> None:
        super().__init__(duck_shape=False)  # equal hints do not mean equal sizes
        self.lines: dict[Any, str] = {}
        self._answers: dict[Any, Any] = {}

    def evaluate_sym_node(self, sym_node: Any, *args: Any, **options: Any) -> Any:
        question = (sym_node._expr, *args, *options.values())
        if question not in self._answers:
            before = len(self.guards), len(self.replacements)
            self._answers[question] = super().evaluate_sym_node(sym_node, *args, **options)
            if before != (len(self.guards), len(self.replacements)):
                line = user_line(traceback.extract_stack())
                for expression in (*(guard.expr for guard in self.guards[before[0] :]), *self.replacements):
                    self.lines.setdefault(expression, line)
        return self._answers[question]

    def _get_stack_summary(self, *_: object, **__: object) -> tuple[SLoc, str]:
        """An empty summary. PyTorch's, for logs, imports torch.export and torch._inductor to skip their files."""
        return SLoc(None, None), ""

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
_OF_INTEGERS = frozenset({aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor})
# Elementwise operators, which keep the operands' floating-point dtype.
_ELEMENTWISE = _OF_INTEGERS | frozenset({
    aten.sin.default, aten.cos.default, aten.pow.Scalar, aten.div.Tensor, aten.pow.Tensor_Scalar, aten.neg.default,
    aten.exp.default, aten.rsqrt.default, aten.relu.default, aten.silu.default, aten.gelu.default, aten.tanh.default,
    aten.sigmoid.default, aten.silu_backward.default, aten.gelu_backward.default, aten.threshold_backward.default,
    aten.tanh_backward.default, aten.sigmoid_backward.default,
})  # fmt: skip


class Fakes(FakeTensorMode):
    """Fake tensors, whose sizes may be symbols of `env`."""

    def __init__(self, env: ShapeEnv | None = None) -> None:
        super().__init__(shape_env=env, allow_non_fake_inputs=True)
        self.cache_enabled = False  # no shape repeats, and hashing symbols takes as long as the operator
        self._folding = ExitStack()
        self._depth = 0  # PyTorch re-enters the mode for composite operators

    def __enter__(self) -> Self:
        super().__enter__()
        if not self._depth:
            self._folding.enter_context(_Folding())
        self._depth += 1
        return self

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (result := _known_result(func, args, kwargs)) is not None:
            return self._empty(*result)
        if func is aten.native_layer_norm.default and (x := args[0]).dtype == torch.float32 and _contiguous(x):
            rows = (*x.shape[: -len(args[1])], *(1 for _ in args[1]))
            return tuple(self._empty(shape, x) for shape in (x.shape, rows, rows))
        if func is aten.native_layer_norm_backward.default and _contiguous(args[1]):
            *_, weight, bias, outputs = args  # gradients of the input, its weight and its bias
            tensors = zip((args[1], weight, bias), outputs, strict=True)
            return tuple(self._empty(tensor.shape, tensor) if needed else None for tensor, needed in tensors)
        faked = func in _VIEWS and isinstance(args[0], FakeTensor)
        if faked and len(args[1]) and args[0].dim() and _contiguous(args[0]):
            # A contiguous tensor can be viewed in any shape; PyTorch would compare dimension by dimension.
            shape = infer_size(args[1], args[0].numel())
            strides = make_contiguous_strides_for(shape)
            return aten.as_strided.default(args[0], shape, strides, args[0].storage_offset())
        return super().dispatch(func, types, args, kwargs)

    def _empty(self, shape: Sequence[Any], like: Tensor, strides: Sequence[Any] | None = None) -> Tensor:
        """A result of an operator, contiguous unless strides are given."""
        device = like.fake_device if isinstance(like, FakeTensor) else like.device
        options: Any = {"dtype": like.dtype, "device": "meta"}
        with in_kernel_invocation_manager(self):
            result = (
                torch.empty(shape, **options) if strides is None else torch.empty_strided(shape, strides, **options)
            )
        return FakeTensor(self, result, device)

    def __exit__(self, *error: Any) -> None:
        self._depth -= 1
        if not self._depth:
            self._folding.close()
        super().__exit__(*error)


def _contiguous(tensor: Tensor) -> bool:
    """Whether the strides alone show that a tensor is contiguous, for all values of the symbols."""
    return _is_packed(tensor, reversed(range(tensor.dim())))


def _is_packed(tensor: Tensor, axes: Iterable[int]) -> bool:
    """Whether a tensor has no gaps, and these axes are in the order of ascending strides."""
    expected: Any = 1
    for axis in axes:
        size = _expression(tensor.shape[axis])
        if size != 1 and _stride(tensor, axis) != expected:
            return False
        expected *= size
    return True


def _stride(tensor: Tensor, axis: int) -> Expression:
    """A stride without PyTorch's `Max(1, size)`: every size here is at least 1."""
    stride = _expression(tensor.stride(axis))
    bounds = () if type(stride) is int else stride.atoms(Max)
    return stride.xreplace({bound: size for bound in bounds for size in bound.args if size != 1}) if bounds else stride


Result = tuple[Sequence[Any], Any, Sequence[Any] | None]  # a shape, a tensor of its dtype, and strides or contiguous


def _known_result(func: Any, args: Any, kwargs: Any) -> Result | None:
    """The result of common operators if its sizes need no guard. PyTorch would compare symbols, which takes several
    milliseconds."""
    if func in _ELEMENTWISE:
        return _elementwise(func, args)
    if func is aten.roll.default and _contiguous(args[0]):
        return args[0].shape, args[0], None
    if func is aten.mean.dim and args[1:] == ([-1], True) and not kwargs and _contiguous(args[0]):
        return (*args[0].shape[:-1], 1), args[0], None
    return None


def _elementwise(func: Any, operands: Sequence[Any]) -> Result | None:
    """The result has strides of the first operand if it has the full shape, or is contiguous if all operands are."""
    tensors: list[Any] = [operand for operand in operands if isinstance(operand, Tensor)]
    if not all(isinstance(tensor, FakeTensor) for tensor in tensors):
        return None
    first, integers = tensors[0], func in _OF_INTEGERS and len(tensors) == len(operands)
    alike = len({(tensor.dtype, tensor.fake_device) for tensor in tensors}) == 1
    if not (alike and (first.is_floating_point() or integers)):
        return None
    shape: list[Any] = []
    for axis in range(1, max(map(Tensor.dim, tensors)) + 1):
        sizes = {_expression(tensor.shape[-axis]): tensor.shape[-axis] for tensor in tensors if tensor.dim() >= axis}
        sizes.pop(1, None)
        if len(sizes) > 1:
            return None
        shape.insert(0, next(iter(sizes.values()), 1))
    full = [*map(_expression, first.shape)] == [*map(_expression, shape)]
    if (full and _contiguous(first)) or all(map(_contiguous, tensors)):
        return shape, first, None
    by_stride = sorted(range(first.dim()), key=lambda axis: _hint(first.stride(axis)))
    return (shape, first, first.stride()) if full and _is_packed(first, by_stride) else None


def _expression(size: Any) -> Expression:
    return size.node.expr if isinstance(size, torch.SymInt) else size


class _Folding(TorchFunctionMode):
    """Computes a user's products of many rows with one matrix by `reference.linear.multiply_rows`, and the size -1 of
    `unflatten` as a quotient of polynomials: PyTorch would simplify floors, which takes 0.1 s."""

    def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
        if not kwargs and func is Tensor.unflatten and len(args) == 3:
            args = (*args[:2], _resolved_sizes(args[0].shape[args[1]], args[2]))
        if not kwargs and func is F.linear and (len(args) == 2 or args[2] is None) and symbolic(args[0]):
            return multiply_rows(args[0], args[1].t())
        if not kwargs and func in _PRODUCTS and args[1].dim() == 2 and symbolic(args[0]):
            return multiply_rows(*args)
        return func(*args, **(kwargs or {}))


def _resolved_sizes(size: Any, parts: Sequence[Any]) -> Sequence[Any]:
    """The parts of a size, with -1 replaced if the other parts divide the size for all values of the symbols."""
    factors = [part for part in parts if type(part) is not int or part != -1]
    if type(size) is int or len(factors) == len(parts):
        return parts
    quotient = size.node.expr / math.prod(map(_expression, factors))
    if not quotient.is_integer:
        return parts
    resolved = size.node.shape_env.create_symintnode(quotient, hint=size.node.hint // math.prod(map(_hint, factors)))
    return [resolved if type(part) is int and part == -1 else part for part in parts]


def _hint(size: Any) -> int:
    return int(size.node.hint if isinstance(size, torch.SymInt) else size)


_PRODUCTS = frozenset({torch.matmul, Tensor.matmul, Tensor.__matmul__})


class SymbolicSize(NamedTuple):
    """A dimension that is `factor` times a letter."""

    letter: Expression
    factor: int


class Symbols:
    """Inputs whose batch and lengths are symbols, under `mode`; `read` converts measured figures to B, T and T_src.

    PyTorch assumes that a symbol is 2 or more; sizes of 1, which broadcast, are measured at points.
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
            raise NotForAll(f"a size depends on data ({', '.join(sorted(map(str, unknown)))})")
        return formula

    def _lettered(self, expression: Expression) -> Expression:
        # PyTorch has its own class Min.
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
    """Inputs of one length, under `mode`: like `Symbols`, but with numbers as lengths, and four times as fast; `read`
    takes multiples of the batch as proportional to B."""

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
