"""What is known of engines by name and version, from `presets/engines.toml`: their rules, latencies and formats."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

from txcalc.errors import Fault, InputError, UnknownName
from txcalc.hardware import GENERATIONS, Accelerator
from txcalc.model import Model
from txcalc.planning.formats.weights import GGML, Format, Mixed, plain


class EngineRules(NamedTuple):
    """What an engine does in every version of it.

    share             default share of the memory that CUDA reports which the engine leaves free; a version may differ
                      (`left_alone`). CUDA graphs are captured there after the cache is sized, unless a version counts
                      them (`graphs_within`)
    fixed             activations and graphs have a fixed size
    batch_logits      it stores the logits of a whole batch in fp32, and profiles no step
    keeps_rope_cache  it keeps the cosines and sines of every position
    pads_mxfp4        it pads MXFP4 experts to the sizes that its kernels take
    divides           it loads no rows that end within a group, and no shards that end within a tile (vllm-project/vllm
                      issues 17569 and 21695; sgl-project/sglang issues 3345 and 26107)
    offloads          the host computes what its RAM holds: the token table, layers, experts
    attention_dp      copies of the attention that share experts have one GPU each (enable_attention_dp)
    stages            it splits a model over GPUs by layers, linked or not
    shared_kernels    one kernel template reads all types of as many bits (ggml-cuda/mmvq.cu)
    wide_states       it keeps recurrent states in fp32
    windows           tokens that it pages for layers with windows: the `window`; `all`; or the window and a `chunk` in
                      models that also have other layers, and all in models that do not
    groups            its cache has groups of equally many layers with one window, the last one padded
    streams           shared experts run concurrently with the routed ones in decode, on a second stream
    """

    title: str
    share: Fraction = Fraction(0)
    fixed: bool = False
    batch_logits: bool = False
    keeps_rope_cache: bool = False
    pads_mxfp4: bool = False
    divides: bool = False
    offloads: bool = False
    attention_dp: bool = False
    stages: bool = False
    shared_kernels: bool = False
    wide_states: bool = False
    windows: str = "window"
    groups: bool = False
    streams: bool = True


ENGINES = {
    "vllm": EngineRules(
        "vLLM", share=Fraction(1, 10), keeps_rope_cache=True, pads_mxfp4=True, divides=True, groups=True
    ),
    "sglang": EngineRules(
        "SGLang",
        fixed=True,
        divides=True,
        wide_states=True,
        windows="all",  # or 80 %: disable_hybrid_swa_memory, swa_full_tokens_ratio
    ),
    "trtllm": EngineRules("TensorRT-LLM", attention_dp=True),
    "llama.cpp": EngineRules(
        "llama.cpp",
        batch_logits=True,
        offloads=True,
        stages=True,
        shared_kernels=True,
        streams=False,
        wide_states=True,
        windows="chunk",
    ),
}


class EngineProfile(NamedTuple):
    """An engine's version and its numbers."""

    engine: str
    version: str
    source: str
    numbers: Mapping[str, Any]
    user_version: str = ""  # as requested, perhaps later than `version`; "": the newest
    default: bool = False  # no engine was named

    @property
    def newest(self) -> str:
        """A text if the requested version is later than the newest known one, else ""."""
        newest = _order(self.version)
        later = self.user_version and _order(self.user_version)[: len(newest)] > newest
        return f"the newest version known: {self.user_version} is later" if later else ""

    @property
    def rules(self) -> EngineRules:
        return ENGINES[self.engine]

    @property
    def kernels(self) -> str:
        """The engine whose kernels' measured curves apply from this version on; "": the common curves."""
        listed = any("kernels" in row for row in data()[self.engine.replace(".", "")])
        return str(self.numbers.get("kernels", "")) if listed else self.engine

    def of_card(self, key: str, large: bool) -> int:
        """A number that may differ on large cards."""
        return int(self.numbers.get(f"{key}_large" if large else key, self.numbers.get(key, 0)))

    def __str__(self) -> str:
        return f"{self.rules.title} {self.version}"

    @property
    def label(self) -> str:
        """Its name in texts: "llama.cpp b4000+" where no version was requested."""
        return f"{self}{'' if self.user_version else '+'}"


@cache
def data() -> Mapping[str, Any]:
    """The whole of `presets/engines.toml`."""
    from txcalc.sources.presets import folder, read

    return read(folder() / "engines.toml")[0]


