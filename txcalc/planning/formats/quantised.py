"""The weights of a model as they are published: its `quantization_config`, or its own dtype.

A quantiser's config gives a format and the modules left unquantised, by their names in transformers. An unknown method
is refused, since its bytes cannot be known.

Source   transformers' quantizers (`should_convert_module`), ModelOpt 0.47 (`unified_export_hf`), AutoAWQ and AutoGPTQ
         as their checkpoints store it (2026-11)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache

from msgspec.structs import replace

from txcalc.errors import ABSENT, Fault, InputError
from txcalc.ledger import Entry
from txcalc.model import Model
from txcalc.planning.formats.mixtures import stored
from txcalc.planning.formats.modules import BLOCKS, LEFT, TABLES, WHERE, check_packed, listed
from txcalc.planning.formats.schemes import Config, Covers, Rule, Schemes, linear, table_of
from txcalc.planning.formats.weights import EVERY_MATRIX, EXPERTS, FORMATS, LAYERS, Format, Mixed, Numbers

FLOATS = {"mxfp4": (4, 32), "nvfp4": (4, 16), "mxfp8": (8, 32)}  # MLX's modes: bits, and elements that share a scale
WIDTHS = {"fp8": 8, "fbgemm-fp8": 8, "mxfp8": 8, "mxfp4": 4, "bitnet": 2, "eetq": 8}  # bits of methods with one width


def native(model: Model) -> Format:
    """The weights as published. Errors: `InputError` for a config that is not understood or contradicts itself."""
    dtype = model.description.dtype
    if model.checkpoint and model.checkpoint.stored.form == "gguf":
        return stored(model)
    config = model.description.quantization
    return FORMATS[dtype] if config is None else from_config(model, config, FORMATS[dtype].bits)


def published_checkpoint(model: Model, name: str) -> Format | None:
    """The makers' published checkpoint in this format; None if there is none."""
    config = model.description.variants.get(name)
    return None if config is None else from_config(model, config, FORMATS[model.description.dtype].bits)


def cache_published(model: Model) -> str:
    """The dtype of the cache for which a checkpoint has scales; "" if it has none."""
    config = table_of(model.description.quantization)
    inner = table_of(config.get("quantization")) or config
    scheme, algorithm = table_of(inner.get("kv_cache_scheme")), str(inner.get("kv_cache_quant_algo"))
    if scheme.get("num_bits") == 8:
        return "fp8" if scheme.get("type") == "float" else "int8"
    return {"FP8": "fp8", "INT8": "int8", "NVFP4": "fp4"}.get(algorithm.upper(), "")


def from_config(model: Model, config: Config, wide: int = 16) -> Format:
    """A model's matrices as a `quantization_config` stores them. Errors: `InputError`."""
    if (expert_dtype := config.get("expert_dtype")) not in (None, "fp8", "fp4"):
        mend = "--weights fp8 or another format counts one for all"
        raise InputError(WHERE, [Fault("expert_dtype", expert_dtype, "fp8, fp4, or none", mend)])
    reader = _Config(config, wide, model.kind in ("vision", "audio"))
    rules = list(reader.rules())
    if reader.faults:
        raise InputError(WHERE, reader.faults)

    by_number = any(names.numbered or names.exact for names in reader.lists)  # else only the number of digits matters

    def choose(entry: Entry, numbers: Numbers) -> list[Format | None]:
        keys = list(numbers) if by_number else _digits(tuple(numbers))
        forms = {
            key: next((form for covers, form in rules if covers(entry, number)), None)
            for key, number in dict(zip(keys, numbers, strict=True)).items()
        }
        return [forms[key] for key in keys] if len({*forms.values()}) > 1 else [*forms.values()][:1]

    ledger = [entry for entry in model.entries if entry.leaf.untied.params]
    main = next((form for _, form in reversed(rules) if form), None)
    name, source = main.name if main else reader.method, f"quantization_config: {reader.method}"
    mixed = Mixed.of(name, source, ledger, choose, wide)
    if not isinstance(mixed, Mixed) or not mixed.choices:
        raise InputError(WHERE, [f"quantises no layer of {model.name}: its lists exclude every layer"])
    if unknown := [name for modules in reader.lists for name in modules.unknown(ledger)]:
        first = ", ".join(sorted(unknown)[:3])
        raise InputError(WHERE, [f"names unknown modules: {first} (--weights FORMAT counts one format for all)"])
    check_packed(reader.method, mixed, ledger)
    return mixed


