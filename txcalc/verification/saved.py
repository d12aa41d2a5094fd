"""Saved activations: the distinct storages that autograd saves, by the first module that saves each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import sympy
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from txcalc.errors import InputError
from txcalc.ledger import Ledger
from txcalc.notation import tidy, write
from txcalc.parts.mechanisms import MIXERS
from txcalc.parts.options import absent
from txcalc.parts.part import Leaf, Workload
from txcalc.parts.place import mechanism
from txcalc.planning.conventions import korthikanti
from txcalc.reference import mode
from txcalc.verification.sizes import SizeSymbols
from txcalc.verification.subject import SizePoint, Subject
from txcalc.verification.symbolic import B, OneSize, Symbols
from txcalc.verification.tracker import Tracker
from txcalc.verification.verdict import CheckedRow, compare, figures_by_module, module_paths

ORACLE = "saved_tensors_hooks"
WEIGHTS, TABLES, IDS, STATISTICS = "weights", "masks and tables", "ids and boolean masks", "statistics, one per row"


class SavedElements:
    """Elements that each module is the first to save (`elements`), and bytes left out, by reason (`left_out`).

    Left out, as in the ledger: storages whose size does not depend on B (weights, masks, tables of positions), those
    without floating-point numbers, and the statistics of norms and fused softmaxes, one per row. If the ledger counts
    nothing for a module, or only models it, a storage that it saves first is charged to the next module that saves it.

    With a batch of 1, sizes do not show whether they depend on B. `tables` then says this for each tensor that a path
    saves, from a trace with B as a symbol.
    """

    def __init__(
        self,
        net: nn.Module,
        symbols: Symbols | OneSize | SizeSymbols,
        ledger: Ledger,
        tables: Mapping[str, Sequence[bool]] | None = None,
    ) -> None:
        self.tables, self.packed = tables, dict[str, list[bool]]()
        self.symbols, self.tracker, self.statistics = symbols, Tracker(net), row_statistics(ledger)
        saved = figures_by_module(ledger, lambda entry: entry.saved)
        self.idle = {path for path, (_, elements) in saved.items() if elements == 0}
        self.elements: dict[str, Any] = {}
        self.left_out: dict[str, Any] = {}
        tensors = (*net.parameters(), *net.buffers())
        self._weights = {tensor.untyped_storage()._cdata for tensor in tensors}
        self._seen = dict[int, Any]()  # storages by address, kept alive, so that no address is reused
        # Storages counted for an idle path, or as statistics, until another module saves them: the arguments of `_add`.
        self._provisional = dict[int, tuple[str, str, Any, int]]()
        self._memory = set[int]()
        self._net = net

    def _pack(self, tensor: Tensor) -> Tensor:
        storage, path, width = tensor.untyped_storage(), self.tracker.path, tensor.dtype.itemsize
        address = storage._cdata
        packed = self.packed.setdefault(path, [])
        packed.append(self._is_table(storage, len(packed)))
        if address not in self._seen:
            self._seen[address] = storage
            owner = "memory" if address in self._memory else path
            elements = sympy.expand(self.symbols.read(storage.nbytes()) * sympy.Rational(1, width))
            reason = self._reason(address, tensor, elements, owner)
            self._add(reason, owner, elements, width)
            if reason == STATISTICS or (not reason and self._is_provisional(owner)):
                self._provisional[address] = reason, owner, elements, width
        elif address in self._provisional and path != self._provisional[address][1] and not self._is_provisional(path):
            reason, owner, elements, width = self._provisional.pop(address)
            self._add(reason, owner, -elements, width)  # an input, since no other module reads a statistic
            self._add("", path, elements, width)
        return tensor

    def _add(self, reason: str, path: str, elements: Any, width: int) -> None:
        """Counts elements for a module; with a reason, counts bytes as left out."""
        counts, key, amount = (self.left_out, reason, elements * width) if reason else (self.elements, path, elements)
        counts[key] = sympy.expand(counts.get(key, 0) + amount)

    def _is_table(self, storage: Any, number: int) -> bool:
        """Whether the size of the current path's `number`-th saved tensor does not depend on B."""
        if self.tables is None:
            return not sympy.sympify(self.symbols.read(storage.nbytes())).has(B)
        flags = self.tables.get(self.tracker.path, ())
        return number < len(flags) and flags[number]  # with more tensors, `packed` differs from `tables`

    def _is_provisional(self, path: str) -> bool:
        return path in self.idle or not MODELLED.keys().isdisjoint(path.split("."))

    def _reason(self, address: int, tensor: Tensor, elements: object, path: str) -> str:
        if address in self._weights:
            return WEIGHTS
        if not tensor.dtype.is_floating_point:
            return IDS
        if self.packed[self.tracker.path][-1]:
            return TABLES
        all_heads = tensor.dim() == 4 and tensor.shape[-1] > 1  # q, k, v or y of all heads, of any size
        return STATISTICS if not all_heads and sympy.expand(elements - self.statistics.get(path, 0)) == 0 else ""

    @contextmanager
    def recording(self) -> Iterator[SavedElements]:
        """Records what autograd saves in this context."""
        # The encoder's output is one tensor for all decoder layers: the ledger charges it to `memory`, not to the
        # first.
        memory = getattr(self._net, "memory", None)
        hook = memory and memory.register_forward_hook(lambda _m, _i, y: self._memory.add(y.untyped_storage()._cdata))
        with self.tracker, saved_tensors_hooks(self._pack, lambda tensor: tensor):
            yield self
        if hook:
            hook.remove()


