"""The weights of a model as they are published: its `quantization_config`, or its own dtype.

A quantiser's config gives a format and the modules left unquantised, by their names in transformers. An unknown method
is refused, since its bytes cannot be known.

Source   transformers' quantizers (`should_convert_module`), compressed-tensors 0.20 (`initialize_qparams` and its
         compressors), ModelOpt 0.47 (`unified_export_hf`), AutoAWQ and AutoGPTQ as their checkpoints store it (2026-11)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from txcalc.errors import ABSENT, Fault, InputError
from txcalc.ledger import Entry
from txcalc.model import Model
from txcalc.planning.formats.mixtures import stored
from txcalc.planning.formats.modules import BLOCKS, LEFT, TABLES, WHERE, Modules, check_packed, listed
from txcalc.planning.formats.weights import EVERY_MATRIX, EXPERTS, FORMATS, LAYERS, Format, Mixed, Numbers

Config = Mapping[str, Any]

PACKS = {"pack-quantized": "int", "int-quantized": "int", "float-quantized": "float"}  # compressed-tensors' layouts
WIDTHS = {"fp8": 8, "fbgemm-fp8": 8, "mxfp4": 4}  # of methods of one
Covers = Callable[[Entry, int | None], bool]
Rule = tuple[Covers, Format | None]  # the first that covers a leaf decides


def native(model: Model) -> Format:
    """The weights as published. Errors: `InputError` for a config that is not understood or contradicts itself."""
    dtype = model.spec["dtype"]
    if model.checkpoint and model.checkpoint.held.form == "gguf":
        return stored(model)
    config = model.spec["quantization"]
    return FORMATS[dtype] if config is None else configured(model, config, FORMATS[dtype].bits)


def published(model: Model, name: str) -> Format | None:
    """The makers' published checkpoint in this format; None: there is none."""
    config = model.spec["variants"].get(name)
    return None if config is None else configured(model, config, FORMATS[model.spec["dtype"]].bits)


def configured(model: Model, config: Config, wide: int = 16) -> Format:
    """A model's matrices as a `quantization_config` stores them. Errors: `InputError`."""
    if (own := config.get("expert_dtype")) not in (None, "fp8", "fp4"):
        mend = "--weights fp8 or another counts all alike"
        raise InputError(WHERE, [Fault("expert_dtype", own, "fp8, fp4, or none", mend)])
    read = _Config(config, wide, model.kind in ("vision", "audio"))
    rules = list(read.rules())
    if read.faults:
        raise InputError(WHERE, read.faults)

    layered = any(own.numbered or own.exact for own in read.lists)  # else numbers of as many digits are alike

    def choose(entry: Entry, numbers: Numbers) -> list[Format | None]:
        keys = list(numbers) if layered else [number and len(str(number)) for number in numbers]
        known = {
            key: next((form for covers, form in rules if covers(entry, number)), None)
            for key, number in dict(zip(keys, numbers, strict=True)).items()
        }
        return [known[key] for key in keys] if len({*known.values()}) > 1 else [*known.values()][:1]

    ledger = [entry for entry in model.entries if entry.leaf.untied.params]
    main = next((form for _, form in reversed(rules) if form), None)
    found = Mixed.of(main.name if main else read.method, f"quantization_config: {read.method}", ledger, choose, wide)
    if not isinstance(found, Mixed) or not found.table:
        raise InputError(WHERE, [f"quantises no layer of {model.name}: its lists leave every one wide"])
    if unknown := [name for own in read.lists for name in own.unknown(ledger)]:
        few = ", ".join(sorted(unknown)[:3])
        raise InputError(WHERE, [f"names modules that are not known here: {few} (--weights FORMAT counts all alike)"])
    check_packed(read.method, found, ledger)
    return found


def _linear(entry: Entry, _: int | None) -> bool:
    """A linear layer of a block, which transformers replaces. Its routers are no linear layers."""
    return entry.kind in LAYERS