@cache
def _digits(numbers: tuple[int | None, ...]) -> list[int | None]:
    """The number of digits of each layer's number."""
    return [number and len(str(number)) for number in numbers]


def _is_routed(entry: Entry, _: int | None) -> bool:
    return entry.kind in EXPERTS


def _pooling(entry: Entry, _: int | None) -> bool:
    """Leaves that pool keys and values."""
    return any(step.duty == "pools" for step in entry.steps)


def _mixing(entry: Entry, _: int | None) -> bool:
    """Leaves that mix residual streams, a pool's position table, and sinks."""
    return entry.kind in ("other", "attention_core") or entry.duty == "pools"


class _Config(Schemes):
    """Reads the rules of one config, and collects its faults."""

    def rules(self) -> Iterator[Rule]:
        reader, mend = READERS.get(self.method), "say --weights FORMAT instead"
        if self.method == "gguf":  # only the file has its types
            mend = "give the .gguf file instead"
        if reader is None:
            expected = "one of " + ", ".join(
                name.replace("-", "_") if name == "fbgemm-fp8" else name for name in READERS
            )
            self.faults.append(Fault("quant_method", self.raw.get("quant_method", ABSENT), expected, mend))
            return
        for key, value in self.raw.items():
            if isinstance(value, Mapping | list) and value and key not in (*LEFT, *TABLES) and self.method != "mlx":
                self.faults.append(Fault(key, f"a {type(value).__name__}", "no table or list that is not read", mend))
        if width := WIDTHS.get(self.method):
            self.number("bits", (width,), width)
        for key in ("load_in_4bit", "load_in_8bit"):  # keys of bitsandbytes
            if self.raw.get(key) is True and self.method != "bitsandbytes":
                self.faults.append(Fault(key, True, f"false or none, since the method is {self.method}", mend))
        yield (self.named(self.unquantised(self.raw)), None)
        yield from reader(self)

    def fp8(self) -> Iterator[Rule]:
        """DeepSeek's code does not quantise some modules, without a key in the config: the weights of an index's heads
        (V3.2); with experts in fp4 (V4-Flash) also parts that mix streams and pool. Scales then have 8 bits."""
        block, fp4_experts = self.raw.get("weight_block_size"), self.raw.get("expert_dtype") == "fp4"
        yield (lambda entry, _: entry.duty == "weighs", None)
        if fp4_experts:
            yield (_mixing, FORMATS["fp32"])
            yield (_pooling, None)
            yield (_is_routed, FORMATS["mxfp4"])
        if micro := self.method == "mxfp8":  # a microscaling format: an exponent for 32 elements of a row
            block = [1, 32] if block is None else block
        static = self.raw.get("activation_scheme") == "static"  # inputs then also have a scale
        if block is None:
            yield (linear, replace(FORMATS["fp8"], tensor=32 + 32 * static))
        elif isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block):
            tile, scale = (block[0], block[1]), 8 if fp4_experts or micro else 32
            yield (linear, replace(FORMATS["fp8-block"], block=tile, scale=scale, tensor=32 * static))
        else:
            self.faults.append(Fault("weight_block_size", block, "two whole numbers, rows and columns"))

    def awq(self) -> Iterator[Rule]:
        for key, old in (("bits", "w_bit"), ("group_size", "q_group_size")):
            if {key, old} <= self.raw.keys() and self.raw[key] != self.raw[old]:
                self.faults.append(Fault(key, self.raw[key], f"{self.raw[old]}, as {old} says"))
        self.one_of("version", ("gemm", "gemv_fast", "marlin", "exllama", "ipex"))
        bits = self.number("bits" if "bits" in self.raw else "w_bit", (4,))
        group = self.group("group_size" if "group_size" in self.raw else "q_group_size")
        yield (linear, self.integers(bits, group, zero=bits))

    def gptq(self) -> Iterator[Rule]:
        """AutoGPTQ's files store the group of every input in 32 bits, even if the order is unchanged."""
        self.one_of("checkpoint_format", ("gptq", "gptq_v2"))
        for covers, form in self.rounded():
            yield (covers, form and replace(form, column=32))

    def rounded(self) -> Iterator[Rule]:
        if (data := str(self.raw.get("data_type") or "int")).startswith(("mx_fp", "nv_fp")):
            yield from self.floats(data)
            return
        bits, group = self.number("bits", (4, 2, 3, 8)), self.group("group_size")
        self.one_of("data_type", ("int", "mx_fp", "nv_fp"))
        for name, table in self.tables("extra_config"):  # AutoRound's modules by name, or by an expression
            width = self.number("bits", (4, 2, 3, 8, 16, 32), bits, table)
            form = None if width >= 16 else self.other(table, bits, group)
            yield (self.named([f"re:{name}" if "\\" in name or "*" in name else name]), form)
        for name, table in self.tables("dynamic"):  # GPTQModel's expressions; "-:" excludes modules
            form = None if name.startswith("-:") else self.other(table, bits, group)
            yield (self.named([f"re:{name.removeprefix('-:').removeprefix('+:')}"]), form)
        form = self.integers(bits, group, zero=bits)
        if self.raw.get("lm_head") is True:
            yield (lambda entry, _: entry.kind == "head", form)
        yield (self.listed(), form)

    def floats(self, data: str) -> Iterator[Rule]:
        """AutoRound's MXFP4, MXFP8 and NVFP4; quantised inputs share a scale."""
        forms = {4: replace(FORMATS["mxfp4"], covers=LAYERS), 8: MXFP8}
        if data.startswith("nv"):
            inputs = self.raw.get("act_bits") or 16
            forms = {4: replace(FORMATS["nvfp4"], tensor=32 + 32 * (type(inputs) is int and inputs < 16))}
        width = self.number("bits", tuple(forms))
        for name, table in self.tables("extra_config"):
            bits = self.number("bits", (*forms, 16, 32), width, table)
            yield (self.named([f"re:{name}" if "\\" in name or "*" in name else name]), forms.get(bits))
        yield (self.listed(), forms[width])

    def other(self, table: Config, bits: int, group: int) -> Format:
        """The format of modules with their own bits or groups."""
        bits = self.number("bits", (4, 2, 3, 8), bits, table)
        whole_rows = table.get("group_size", group) in (0, -1)
        return self.integers(bits, 0 if whole_rows else self.number("group_size", (), group, table), zero=bits)

    def listed(self) -> Covers:
        """The listed modules of the listed blocks; without a list of modules, all linear layers of the blocks."""
        conditions = list[Covers]()
        blocks, modules = next((key for key in BLOCKS if self.raw.get(key)), ""), "modules_in_block_to_quantize"
        for key, value in ((key, self.raw[key]) for key in (blocks, modules) if self.raw.get(key) is not None):
            patterns = listed(value, key)
            conditions.append(self.named(patterns or ()))
            self.faults += [] if patterns else [Fault(key, value, "lists of modules' names")]
        conditions += [linear] if self.raw.get(modules) is None else []
        return lambda entry, number: all(covers(entry, number) for covers in conditions)

    def mlx(self) -> Iterator[Rule]:
        """MLX: every matrix and table except routers, with a scale and a bias of 16 bits for each group; named modules
        have their own formats, or are not quantised."""
        for name, settings in self.raw.items():
            if isinstance(settings, Mapping) or settings is False:
                yield (self.named([name]), self.packed(settings) if settings else None)
        yield (lambda entry, _: entry.kind != "router", self.packed(self.raw))

    def packed(self, table: Config) -> Format:
        mode = str(table.get("mode", "affine"))
        if mode in FLOATS:  # a scale of 8 bits, and no bias
            width, size = FLOATS[mode]
            bits, group = self.number("bits", (width,), width, table), self.number("group_size", (size,), size, table)
            return Format(f"mlx-{mode}", bits, EVERY_MATRIX, WHERE, block=group, scale=8)
        if mode != "affine":
            self.faults.append(Fault("mode", mode, f"one of affine, {', '.join(FLOATS)}"))
        bits = self.number("bits", (4, 2, 3, 5, 6, 8), table=table)
        group = self.number("group_size", (64, 32, 128), table=table)
        return Format(f"mlx-int{bits}-g{group}", bits, EVERY_MATRIX, WHERE, block=group, scale=32)

    def bitsandbytes(self) -> Iterator[Rule]:
        four, eight = (self.raw.get(key, False) for key in ("load_in_4bit", "load_in_8bit"))
        if bool(four) == bool(eight):
            self.faults.append(f"load_in_4bit is {four} and load_in_8bit is {eight}, expected one of them true")
        elif eight:
            yield (linear, FORMATS["int8"])
        else:
            kind = self.raw.get("bnb_4bit_quant_type", "fp4")
            if kind not in ("nf4", "fp4"):
                self.faults.append(Fault("bnb_4bit_quant_type", kind, "'nf4' or 'fp4'"))
            form = replace(FORMATS["nf4"], name=kind)
            if self.raw.get("bnb_4bit_use_double_quant", False):  # scales of 8 bits, 256 of which share one of 32
                form = replace(form, scale=8, pooled=64 * 256)
            yield (linear, form)

    def bitnet(self) -> Iterator[Rule]:
        """Ternary weights, four per byte, and one scale; `online` weights are rounded when they are used."""
        self.one_of("quantization_mode", ("offline",))
        yield (linear, Format("bitnet", 2, LAYERS, WHERE, tensor=self.wide))

    def aqlm(self) -> Iterator[Rule]:
        """Codes of whole bytes for each group of a row, a scale per row, and the codebooks of every matrix in fp16."""
        group, rows = self.number("in_group_size", default=8), self.number("out_group_size", (1,), 1)
        books, bits = self.number("num_codebooks", default=1), self.number("nbits_per_codebook", (16, 8, 12), 16)
        codes, codebooks = books * (8 if bits <= 8 else 16), (16 * books * group * rows) << bits
        yield (linear, Format("aqlm", 0, LAYERS, WHERE, block=group, scale=codes, row=16, tensor=codebooks))

    def higgs(self) -> Iterator[Rule]:
        """Packed by FLUTE, with the tables of its kernel for every matrix."""
        bits, group = self.number("bits", (4, 2, 3), 4), self.number("group_size", (256, 128, 64), 256)
        tables = 16 * (2**bits + 2 * 4**bits)
        yield (linear, Format("higgs", bits, LAYERS, WHERE, block=group, scale=16, tensor=tables))

    def modelopt(self) -> Iterator[Rule]:
        inner = self.table("quantization") or self.raw
        if inner is not self.raw:
            yield (self.named(self.unquantised(inner)), None)
        mixed = inner.get("quantized_layers")
        if isinstance(mixed, Mapping):
            groups: dict[str, tuple[Config, list[str]]] = {}
            for name, settings in mixed.items():
                table = settings if isinstance(settings, Mapping) else {"quant_algo": settings}
                groups.setdefault(repr((table.get("quant_algo"), table.get("group_size"))), (table, []))[1].append(name)
            for table, names in groups.values():
                if form := self.algorithm(table.get("quant_algo"), table):
                    yield (self.named(names), form)
            return
        if "config_groups" in inner and "quant_algo" not in inner:
            yield from self.groups(inner)
        elif form := self.algorithm(inner.get("quant_algo"), inner):
            yield (linear, form)

    def algorithm(self, name: object, table: Config) -> Format | None:
        """The format of a ModelOpt algorithm. AWQ's input scales are not counted: the config does not say which of them
        the exporter folds into other layers."""
        two_scales = 64  # bits: of weights and of inputs
        algorithms = {
            "FP8": replace(FORMATS["fp8"], tensor=two_scales),
            **dict.fromkeys(("NVFP4", "NVFP4_AWQ", "W4A8_NVFP4_FP8"), replace(FORMATS["nvfp4"], tensor=two_scales)),
            "W4A16_NVFP4": FORMATS["nvfp4"],
            **dict.fromkeys(("MXFP4", "W4A8_MXFP4_FP8"), replace(FORMATS["mxfp4"], covers=LAYERS)),
            **dict.fromkeys(("FP8_PB_WO", "FP8_BLOCK_SCALES"), FORMATS["fp8-block"]),
            "FP8_PER_CHANNEL_PER_TOKEN": Format("fp8", 8, LAYERS, WHERE, "fp8", row=32),
            "MXFP8": MXFP8,
            **dict.fromkeys(("INT8_SQ", "W8A8_SQ_PER_CHANNEL", "W8A16"), FORMATS["int8"]),
        }
        if name in ("W4A16_AWQ", "W4A8_AWQ"):
            return self.integers(4, self.number("group_size", (), 128, table))
        if not isinstance(name, str) or name not in algorithms:
            expected = "one of " + ", ".join([*algorithms, "W4A16_AWQ", "MIXED_PRECISION with quantized_layers"])
            self.faults.append(Fault("quant_algo", name, expected))
        return algorithms.get(str(name))

    def quark(self) -> Iterator[Rule]:
        for name, settings in self.table("layer_quant_config").items():
            yield (self.named([name]), self.quarks(f"layer_quant_config.{name}", settings))
        yield (linear, self.quarks("global_quant_config", self.table("global_quant_config")))

    def quarks(self, where: str, table: object) -> Format | None:
        scheme, inputs = (table_of(table_of(table).get(key)) for key in ("weight", "input_tensors"))
        kind, group = scheme.get("dtype"), scheme.get("group_size")
        input_scale_bits = 32 * (inputs.get("is_dynamic") is False)
        if kind in ("fp8_e4m3", "fp8"):
            row = 32 * (scheme.get("qscheme") == "per_channel")
            return replace(FORMATS["fp8"], row=row, tensor=32 - row + input_scale_bits)
        if kind == "fp4" and group == 32:
            return replace(FORMATS["mxfp4"], covers=LAYERS, tensor=input_scale_bits)
        if kind in ("int4", "uint4") and type(group) is int and group > 0:
            return replace(self.integers(4, group, zero=4), tensor=input_scale_bits)
        self.faults.append(Fault(f"{where}.weight", scheme or ABSENT, "fp8, fp4 in groups of 32, or int4"))
        return None