def row_statistics(ledger: Ledger) -> dict[str, Any]:
    """One number per row and head, of every norm and fused attention core: path → elements."""
    rows: dict[str, Any] = {}
    for entry in ledger:
        work = entry.work
        if work is not None and not absent(per_position := entry.leaf.rows_kept(work)):
            rows |= dict.fromkeys(figures_by_module(Ledger([entry], work), lambda _: 0), work.positions * per_position)
    return rows


# Parts whose figure in the ledger models real kernels, not the reference module.
MODELLED = {
    # A short convolution saves only its columns, which are compared.
    **dict.fromkeys(
        {name for name in MIXERS if mechanism(name).kind == "recurrent"} - {"short_convolution"} | {"channel_mix"},
        "recurrent mixers (their kernels keep other states)",
    ),
    **dict.fromkeys(("streams", "spread", "merge"), "streams (their many small steps are fused or not)"),
    "experts": "experts (what is saved to dispatch and to combine depends on the implementation)",
}

READERS = ("gate", "inner_norm", "o", "o.lora_a", "mask_proj")  # modules that read a core's output or values


def why_saved_differs(leaf: Leaf, work: Workload) -> str:
    """Why the reference module saves other tensors than the ledger counts for a leaf in one of the traces, or ""."""
    if reason := leaf.saved_differs(work):
        return reason
    if leaf.norm_shape and leaf.norm_shape[1] == 1:
        return "norms of one element (not distinguishable from statistics per row)"
    heads = leaf.attended
    keys = leaf.mask_span.keys(work) if leaf.mask_span else work.keys
    if work.keep_scores and heads and heads.strided and 1 in (heads.groups, keys):
        return "one head of tied keys, of latents or disentangled (products copy it or not, depending on strides)"
    if work.keep_scores or heads is None:
        return ""
    if heads.d_qk == 1:
        return "heads of one element (PyTorch has no fused kernel for them)"
    if heads.d_qk != heads.d_v:
        return "values of another width than keys (PyTorch's fused kernel on the CPU takes one head width)"
    return ""


def rows(subject: Subject) -> Iterator[CheckedRow]:
    """Rows with the attention matrix saved (explicit products, on meta), and without (fused, on fake CPU tensors)."""
    for keep_scores in (True, False):
        quantity = "saved" + (", attention matrix kept" if keep_scores else ", fused attention")
        trace = partial(_trace, subject, keep_scores)
        ledger, elements, symbols = subject.trace(trace, quantity, "meta" if keep_scores else "cpu")
        measured = subject.expand_layers(elements)
        reasons = _modelled_parts(ledger, measured)
        subject.notes += [f"{quantity}: modelled, not compared: {reason}" for reason in sorted(set(reasons.values()))]
        claimed = Ledger((entry for entry in ledger if module_paths(entry)[0] not in reasons), ledger.work)
        measured = {path: value for path, value in measured.items() if path not in reasons}
        where, for_all = symbols.domain(), symbols.for_all
        yield from compare(claimed, lambda entry: entry.saved, measured, quantity, ORACLE, where, for_all)
        subject.notes += _published_note(subject, ledger) if keep_scores and for_all else []


def _trace(
    subject: Subject, keep_scores: bool, symbols: Symbols | OneSize, letters: SizePoint
) -> tuple[Ledger, dict[str, Any], Symbols | OneSize]:
    """The ledger, elements saved by module, and the symbols of both."""
    ledger = subject.ledger(letters, keep_scores=keep_scores)
    with mode(explicit=keep_scores, static=True), symbols.mode:
        net = subject.thin_net if keep_scores else subject.build_thin("cpu")
        with SavedElements(net, symbols, ledger).recording() as recorded:
            net(*symbols.inputs)
    symbols.domain()
    return ledger, recorded.elements, symbols


def _published_note(subject: Subject, ledger: Ledger) -> list[str]:
    """A note on the published count, if it describes the model, with each of its terms that differs from ours."""
    try:
        comparison = korthikanti(subject.model, ledger)
    except InputError:
        return []
    terms = [f"{write(tidy(t.theirs - t.ours))} B {t.name} ({t.why})" for t in comparison.terms if t.why]
    published, counted = write(tidy(comparison.theirs)), write(tidy(comparison.ours))
    return [f"{comparison.source}: {published} B of the layers, ours {counted}; theirs has " + "; ".join(terms)]


def claims(ledger: Ledger, ignored: Collection[str] = ()) -> bool:
    """Whether the ledger claims the saved elements of all parts, except the `ignored` names of `MODELLED`."""
    return {*_modelled_parts(ledger, {}).values()} <= {MODELLED[name] for name in ignored}


def _modelled_parts(ledger: Ledger, measured: Mapping[str, object]) -> dict[str, str]:
    """Path → reason of the parts whose saved elements are only modelled."""
    reasons: dict[str, str] = {}
    for entry in ledger:
        reason = why_saved_differs(entry.leaf, entry.work or ledger.work)
        for path in module_paths(entry) if reason else ():
            mixer = path.removesuffix("core")  # the gate, the norm or else o saves what the core does not
            reasons |= dict.fromkeys((path, *(mixer + reader for reader in READERS)), reason)
    for entry in ledger.where(lambda entry: entry.routed):  # the mixer itself dispatches to its experts
        for path in module_paths(entry):
            mixer, routed, _ = path.partition(".routed")
            reasons |= {mixer.rpartition(".")[0]: MODELLED["experts"]} if routed else {}
    for path in {*measured, *figures_by_module(ledger, lambda _: 0)}:
        for name in MODELLED.keys() & set(path.split(".")):
            reasons[path] = MODELLED[name]
    return reasons