class EngineLatency(NamedTuple):
    """An engine's part of latencies, in seconds.

    own_s       of TTFT, and `steps` decode steps where others decode
    step_s      of a decode step, and `sequence_s` of it for each sequence: scheduling, sampling, handing tokens on
    together    share of a closed loop's rounds in which all its prompts come, and are computed, before any answer
    """

    own_s: float
    steps: float
    step_s: float
    sequence_s: float
    together: float
    source: str


def latency(name: str) -> EngineLatency:
    """The latency constants of an engine; if they are not known, vLLM's."""
    latencies = data()["latency"]
    return EngineLatency(**latencies.get(name, latencies["vllm"]))


def names() -> list[str]:
    """Every engine, and each of its versions that is known."""
    versions = (f"{name}@{row['version']}" for name in ENGINES for row in data()[name.replace(".", "")])
    return [*ENGINES, "none", *versions]


def profile(text: str) -> EngineProfile | None:
    """Parses `vllm`, `vllm@0.8` or `none`: the newest known version up to the given one.

    Errors: `UnknownName` with the nearest; `InputError` for a version before the first.
    """
    name, at, version = text.strip().lower().partition("@")
    name = {"llamacpp": "llama.cpp", "tensorrt-llm": "trtllm"}.get(name, name)
    if name == "none" and not at:
        return None
    if name not in ENGINES:
        raise UnknownName("--engine", "engine", text, [*ENGINES, "none"], f"one of {', '.join(ENGINES)}, none")
    rows = data()[name.replace(".", "")]
    reached = [row for row in rows if _is_reached(row["version"], version)]
    if (at and not version) or not reached:
        versions = ", ".join(row["version"] for row in rows)
        raise InputError(
            "--engine", [f"{text!r} names no version that is known: from {rows[0]['version']} ({versions})"]
        )
    numbers: dict[str, Any] = {}
    for row in reached:
        numbers = {key: value for key, value in numbers.items() if key not in row.get("without", ())} | row
    return EngineProfile(name, numbers["version"], numbers["source"], numbers, version)


def offloading(text: str) -> str:
    """The engine that keeps layers in RAM: llama.cpp where none is named. Errors: `InputError` for another one."""
    if text == "none":
        return "llama.cpp"
    if (engine := profile(text)) and not engine.rules.offloads:
        expected = "llama.cpp: the others compute all that they serve on the GPU"
        raise InputError("--ram", [Fault("--engine", text, expected)])
    return text


def is_gguf(form: Format) -> bool:
    """Whether only a .gguf file holds a format."""
    return any(map(_own_type, _format_names(form)))


def is_mlx(form: Format) -> bool:
    """Whether only mlx-lm runs a format."""
    return any(name.startswith("mlx-") for name in _format_names(form))


def _format_names(form: Format) -> list[str]:
    """The names of a mixed format's formats, or of a single format."""
    stored = (item for row in form.table.values() for item in row.values()) if isinstance(form, Mixed) else (form,)
    return sorted({item.name for item in stored if item})


def _own_type(name: str) -> bool:
    """Whether only llama.cpp has this type."""
    return name in GGML and name not in ("mxfp4", "nvfp4")


def personal_engine() -> EngineProfile:
    """The default engine of personal machines."""
    engine = profile(data()["personal"]["engine"])
    assert engine is not None
    return engine._replace(default=True)


def is_personal(accelerator: Accelerator) -> bool:
    """Whether a card is one of personal machines."""
    return accelerator.unified or any(words in accelerator.title for words in data()["personal"]["titles"])


def is_served(accelerator: Accelerator) -> bool:
    """Whether a serving engine (not llama.cpp) runs on a card."""
    return any(_runs(name, "", accelerator) for name in ENGINES if name != data()["personal"]["engine"])


def engines_for(model: Model, table: str = "unsupported") -> list[str]:
    """Engines that run models of this kind and type or, with the table "unserved", have a known command for them."""
    names = {model.kind, model.description.model_type}
    return [name for name in ENGINES if names.isdisjoint(data()[table].get(name, ()))]


