"""Readers of quantisers' configs: checked keys, and the schemes of compressed-tensors.

Source   compressed-tensors 0.20 (`initialize_qparams` and its compressors)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from txcalc.errors import ABSENT, Fault
from txcalc.ledger import Entry
from txcalc.parts.options import Table
from txcalc.planning.formats.modules import LEFT, WHERE, Modules
from txcalc.planning.formats.weights import LAYERS, Format

Config = Table
Covers = Callable[[Entry, int | None], bool]
Rule = tuple[Covers, Format | None]  # the first rule that covers a leaf decides

PACKS = {"pack-quantized": "int", "int-quantized": "int", "float-quantized": "float"}  # compressed-tensors' layouts
FLOAT_GROUPS = {4: (16, 32), 6: (32,)}  # group sizes of floats by bits: NVFP4's, and the microscaling formats'


def linear(entry: Entry, _: int | None) -> bool:
    """Whether a leaf is a linear layer of a block, which transformers replaces (its routers are no linear layers)."""
    return entry.kind in LAYERS


def table_of(value: object) -> Config:
    return value if isinstance(value, Mapping) else {}


class ConfigKeys:
    """The keys of one config, and their faults."""

    def __init__(self, raw: Config, wide: int, tower: bool = False) -> None:
        self.raw, self.wide, self.tower = raw, wide, tower
        self.faults, self.lists = list[Fault | str](), list[Modules]()
        method = raw.get("quant_method")
        if method is None and (raw.get("load_in_4bit") or raw.get("load_in_8bit")):
            method = "bitsandbytes"
        if method is None and "bits" in raw and "group_size" in raw:
            method = "mlx"
        self.method = str(method or "").lower().replace("_", "-")

    def named(self, patterns: Iterable[str]) -> Covers:
        """The modules of a list of names."""
        self.lists.append(Modules(patterns, self.tower))
        return self.lists[-1].have

    def unquantised(self, table: Config) -> Iterator[str]:
        """The names of modules that are not quantised."""
        for key in LEFT:
            value = table.get(key) or ()
            if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
                self.faults.append(Fault(key, value, "a list of modules' names"))
                continue
            yield from value

    def number(
        self, key: str, among: tuple[int, ...] = (), default: object = ABSENT, table: Config | None = None
    ) -> Any:
        """A key's integer, one of `among` if given."""
        value = (self.raw if table is None else table).get(key, default)
        if type(value) is int and (value in among if among else value > 0):
            return value
        expected = "one of " + ", ".join(map(str, among)) if among else "a whole number above 0"
        self.faults.append(Fault(key, value, expected))
        return among[0] if among else 1

    def one_of(self, key: str, known: tuple[str, ...]) -> None:
        """Checks that a file layout, if given, is supported."""
        if str(value := self.raw.get(key) or known[0]).lower() not in known:
            self.faults.append(Fault(key, value, f"one of {', '.join(known)}", "--weights FORMAT counts another"))

    def group(self, key: str) -> int:
        """Elements that share a scale; 0 for -1, a whole row."""
        value = self.raw.get(key, 128)
        if type(value) is int and (value == -1 or value > 0):
            return max(value, 0)
        self.faults.append(Fault(key, value, "a whole number above 0, or -1 for whole rows"))
        return 128

    def integers(self, bits: int, group: int, zero: int = 0) -> Format:
        """Integers with a scale, and a zero point of `zero` bits, for every group of a row."""
        name = f"int{bits}" + (f"-g{group}" if group and group != 128 else "")
        if not group:
            return Format(name, bits, LAYERS, WHERE, row=16 + zero)
        return Format(name, bits, LAYERS, WHERE, block=group, scale=16 + zero)

    def table(self, key: str) -> Config:
        value = self.raw.get(key) or {}
        if isinstance(value, Mapping):
            return value
        self.faults.append(Fault(key, value, "a table"))
        return {}

    def tables(self, key: str) -> Iterator[tuple[str, Config]]:
        """The sub-tables of a table, by name; a missing one is empty."""
        for name, value in self.table(key).items():
            if not isinstance(value, Mapping | None):
                self.faults.append(Fault(f"{key}.{name}", value, "a table"))
            yield name, table_of(value)