def _routed(entry: Entry, _: int | None) -> bool:
    return entry.kind in EXPERTS


def _pooling(entry: Entry, _: int | None) -> bool:
    """Leaves that pool keys and values."""
    return any(step.duty == "pools" for step in entry.steps)


def _mixing(entry: Entry, _: int | None) -> bool:
    """Leaves that mix residual streams, a pool's position table, and sinks."""
    return entry.kind in ("other", "attention_core") or entry.duty == "pools"


def _table(value: Any) -> Config:
    return value if isinstance(value, Mapping) else {}


class _Config:
    """Reads one config into rules and gathers its faults."""

    def __init__(self, raw: Config, wide: int, tower: bool = False) -> None:
        self.raw, self.wide, self.tower = raw, wide, tower
        self.faults, self.lists = list[Fault | str](), list[Modules]()
        method = raw.get("quant_method")
        if method is None and (raw.get("load_in_4bit") or raw.get("load_in_8bit")):
            method = "bitsandbytes"
        if method is None and "bits" in raw and "group_size" in raw:
            method = "mlx"
        self.method = str(method or "").lower().replace("_", "-")

    def rules(self) -> Iterator[Rule]:
        reader, mend = READERS.get(self.method), "say --weights FORMAT instead"
        if self.method == "gguf":  # only the file gives its types
            mend = "give the .gguf file instead"
        if reader is None:
            known = "one of " + ", ".join(name.replace("-", "_") if name == "fbgemm-fp8" else name for name in READERS)
            self.faults.append(Fault("quant_method", self.raw.get("quant_method", ABSENT), known, mend))
            return
        for key, value in self.raw.items():
            if isinstance(value, Mapping | list) and value and key not in (*LEFT, *TABLES) and self.method != "mlx":
                self.faults.append(Fault(key, f"a {type(value).__name__}", "no table or list that is not read", mend))
        if width := WIDTHS.get(self.method):
            self.number("bits", (width,), width)
        for key in ("load_in_4bit", "load_in_8bit"):  # these select bitsandbytes
            if self.raw.get(key) is True and self.method != "bitsandbytes":
                self.faults.append(Fault(key, True, f"false or none, for the method is {self.method}", mend))
        yield (self.named(self.left(self.raw)), None)
        yield from reader(self)

    def named(self, patterns: Iterable[str]) -> Covers:
        """The modules of a list of names."""
        self.lists.append(Modules(patterns, self.tower))
        return self.lists[-1].have

    def left(self, table: Config) -> Iterator[str]:
        """The names of modules that stay wide."""
        for key in LEFT:
            value = table.get(key) or ()
            if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
                self.faults.append(Fault(key, value, "a list of modules' names"))
                continue
            yield from value

    def number(self, key: str, among: tuple[int, ...] = (), default: Any = ABSENT, table: Config | None = None) -> Any:
        """A key's integer, one of the choices if given."""
        value = (self.raw if table is None else table).get(key, default)
        if type(value) is int and (value in among if among else value > 0):
            return value
        expected = "one of " + ", ".join(map(str, among)) if among else "a whole number above 0"
        self.faults.append(Fault(key, value, expected))
        return among[0] if among else 1

    def fp8(self) -> Iterator[Rule]:
        """In 16 and 32 bits what DeepSeek's code keeps so without a word in the config: the weights of an index's heads
        (V3.2), and with experts in fp4 (V4-Flash), whose scales have eight bits, more."""
        block, narrow = self.raw.get("weight_block_size"), self.raw.get("expert_dtype") == "fp4"
        yield (lambda entry, _: entry.duty == "weighs", None)
        if narrow:
            yield (_mixing, FORMATS["fp32"])
            yield (_pooling, None)
            yield (_routed, FORMATS["mxfp4"])
        static = self.raw.get("activation_scheme") == "static"  # then inputs have a scale, too
        if block is None:
            yield (_linear, replace(FORMATS["fp8"], tensor=32 + 32 * static))
        elif isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block):
            tile, scale = (block[0], block[1]), 8 if narrow else 32
            yield (_linear, replace(FORMATS["fp8-block"], block=tile, scale=scale, tensor=32 * static))
        else:
            self.faults.append(Fault("weight_block_size", block, "two whole numbers, rows and columns"))

    def awq(self) -> Iterator[Rule]:
        for key, old in (("bits", "w_bit"), ("group_size", "q_group_size")):
            if {key, old} <= self.raw.keys() and self.raw[key] != self.raw[old]:
                self.faults.append(Fault(key, self.raw[key], f"{self.raw[old]}, as {old} says"))
        self.one_of("version", ("gemm", "gemv_fast", "marlin", "exllama", "ipex"))
        bits = self.number("bits" if "bits" in self.raw else "w_bit", (4,))
        group = self.group("group_size" if "group_size" in self.raw else "q_group_size")
        yield (_linear, self.integers(bits, group, zero=bits))

    def gptq(self) -> Iterator[Rule]:
        """AutoGPTQ's files store the group of every input, in 32 bits, even if the order is unchanged."""
        self.one_of("checkpoint_format", ("gptq", "gptq_v2"))
        for covers, form in self.rounded():
            yield (covers, form and replace(form, column=32))

    def rounded(self) -> Iterator[Rule]:
        bits, group = self.number("bits", (4, 2, 3, 8)), self.group("group_size")
        self.one_of("data_type", ("int",))
        for name, here in self.tables("extra_config"):  # AutoRound's modules by name, or by an expression
            called = self.named([f"re:{name}" if "\\" in name or "*" in name else name])
            yield (called, None if here.get("bits", bits) >= 16 else self.other(here, bits, group))
        for name, here in self.tables("dynamic"):  # GPTQModel's expressions; "-:" is of what stays wide
            form = None if name.startswith("-:") else self.other(here, bits, group)
            yield (self.named([f"re:{name.removeprefix('-:').removeprefix('+:')}"]), form)
        form = self.integers(bits, group, zero=bits)
        if self.raw.get("lm_head") is True:
            yield (lambda entry, _: entry.kind == "head", form)
        yield (self.listed(), form)

    def other(self, table: Config, bits: int, group: int) -> Format:
        """The format of modules that differ from the rest."""
        narrow = self.number("bits", (4, 2, 3, 8), bits, table)
        whole = table.get("group_size", group) in (0, -1)
        return self.integers(narrow, 0 if whole else self.number("group_size", (), group, table), zero=narrow)

    def listed(self) -> Covers:
        """The listed modules of the listed blocks; without a list of modules, all linear layers of the blocks."""
        found = list[Covers]()
        blocks, modules = next((key for key in BLOCKS if self.raw.get(key)), ""), "modules_in_block_to_quantize"
        for key, value in ((key, self.raw[key]) for key in (blocks, modules) if self.raw.get(key) is not None):
            named = listed(value, key)
            found.append(self.named(named or ()))
            self.faults += [] if named else [Fault(key, value, "lists of modules' names")]
        found += [_linear] if self.raw.get(modules) is None else []
        return lambda entry, number: all(covers(entry, number) for covers in found)

    def mlx(self) -> Iterator[Rule]:
        """MLX: every matrix and table but a router's, with a scale and a bias of 16 bits for each group; modules by
        name have formats of their own, or stay wide."""
        for name, own in self.raw.items():
            if isinstance(own, Mapping) or own is False:
                yield (self.named([name]), self.packed(own) if own else None)
        yield (lambda entry, _: entry.kind != "router", self.packed(self.raw))

    def packed(self, table: Config) -> Format:
        mode = table.get("mode", "affine")
        if mode != "affine":
            self.faults.append(Fault("mode", mode, "'affine'"))
        bits = self.number("bits", (4, 2, 3, 5, 6, 8), table=table)
        group = self.number("group_size", (64, 32, 128), table=table)
        return Format(f"mlx-int{bits}-g{group}", bits, EVERY_MATRIX, WHERE, block=group, scale=32)

    def one_of(self, key: str, known: tuple[str, ...]) -> None:
        """Checks that a file layout, if given, is supported."""
        if str(value := self.raw.get(key) or known[0]).lower() not in known:
            self.faults.append(Fault(key, value, f"one of {', '.join(known)}", "--weights FORMAT counts another"))

    def group(self, key: str) -> int:
        """Elements that share a scale; -1, a whole row, is 0 here."""
        value = self.raw.get(key, 128)
        if type(value) is int and (value == -1 or value > 0):
            return max(value, 0)
        self.faults.append(Fault(key, value, "a whole number above 0, or -1 for whole rows"))
        return 128

    def integers(self, bits: int, group: int, zero: int = 0) -> Format:
        """Integers with a scale, and a zero point where `zero` is its bits, for every group of a row."""
        name = f"int{bits}" + (f"-g{group}" if group and group != 128 else "")
        if not group:
            return Format(name, bits, LAYERS, WHERE, row=16 + zero)
        return Format(name, bits, LAYERS, WHERE, block=group, scale=16 + zero)

    def bitsandbytes(self) -> Iterator[Rule]:
        four, eight = (self.raw.get(key, False) for key in ("load_in_4bit", "load_in_8bit"))
        if bool(four) == bool(eight):
            self.faults.append(f"load_in_4bit is {four} and load_in_8bit is {eight}, expected one of them true")
        elif eight:
            yield (_linear, FORMATS["int8"])
        else:
            kind = self.raw.get("bnb_4bit_quant_type", "fp4")
            if kind not in ("nf4", "fp4"):
                self.faults.append(Fault("bnb_4bit_quant_type", kind, "'nf4' or 'fp4'"))
            double = bool(self.raw.get("bnb_4bit_use_double_quant", False))
            plain = FORMATS["nf4"]
            # Twice: scales of 8 bits, 256 of which share one of 32.
            twice = replace(plain, name=kind, scale=8, pooled=64 * 256)
            yield (_linear, twice if double else replace(plain, name=kind))

    def modelopt(self) -> Iterator[Rule]:
        inner = self.table("quantization") or self.raw
        if inner is not self.raw:
            yield (self.named(self.left(inner)), None)
        mixed = inner.get("quantized_layers")
        if isinstance(mixed, Mapping):
            alike: dict[str, tuple[Config, list[str]]] = {}
            for name, own in mixed.items():
                table = own if isinstance(own, Mapping) else {"quant_algo": own}
                alike.setdefault(repr((table.get("quant_algo"), table.get("group_size"))), (table, []))[1].append(name)
            for table, several in alike.values():
                if form := self.algorithm(table.get("quant_algo"), table):
                    yield (self.named(several), form)
            return
        if "config_groups" in inner and "quant_algo" not in inner:
            yield from self.groups(inner)
        elif form := self.algorithm(inner.get("quant_algo"), inner):
            yield (_linear, form)

    def algorithm(self, name: Any, table: Config) -> Format | None:
        """AWQ's input scales are not counted: the config does not say which of them its exporter folds into other
        layers."""
        two, row = 64, Format("fp8", 8, LAYERS, WHERE, "fp8", row=32)  # of weights and inputs
        known = {
            "FP8": replace(FORMATS["fp8"], tensor=two),
            "NVFP4": replace(FORMATS["nvfp4"], tensor=two),
            "NVFP4_AWQ": replace(FORMATS["nvfp4"], tensor=two),
            "W4A16_NVFP4": FORMATS["nvfp4"],
            **dict.fromkeys(("MXFP4", "W4A8_MXFP4_FP8"), replace(FORMATS["mxfp4"], covers=LAYERS)),
            **dict.fromkeys(("FP8_PB_WO", "FP8_BLOCK_SCALES"), FORMATS["fp8-block"]),
            "FP8_PER_CHANNEL_PER_TOKEN": row,
            **dict.fromkeys(("INT8_SQ", "W8A8_SQ_PER_CHANNEL", "W8A16"), FORMATS["int8"]),
        }
        if name in ("W4A16_AWQ", "W4A8_AWQ"):
            return self.integers(4, self.number("group_size", (), 128, table))
        if not isinstance(name, str) or name not in known:
            expected = "one of " + ", ".join([*known, "W4A16_AWQ", "MIXED_PRECISION with quantized_layers"])
            self.faults.append(Fault("quant_algo", name, expected))
        return known.get(str(name))

    def groups(self, table: Config) -> Iterator[Rule]:
        """compressed-tensors: what targets name, each with its scheme; "Linear" is every linear layer."""
        groups = table.get("config_groups")
        if not isinstance(groups, Mapping) or not groups:
            self.faults.append(Fault("config_groups", groups or ABSENT, "a table of groups"))
            return
        wide: list[Rule] = []
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
            own = [target for target in targets if target != "Linear"]
            if own:
                yield (self.named(own), form)
            if len(own) < len(targets):
                wide.append((_linear, form))
        yield from wide

    def scheme(self, where: str, table: Config, scheme: Config) -> Format:
        """Scales are in the dtype of unquantised weights; a packed matrix has its shape, two integers of 64 bits."""
        bits = self.number("num_bits", (4, 8, 2, 3), table=table)
        kind, strategy = str(table.get("type", "int")).lower(), table.get("strategy")
        group: Any = table.get("group_size")
        inputs = _table(scheme.get("input_activations"))
        packing = scheme.get("format") or self.raw.get("format")
        if packing in (None, "mixed-precision"):
            packing = "pack-quantized" if kind == "int" and not inputs else "quantized"
        if "24" in str(packing) or (self.table("sparsity_config").get("format") or "dense") != "dense":
            self.faults.append(f"{where}: is sparse as well, of which txcalc counts no files (--weights FORMAT)")
        if strategy is None:
            strategy = "tensor" if group is None else "channel" if group == -1 else "group"
        if kind not in ("int", "float"):
            self.faults.append(Fault(f"{where}.type", kind, "'int' or 'float'"))
        elif PACKS.get(str(packing), kind) != kind:
            self.faults.append(Fault(f"{where}.type", kind, f"{PACKS[str(packing)]!r}, for the format is {packing!r}"))
        if strategy in ("group", "tensor_group") and not (type(group) is int and group > 0):
            self.faults.append(
                Fault(f"{where}.group_size", group, f"a whole number above 0, for the strategy is {strategy!r}")
            )
            group = 128
        if strategy in ("channel", "tensor") and type(group) is int and group > 0:
            self.faults.append(Fault(f"{where}.group_size", group, f"none, for the strategy is {strategy!r}"))
        floats, apart = kind == "float", 128 * (packing == "pack-quantized")
        if floats and bits == 4 and group not in (16, 32):
            self.faults.append(Fault(f"{where}.group_size", group, "16 or 32, for the type is 'float' of 4 bits"))
        if strategy == "tensor_group" and not (floats and bits == 4):
            self.faults.append(Fault(f"{where}.strategy", strategy, "another, for it is of 'float' of 4 bits"))
        stored = bits if floats or apart else 8
        zero = 0 if table.get("symmetric", True) else stored
        apart += self.fixed(inputs)
        if floats and bits == 4:
            narrow = replace(FORMATS["mxfp4"], covers=LAYERS) if group == 32 else FORMATS["nvfp4"]
            return replace(narrow, tensor=narrow.tensor + apart)
        dtype = ("fp8" if floats else "int8") if bits == 8 else "bf16"
        name, scale = ("fp" if floats else "int") + str(bits), self.wide + zero
        if strategy == "block":
            tile = self.tile(where, table.get("block_structure"))
            return Format("fp8-block", bits, LAYERS, WHERE, dtype, tile, scale=scale, tensor=apart)
        if strategy == "group":
            small = floats and table.get("scale_dtype") == "torch.uint8"  # MXFP8's exponents
            named = name + (f"-g{group}" if group != 128 else "")
            return Format(named, stored, LAYERS, WHERE, block=group, scale=8 if small else scale, tensor=apart)
        if strategy == "channel":
            return Format(name, stored, LAYERS, WHERE, dtype, row=scale, tensor=apart)
        if strategy != "tensor":
            self.faults.append(Fault(f"{where}.strategy", strategy, "tensor, channel, group, block or tensor_group"))
        return Format(name, stored, LAYERS, WHERE, dtype, tensor=scale + apart)

    def tile(self, where: str, block: Any) -> tuple[int, int]:
        if isinstance(block, str) and block.count("x") == 1:
            block = [int(side) if side.isdecimal() else side for side in block.split("x")]
        if isinstance(block, list) and len(block) == 2 and all(type(side) is int and side > 0 for side in block):
            return block[0], block[1]
        self.faults.append(Fault(f"{where}.block_structure", block, "two whole numbers, rows and columns"))
        return 128, 128

    def fixed(self, inputs: Config) -> int:
        """Bits of a matrix's input scale, if the file has one."""
        if not inputs or inputs.get("dynamic", False) is True:
            return 0
        if inputs.get("strategy") == "tensor_group" or inputs.get("dynamic") == "local":
            return 32
        return self.wide + (0 if inputs.get("symmetric", True) else 8)

    def quark(self) -> Iterator[Rule]:
        for name, own in self.table("layer_quant_config").items():
            yield (self.named([name]), self.quarks(f"layer_quant_config.{name}", own))
        yield (_linear, self.quarks("global_quant_config", self.table("global_quant_config")))

    def quarks(self, where: str, table: Any) -> Format | None:
        scheme, inputs = (_table(_table(table).get(key)) for key in ("weight", "input_tensors"))
        kind, group = scheme.get("dtype"), scheme.get("group_size")
        apart = 32 * (inputs.get("is_dynamic") is False)
        if kind in ("fp8_e4m3", "fp8"):
            row = 32 * (scheme.get("qscheme") == "per_channel")
            return replace(FORMATS["fp8"], row=row, tensor=32 - row + apart)
        if kind == "fp4" and group == 32:
            return replace(FORMATS["mxfp4"], covers=LAYERS)
        if kind in ("int4", "uint4") and type(group) is int and group > 0:
            return self.integers(4, group, zero=4)
        self.faults.append(Fault(f"{where}.weight", scheme or ABSENT, "fp8, fp4 in groups of 32, or int4"))
        return None

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
            yield name, _table(value)


READERS: Mapping[str, Callable[[_Config], Iterator[Rule]]] = {
    "fp8": _Config.fp8,
    "fbgemm-fp8": lambda _: iter([(_linear, Format("fp8", 8, LAYERS, "fbgemm: an fp32 scale per row", "fp8", row=32))]),
    "mxfp4": lambda _: iter([(_routed, FORMATS["mxfp4"])]),
    "awq": _Config.awq,
    "gptq": _Config.gptq,
    "auto-round": _Config.rounded,
    "intel/auto-round": _Config.rounded,
    "mlx": _Config.mlx,
    "chatglm": lambda read: iter([(_linear, read.integers(read.number("bits", (8, 4)), 0))]),  # a scale per row
    "bitsandbytes": _Config.bitsandbytes,
    "modelopt": _Config.modelopt,
    "modelopt-fp4": _Config.modelopt,
    "compressed-tensors": lambda read: read.groups(read.raw),
    "quark": _Config.quark,
}