MXFP8 = Format("fp8-g32", 8, LAYERS, "OCP's MXFP8: an 8-bit scale for every 32", "fp8", block=32, scale=8)
READERS: Mapping[str, Callable[[_Config], Iterator[Rule]]] = {
    "fp8": _Config.fp8,
    "fbgemm-fp8": lambda _: iter([(linear, Format("fp8", 8, LAYERS, "fbgemm: an fp32 scale per row", "fp8", row=32))]),
    "mxfp4": lambda _: iter([(_is_routed, FORMATS["mxfp4"])]),
    "awq": _Config.awq,
    "gptq": _Config.gptq,
    "auto-round": _Config.rounded,
    "intel/auto-round": _Config.rounded,
    "mlx": _Config.mlx,
    "chatglm": lambda read: iter([(linear, read.integers(read.number("bits", (8, 4)), 0))]),  # a scale per row
    "bitsandbytes": _Config.bitsandbytes,
    "modelopt": _Config.modelopt,
    "modelopt-fp4": _Config.modelopt,
    "compressed-tensors": lambda read: read.groups(read.raw),
    "quark": _Config.quark,
    "mxfp8": _Config.fp8,
    "bitnet": _Config.bitnet,
    "eetq": lambda _: iter([(linear, Format("int8", 8, LAYERS, "EETQ: an fp16 scale per row", row=16))]),
    "aqlm": _Config.aqlm,
    "higgs": _Config.higgs,
}