class Schemes(ConfigKeys):
    """The schemes of compressed-tensors."""

    def groups(self, table: Config) -> Iterator[Rule]:
        """The rules of compressed-tensors: each group's targets with its scheme; "Linear" is every linear layer."""
        groups = table.get("config_groups")
        if not isinstance(groups, Mapping) or not groups:
            self.faults.append(Fault("config_groups", groups or ABSENT, "a table of groups"))
            return
        for_linear: list[Rule] = []
        for name, group in groups.items():
            scheme = group.get("weights") if isinstance(group, Mapping) else None
            if not isinstance(scheme, Mapping):
                self.faults.append(Fault(f"config_groups.{name}.weights", scheme, "a table: num_bits, type, strategy"))
                continue
            form = self.scheme(f"config_groups.{name}.weights", scheme, group)
            targets = group.get("targets") or ["Linear"]
            if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
                self.faults.append(Fault(f"config_groups.{name}.targets", targets, "a list of modules' names"))
                continue
            module_names = [target for target in targets if target != "Linear"]
            if module_names:
                yield (self.named(module_names), form)
            if len(module_names) < len(targets):
                for_linear.append((linear, form))
        yield from for_linear

    def scheme(self, where: str, table: Config, scheme: Config) -> Format:
        """The format of a scheme. Scales are in the dtype of unquantised weights, those of floats below 8 bits in 8
        bits; a packed matrix stores its shape in two integers of 64 bits; an order of inputs (`actorder`) other than
        that of the columns is stored in 32 bits each."""
        floats = str(table.get("type", "int")).lower() == "float"
        bits = self.number("num_bits", (4, 8, 6) if floats else (4, 8, 2, 3, 5, 6, 7), table=table)
        inputs = table_of(scheme.get("input_activations"))
        packing = scheme.get("format") or self.raw.get("format")
        if packing in (None, "mixed-precision"):
            packing = "quantized" if floats or inputs else "pack-quantized"
        strategy, group = self.strategy(where, table, bits, str(packing))
        packed, tiny, name = packing == "pack-quantized", floats and bits < 8, f"{'fp' if floats else 'int'}{bits}"
        # A second scale for the whole matrix; ModelOpt's tables have no strategy.
        shared = table.get("strategy") == "tensor_group" or (tiny and group == 16 and table.get("strategy") is None)
        in_8_bits = tiny or (floats and group == 32 and table.get("scale_dtype") == "torch.uint8")  # MXFP8's exponents
        zero = 0 if table.get("symmetric", True) else bits if packed and strategy in ("group", "channel") else 8
        scale, tensor = (8 if in_8_bits else self.wide) + zero, 128 * packed + self.input_scale(inputs) + 32 * shared
        ordered = 32 * (table.get("actorder") in ("group", "dynamic", True))
        plain = Format(name, bits if floats or packed else 8, LAYERS, WHERE, tensor=tensor, column=ordered)
        if tiny:
            dtype, name = ("fp4", "nvfp4") if group == 16 else ("bf16", f"mx{name}")
            return replace(plain, name=name, dtype=dtype, block=group, scale=scale, filled=group == 32)
        if strategy == "group":
            return replace(plain, name=name + (f"-g{group}" if group != 128 else ""), block=group, scale=scale)
        plain = replace(plain, dtype=("fp8" if floats else "int8") if bits == 8 else "bf16")
        if strategy == "block":
            tile = self.tile(where, table.get("block_structure"))
            return replace(plain, name=f"{name}-block", block=tile, scale=scale)
        return replace(plain, row=scale) if strategy == "channel" else replace(plain, tensor=tensor + scale)

    def strategy(self, where: str, table: Config, bits: int, packing: str) -> tuple[str, int]:
        """The strategy by which scales are shared, and the elements of a row that share one; contradictions are
        faults."""
        kind, group = str(table.get("type", "int")).lower(), table.get("group_size")
        strategy = table.get("strategy") or ("tensor" if group is None else "channel" if group == -1 else "group")
        sizes = FLOAT_GROUPS.get(bits, ()) if kind == "float" else ()

        def fault(key: str, got: object, expected: str) -> None:
            self.faults.append(Fault(f"{where}.{key}", got, expected))

        if "24" in packing or (self.table("sparsity_config").get("format") or "dense") != "dense":
            self.faults.append(f"{where}: is also sparse, and txcalc does not count sparse files (--weights FORMAT)")
        if kind not in ("int", "float"):
            fault("type", kind, "'int' or 'float'")
        elif PACKS.get(packing, kind) != kind:
            fault("type", kind, f"{PACKS[packing]!r}, since the format is {packing!r}")
        if strategy not in ("tensor", "channel", "group", "block", "tensor_group"):
            fault("strategy", strategy, "tensor, channel, group, block or tensor_group")
        elif strategy == "tensor_group" and not sizes:
            fault("strategy", strategy, "another: this is only for 'float' of 4 bits")
        elif "group" in strategy and not (type(group) is int and group > 0):
            fault("group_size", group, f"a whole number above 0, since the strategy is {strategy!r}")
        elif strategy in ("channel", "tensor") and type(group) is int and group > 0:
            fault("group_size", group, f"none, since the strategy is {strategy!r}")
        if sizes and group not in sizes:
            fault("group_size", group, f"{' or '.join(map(str, sizes))}, since the type is 'float' of {bits} bits")
        return strategy, group if type(group) is int and group > 0 else 128

    def tile(self, where: str, block: object) -> tuple[int, int]:
        if isinstance(block, str) and block.count("x") == 1:
            block = [int(side) if side.isdecimal() else side for side in block.split("x")]
        if isinstance(block, list) and len(block) == 2 and all(type(side) is int and side > 0 for side in block):
            return block[0], block[1]
        self.faults.append(Fault(f"{where}.block_structure", block, "two whole numbers, rows and columns"))
        return 128, 128

    def input_scale(self, inputs: Config) -> int:
        """Bits of a matrix's input scale; 0 if the file has none."""
        if not inputs or inputs.get("dynamic", False) is True:
            return 0
        if inputs.get("strategy") == "tensor_group" or inputs.get("dynamic") == "local":
            return 32
        return self.wide + (0 if inputs.get("symmetric", True) else 8)