def unsupported_fault(
    chosen: EngineProfile, model: Model, form: Format, accelerator: Accelerator | None, kv: str = "bf16"
) -> Fault | None:
    """The fault if an engine does not run a model, or its version has no kernels for a format of weights or cache on
    a card; it names engines that do. None: no fault."""
    on, subject, engines = f" on {accelerator.title}" if accelerator else "", "", engines_for(model)
    if chosen.engine not in engines:
        subject = f"{model.name} ({model.kind})"
    elif not _runs(chosen.engine, "", accelerator):
        subject, engines = on.strip(), [name for name in ENGINES if _runs(name, "", accelerator)]
    title = chosen.rules.title
    if subject:
        fix = ", ".join(ENGINES[name].title for name in engines) or "none does: --engine none plans without one"
        if chosen.default:  # the format chose it
            return Fault("--weights", form.name, f"a format of an engine that runs {subject}; {title} does not", fix)
        return Fault("--engine", title, f"an engine that runs {subject}", fix)
    title = f"{title} {chosen.user_version}".strip()
    for stored in _format_names(form):
        kind = "gguf" if _own_type(stored) else stored.partition("-g")[0]  # groups are of any size
        kind = "mlx" if kind.startswith("mlx-") else kind
        if lacking := _lacking(chosen, kind, accelerator, "weights"):
            name = form.name if form.name.lower() == stored else f"{form.name}, with {stored}"
            return Fault("--weights", name, f"a format that {title} has{on} ({lacking})")
    if lacking := _lacking(chosen, plain(kv), accelerator, "kv"):
        return Fault("--kv", kv, f"a format of {title}'s cache{on} ({lacking})")
    return None


def _lacking(chosen: EngineProfile, kind: str, accelerator: Accelerator | None, of: str) -> str:
    """If a version does not support a format: which engines do, or which formats it supports; "": it does."""
    if _runs(chosen.engine, kind, accelerator, of, chosen.user_version):
        return ""
    first = _first(chosen.engine, kind, accelerator, of)
    options = [f"{chosen.rules.title} from {first} on"] if first else []
    engines = options + [
        ENGINES[name].title for name in ENGINES if name != chosen.engine and _runs(name, kind, accelerator, of)
    ]
    if engines:
        return f"{', '.join(engines)} {'has' if len(engines) == 1 else 'have'} it"
    formats = data()["formats"]
    if kind in formats["elsewhere"]:
        return f"{formats['elsewhere'][kind]}; --engine none counts the model alone"
    wide, supported = formats["wide"], formats[chosen.engine][of]
    options = [*wide, *(name for name in supported if _runs(chosen.engine, name, accelerator, of, chosen.user_version))]
    choices = ", ".join(options).replace("gguf", "Q4_K_M (any GGUF)")
    return f"no engine has it; {chosen.rules.title} has {choices}"


def _runs(name: str, kind: str, accelerator: Accelerator | None, of: str = "weights", version: str = "") -> bool:
    """Whether an engine's version (default: the newest) supports a format on a card; "": any format."""
    first = _first(name, kind, accelerator, of)
    return first is not None and _is_reached(first, version)


def _is_reached(first: str, version: str) -> bool:
    """Whether a version ("": the newest; 0.6: the last 0.6) is the first or a later one."""
    prefix = _order(version) if version else ()
    return _order(first)[: len(prefix)] <= prefix


def _first(name: str, kind: str, accelerator: Accelerator | None, of: str) -> str | None:
    """The first version of an engine that has a format on a card; None: none has. A card that is in no generation
    counts as newer than all of them, unless the table has a version for its vendor."""
    table = data()["formats"][name]
    by_version = {"": ""} if kind in ("", *data()["formats"]["wide"]) else table[of].get(kind, {})
    vendor = accelerator.vendor if accelerator else ""
    if vendor and (
        vendor not in table["vendors"] or f"{'kv-' * (of == 'kv')}{kind}" in table.get("lacks", {}).get(vendor, ())
    ):
        return None
    if vendor in by_version:
        return str(by_version[vendor])
    age = GENERATIONS.index(accelerator.generation) if accelerator and accelerator.generation else len(GENERATIONS)
    least = table.get("least", GENERATIONS[0])
    versions = [
        version
        for since, version in by_version.items()
        if since in ("", *GENERATIONS) and age >= max(map(GENERATIONS.index, (since or least, least)))
    ]
    return min(versions, key=_order, default=None)


def _order(version: str) -> tuple[int, ...]:
    return tuple(int("0" + "".join(filter(str.isdecimal, part))) for part in version.split(".")[:3])
