"""Options: the arguments of a question's function, each declared once, as the annotation of its parameter.

`context: Annotated[Lengths | None, CONTEXT.with_help("Several: 4k,32k.")] = None` is a keyword of the library with its
type and default, and `--context` of the command line with its help, placeholder, group and completion. `txcalc.cli`
makes its commands from these annotations, `help(txcalc.kv)` its list of arguments.

A class of options (`Options`) is one typed argument of the library; on the command line each field is an option.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from inspect import Parameter, signature
from sys import modules
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    ForwardRef,
    Literal,
    NamedTuple,
    TypeVar,
    dataclass_transform,
    get_args,
)

from msgspec import Struct

from txcalc.units import parse_count, parse_tokens

if TYPE_CHECKING:
    from txcalc.sources import Source

Function = TypeVar("Function", bound=Callable[..., Any])
GROUPS = ("Model", "Workload", "Engine", "Device", "Traffic", "Money", "Output")  # sections of a help, in this order


class Option(NamedTuple):
    """An option of the command line, and the keyword of the library that it is.

    help       the first sentences of its help
    value      placeholder of its value
    group      section of the help
    flag       its name, if not `--` and the keyword
    completes  names a function of `cli.completion`
    aliases    earlier names that are still accepted: flags, and keywords without their dashes
    parse      reads its text: `parse_tokens` (32k = 32,768) or `parse_count` (8B)
    repeats    whether it may be given several times
    """

    help: str = ""
    value: str | None = None
    group: str = "Output"
    flag: str = ""
    completes: str = ""
    aliases: tuple[str, ...] = ()
    parse: Callable[..., int] | None = None
    repeats: bool = False

    def with_help(self, help: str = "", **changes: Any) -> Option:
        """This option with a further sentence, for one command; and with changed fields."""
        return self._replace(help=f"{self.help} {help}".strip(), **changes)


def tokens(help: str) -> Option:
    """An option whose value is a number of tokens or sequences: 2048, 32k."""
    return Option(help, "N", parse=parse_tokens)


class Argument(NamedTuple):
    """A positional argument of the command line: help, placeholder, completion; `optional`: any number, also none."""

    help: str
    value: str | None = None
    completes: str = ""
    optional: bool = False


@dataclass_transform(frozen_default=True, kw_only_default=True)  # for type checkers alone
class Options(Struct, frozen=True, kw_only=True):
    """Options that belong together: one argument of the library, each field an option of the command line.

    The library also takes a field as a keyword: `deploy(…, rate="5/s")` is `deploy(…, load=Load(rate="5/s"))`. A
    function with such arguments ends with `**options: Any`, for type checkers alone. `section`: the section of the help
    for options that do not name one.
    """

    section: ClassVar[str] = "Output"


class Question(Struct, frozen=True):
    """A decorator that makes a function of the library a command.

    example     a command line
    takes       options that change a model while it is read: `--set`, `--lora`, `--ignore`
    draws       whether its answer has a plot
    formats     whether its answer is a report: a table, JSON, CSV …
    first       the usual flags; the help lists the others below them
    examples    further uses, each with its command line
    """

    example: str
    takes: tuple[str, ...] = ()
    draws: bool = False
    formats: bool = True
    first: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()

    def __call__(self, function: Function) -> Function:
        vars(function)["question"] = self
        return function


SOURCE_HELP = (
    'A preset ("txcalc presets" lists them), a file (.toml, config.json, .safetensors, .gguf) or its folder, '
    'hf:org/name, or a description such as "D=512 h=8 F=1376 L=1 gated" (also h_kv, d_h, V, E, k, window, learned; '
    "words: gated|plain, rms|ln, pre|post, bias|nobias, tied|untied, final|nofinal)."
)
SourceArgument = Annotated["Source", Argument(SOURCE_HELP, "SOURCE", "source")]
SourcesArgument = Annotated["Source | Sequence[Source]", Argument(SOURCE_HELP, "SOURCE…", "source")]
OptionalSources = Annotated["Source", Argument(SOURCE_HELP, "SOURCE…", "source", optional=True)]

Length = int | str  # 2048 or "2k"
Lengths = int | str | Sequence[int | str]
Names = str | Sequence[str]
Attention = Literal["dense", "masked"]
Logits = Literal["all", "last"]
Mla = Literal["expanded", "absorbed"]

# Options that several commands share; each has the same meaning in all of them.
SET = Option("Change keys of the description: h_kv=32 or norm.place=post,F=12k.", "K=V,…", "Model", "--set", "key")
LORA = Option(
    "LoRA adapters on frozen weights: r=16,targets=q+v (targets=all: every linear layer).", "K=V,…", "Model", "--lora"
)
IGNORE = Option("Ignore a key of config.json (text_config.width).", "KEY", "Model", "--ignore")
WEIGHTS = Option(
    "Format of the weights: native (as published), bf16, fp8, int4, Q4_K_M …", "FORMAT", "Model", completes="weights"
)
VIA = Option("If txcalc cannot read a config: build its module with transformers and measure it.", None, "Model")
DTYPE = Option("Dtype of weights and activations: bf16, fp32, fp8, int4 …", "TYPE", "Model", completes="dtype")
KV = Option(
    "Dtype of the KV cache: bf16, fp8, int8, q8_0 …", "TYPE", "Model", completes="cache",
    aliases=("--kv-dtype", "--kv-dtypes"),
)  # fmt: skip
PARAMS = Option("Parameters: 8B.", "N", "Model")
TEXT_ONLY = Option("Leave out the vision and audio towers of a multimodal model.", None, "Model")
MEMORY = Option("A memory size: 16GB (10^9) or 16GiB.", "SIZE", "Model")
EVERY_PRESET = Option("Every preset.", None, "Model", "--all")

BATCH = Option("Number of sequences.", "N", "Workload", aliases=("--batches",), parse=parse_tokens)
TOKENS = Option("New tokens per sequence (32k = 32,768).", "N", "Workload", parse=parse_tokens)
PAST = Option("Tokens already in the cache; above 0 is a decode step.", "N", "Workload", parse=parse_tokens)
SOURCE_TOKENS = Option(
    "Encoder positions of an encoder–decoder.", "N", "Workload",
    aliases=("--source", "--source-length"), parse=parse_tokens,
)  # fmt: skip
CONTEXT = Option(
    "Context length: cached and new tokens per sequence.", "N", "Workload", aliases=("--contexts",), parse=parse_tokens
)
CONTEXTS = CONTEXT._replace(value="N,…", aliases=("--contexts", "--tokens"), parse=None)  # several
GLOBAL_BATCH = Option(
    "Sequences per step over all ranks (default: about 1 M tokens per step, with --lora at most 64 sequences).",
    "N",
    "Workload",
    parse=parse_tokens,
)
ATTENTION = Option("FLOPs of all query-key pairs, or only those that the mask lets through.", None, "Workload")
LOGITS = Option("Logits for every position, or only the last.", None, "Workload")
MLA = Option("How MLA is computed.", None, "Workload")
AGAINST = Option("Compare with", None, "Workload")
TRAIN_TOKENS = Option("Training tokens: 15T.", "N", "Workload", parse=parse_count)
COMPUTE = Option("Training FLOPs: 3.8e25.", "N", "Workload", parse=parse_count, aliases=("--flops",))

GPU = Option(
    "An accelerator, and how many: h100-sxm:8 (txcalc presets --hardware), a cloud instance (p5.48xlarge), "
    "16GB@500GB/s@60TFLOPS, or a .toml file.",
    "NAME[:N]", "Engine", completes="accelerator",
)  # fmt: skip
PRICE = Option("Price per GPU-hour.", "X", "Money")
LAYOUT = Option("Parallel layout: tp=8,pp=16,dp=64.", "AXIS=N,…", "Engine")
ENGINE = Option(
    "Count the engine's own memory: vllm, vllm@0.8 (a version), sglang, trtllm, llama.cpp, none.", "NAME[@V]",
    "Engine", completes="engine",
)  # fmt: skip
DETAIL = Option("Print every table and definition.")
NODE = Option("GPUs per node (default: the vendor's standard server).", "N", "Engine")
LINK = Option(
    "Bandwidth per GPU within a node, one way: 32GB/s (default: the vendor's server, or PCIe).", "RATE", "Engine"
)
NETWORK = Option("Bandwidth per GPU between nodes, one way: 50GB/s (default: the vendor's server).", "RATE", "Engine")
RAM = Option(
    "llama.cpp: host RAM for what does not fit on the GPUs, with its bandwidth: 64GB@80GB/s.", "SIZE[@RATE[@PEAK]]",
    "Engine",
)  # fmt: skip
GPU_LAYERS = Option(
    "llama.cpp: layers on the GPUs, the head counted as one.", "N", "Engine", aliases=("-ngl", "--n-gpu-layers")
)
N_CPU_MOE = Option("llama.cpp: keep the experts of the first N layers in RAM.", "N|all", "Engine", aliases=("-ncmoe",))
PCIE = Option("Bandwidth from RAM to a GPU: 25GB/s.", "RATE", "Engine")
BLOCK = Option("Tokens per page of the KV cache.", "N", "Engine", parse=parse_tokens)
CHUNK = Option("Maximum prompt tokens per step (chunked prefill).", "N", "Engine", parse=parse_tokens)
RESERVE = Option("Memory kept free for engine and driver: a share or a size.", "10%|4GiB", "Engine")
RECOMPUTE = Option("Activation recomputation: none, core, blocks, every:N, layers:0,2.", "WHAT", "Engine")
OPTIMIZER = Option(
    "adamw, adamw-bf16, adamw-8bit, sgd, lion, muon, adafactor …", "NAME", "Engine", completes="optimizer"
)
WORKERS = Option("Worker processes", "N", "Engine")
RECIPE = Option("Further settings:", "K=V,…", "Engine")
DEVICE = Option("Device: meta (no computation), cpu or cuda.", "NAME", "Device")

CONCURRENCY = Option("Concurrent sequences (users).", "N", "Traffic", aliases=("--users",), parse=parse_tokens)
PROMPT = Option("Tokens per prompt.", "N", "Traffic", parse=parse_tokens)

CONVENTIONS = Option(
    "FLOPs by published conventions: palm, megatron-lm, 6n … Repeatable, or separated by commas.",
    "NAME", "Output", "--as", "convention", repeats=True,
)  # fmt: skip
FORMAT = Option("Output format.", None, "Output", "--format")
ROWS = Option("Only rows whose name contains one of these words: parameters,cache.", "NAME,…", "Output", "--rows")
DIGITS = Option("Significant digits of large numbers and ratios in tables.", "N", "Output", "--digits")
JSON = Option("Same as --format json: exact integers, a stable schema.", None, "Output", "--json")
PLOT = Option(
    "Also plot: FILE.svg, .png, .pdf or .pgf, or - for the terminal (pip install 'txcalc[plot]').", "FILE|-", "Output",
    "--plot",
)  # fmt: skip
PANEL = Option("Plot only the panel whose title contains this text, without a headline.", "NAME", "Output", "--panel")
SIZE = Option("Size of the plot in inches: 8, 3.3x2.5, or column (3.33, for papers).", "SIZE", "Output", "--size")
FONT = Option("Font size of the plot in points.", "N", "Output", "--font")
FORCE = Option("Overwrite an existing file.", None, "Output", "--force")
OUT = Option("Write", "FILE", "Output", "--out", aliases=("--output", "-o"))


class Keyword(NamedTuple):
    """A keyword of a function that is an option of its command; `group`: the argument that is its class of options."""

    name: str
    option: Option | Argument
    hint: Any  # its type
    default: Any  # `Parameter.empty` where it has to be given
    group: str = ""
    positional: bool = False  # may be given without its name


@cache
def keywords(function: Callable[..., Any]) -> tuple[Keyword, ...]:
    """The declared parameters of a function; of a class of options, its fields."""
    result: list[Keyword] = []
    for name, parameter in signature(function).parameters.items():
        hint, option = declared(function.__annotations__.get(name, Any), function.__module__)
        if group := options_class(hint):
            result += [
                keyword._replace(default=getattr(parameter.default, keyword.name), group=name)
                for keyword in fields(group)
            ]
        elif option is not None:
            positional = parameter.kind is not Parameter.KEYWORD_ONLY
            result.append(Keyword(name, option, hint, parameter.default, positional=positional))
    return tuple(result)


def options_class(hint: object) -> type[Options] | None:
    """The class of options of an argument, also in a union: `Engine | str`."""
    kinds = (kind for kind in (hint, *get_args(hint)) if isinstance(kind, type))
    return next((kind for kind in kinds if issubclass(kind, Options)), None)


@cache
def fields(group: type[Options]) -> tuple[Keyword, ...]:
    """The fields of a class of options."""
    result = []
    defaults = dict(zip(group.__struct_fields__, group.__struct_defaults__, strict=True))
    for name, annotation in group.__annotations__.items():
        hint, option = declared(annotation, group.__module__)
        if isinstance(option, Option) and option.group == "Output":
            option = option._replace(group=group.section)
        if option is not None:
            result.append(Keyword(name, option, hint, defaults[name]))
    return tuple(result)


def declared(annotation: Any, module: str) -> tuple[Any, Option | Argument | None]:
    """The type and the option of an annotation; Any if only type checkers can resolve it."""
    try:
        hint = eval(annotation, vars(modules[module])) if isinstance(annotation, str) else annotation
    except NameError:
        return Any, None
    metadata = getattr(hint, "__metadata__", ())
    option = next((item for item in metadata if isinstance(item, Option | Argument)), None)
    hint = hint.__origin__ if metadata else hint
    return (Any if isinstance(hint, ForwardRef) else hint), option
