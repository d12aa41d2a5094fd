"""Measures any config.json that transformers supports: its model on the meta device, counted module by module.

A fallback for types without a reader, and an independent witness for others. No weights are created, nothing is
downloaded, and code that a config names (`auto_map`) never runs. FLOPs are those of transformers' own code, traced for
every batch and length if possible, and always measured at the requested sizes.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from txcalc.errors import ABSENT, Fault, InputError, MissingExtra, Refuted, quote
from txcalc.notation import Expression
from txcalc.sources.spec import MAX_LAYERS
from txcalc.verification import flops
from txcalc.verification.config_keys import check_keys
from txcalc.verification.inputs import ModelInput, blank, inputs_of
from txcalc.verification.parameters import sizes_by_module
from txcalc.verification.symbolic import T_SRC, B, Symbols, T, without_logs

# Keys that change no size, but choose kernels that would be downloaded, or a loader that needs weights.
LEFT_OUT = ("model_type", "auto_map", "quantization_config", "compression_config", "torchscript", "use_kernels")

DECIDED = "what it computes depends on data"
MAX_RANDOM_WEIGHTS = 5 * 10**8  # weights created on the CPU: 2 GB


class TransformersModule(NamedTuple):
    """A module: its class, and its own parameters and FLOPs (without its children's).

    `flops` are those at the requested sizes, `formula` those for every size; None if they could not be traced.
    """

    path: str
    kind: str
    params: int
    flops: int | None
    formula: Expression


class MeasuredCache(NamedTuple):
    """Elements in the cache of one sequence after a forward pass, and those that the next token adds."""

    elements: int
    next_token: int


class TransformersCost(NamedTuple):
    """What transformers' model costs.

    library    transformers' version
    cls        the class that was built
    params     unique parameters; of a multimodal model, those of its language model
    total_params  parameters of the whole class if it has more than the language model; else None
    parts      every module with its own parameters or FLOPs, by path
    sizes      batch, tokens, source (None without a separate encoder)
    flops      FLOPs of a forward pass at these sizes; None if they could not be measured (`why`)
    formula    the same in B, T and T_src, valid for `domain`; None if a size decides what is computed (`points`)
    uncounted  operators without a FLOP count, with their number of calls
    cache      None if the model has none, or it could not be measured (`cache_why`)
    assumptions  defaults of the configuration class that the file does not set
    """

    library: str
    cls: str
    params: int
    total_params: int | None
    parts: list[TransformersModule]
    sizes: tuple[int, int, int | None]
    flops: int | None
    why: str
    formula: Expression
    domain: str
    points: str
    uncounted: Counter[str]
    cache: MeasuredCache | None = None
    cache_why: str = ""
    assumptions: Sequence[str] = ()


def measure(
    data: Any, where: str, batch: int = 1, tokens: int = 1, source: int | None = None, *, formulas: bool = True
) -> TransformersCost:
    """The cost of the model of a parsed config.json; without `formulas`, at these sizes alone (half the time).

    Errors: `InputError` if transformers cannot build it, or would fill in sizes that the file must give;
    `MissingExtra`."""
    transformers = _transformers()
    with _quiet(), _offline():
        config, cls = _choose_class(transformers, data, where)
        checked = check_keys(config, data)
        if checked.faults:
            raise InputError(where, checked.faults)
        net = _build(config, cls, where)
        inputs = inputs_of(net, batch, tokens, source)
        traced = _trace(net, inputs) if formulas else _Traced(None, why="not requested")
        counter, why = _measure_point(net, inputs)
        cache, cache_why = _measure_cache(net, batch, tokens, source)
    cost = _summarize(transformers.__version__, net, inputs, traced, counter, why)
    return cost._replace(cache=cache, cache_why=cache_why, assumptions=checked.assumptions)


def instantiate(data: object, where: str) -> nn.Module:
    """transformers' own model of a parsed config.json, on meta, to compare with. Errors: as `measure`'s."""
    transformers = _transformers("--against transformers")
    with _quiet(), _offline():
        return _build(*_choose_class(transformers, data, where), where)


def forward_flops(
    net: Any, batch: int, tokens: int, source: int | None, random_weights: bool = False
) -> tuple[dict[str, int] | None, str]:
    """FLOPs of a transformers model's forward pass by innermost module; or None, and the reason. If data decides what
    is computed, `random_weights` measures with random weights and ids on the CPU."""
    with _quiet(), _offline():
        inputs = inputs_of(net, batch, tokens, source)
        counter, why = _measure_point(net, inputs)
        if (
            random_weights
            and why == DECIDED
            and [spec.name for spec in inputs if isinstance(spec, ModelInput)] == ["input_ids"]
        ):
            counter, why = _measure_with_random_weights(net, inputs)
    if counter is None:
        return None, why
    if missed := sorted(set().union(*counter.uncounted.values())):
        return None, f"there is no FLOP count for {', '.join(missed)}"
    return counter.by_module, ""


class _Traced(NamedTuple):
    """FLOPs by module as formulas, with their domain; or the reason why there are none."""

    flops: dict[str, Any] | None
    domain: str = ""
    why: str = ""


def _transformers(option: str = "--via transformers") -> Any:
    try:
        import transformers
    except ModuleNotFoundError:
        raise MissingExtra(option, "transformers", "transformers") from None
    return transformers


@contextmanager
def _offline() -> Iterator[None]:
    """Prevents every download that a config asks for, such as backbone weights or kernels."""
    from transformers.utils import hub

    constants: Any = vars(hub)["constants"]
    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@contextmanager
def _quiet() -> Iterator[None]:
    """Discards the libraries' logs and warnings."""
    with without_logs(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _choose_class(transformers: Any, data: object, where: str) -> tuple[Any, Any]:
    """transformers' configuration, and the class in `architectures`, else the one with a language model's head."""
    if not isinstance(data, Mapping) or not isinstance(data.get("model_type"), str):
        got = data.get("model_type", ABSENT) if isinstance(data, Mapping) else data
        raise InputError(where, [Fault("model_type", got, "the name of an architecture, such as 'llama'")])
    model_type = data["model_type"]
    if model_type not in transformers.CONFIG_MAPPING:
        fix = "auto_map names code, which txcalc never runs" if "auto_map" in data else ""
        expected = f"one that transformers {transformers.__version__} knows"
        raise InputError(where, [Fault("model_type", model_type, expected, fix)])
    fields = {key: value for key, value in data.items() if key not in LEFT_OUT and "implementation" not in key}
    try:
        config = transformers.CONFIG_MAPPING[model_type].from_dict(fields)
        text_configs = [config.get_text_config(decoder=decoder) for decoder in (True, False)]
    except Exception as error:
        raise InputError(where, [f"transformers makes no configuration of it: {_one_line(error)}"]) from None
    for layers in (getattr(text_config, "num_hidden_layers", 0) for text_config in text_configs):
        if isinstance(layers, int) and layers > MAX_LAYERS:
            raise InputError(where, [Fault("num_hidden_layers", layers, f"at most {MAX_LAYERS:,}")])
    names = data.get("architectures")
    name = names[0] if isinstance(names, list) and names else names
    model_class = getattr(transformers, name, None) if isinstance(name, str) else None
    cls = (model_class if _made_for(model_class, config) else None) if names else _automatic(transformers, config)
    if cls is None:
        expected = f"a class that transformers {transformers.__version__} has for {quote(model_type)}"
        raise InputError(where, [Fault("architectures[0]", name if names else ABSENT, expected)])
    return config, cls


def _made_for(cls: object, config: object) -> bool:
    made_for = getattr(cls, "config_class", None)
    return isinstance(made_for, type) and isinstance(config, made_for)


def _automatic(transformers: object, config: Any) -> Any:
    """The class for a config without `architectures`: with a language model's head, else an image classifier for
    image-only models, else without a head. Prefers a class for this configuration; never takes one for its text
    part."""
    from transformers.models.auto import modeling_auto as auto

    groups = ["SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ"]
    tasks = groups if getattr(config, "is_encoder_decoder", False) else []
    tasks = tasks if getattr(config, "is_decoder", False) else [*tasks, "MASKED_LM"]
    text = type(config.get_text_config(decoder=True))
    tasks = [*tasks, "CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", *groups]
    tasks += ["IMAGE_CLASSIFICATION"] if isinstance(config, text) else []
    tables = [getattr(auto, f"MODEL_FOR_{task}_MAPPING_NAMES") for task in tasks] + [auto.MODEL_MAPPING_NAMES]
    class_names = [names[config.model_type] for names in tables if config.model_type in names]
    classes = [getattr(transformers, name if isinstance(name, str) else name[0], None) for name in class_names]
    suitable = [cls for cls in classes if isinstance(config, text) or getattr(cls, "config_class", None) is not text]
    return next((cls for cls in suitable if _made_for(cls, config)), next(iter(suitable), None))


def _build(config: object, cls: Any, where: str) -> nn.Module:
    """The model on meta, with attention and experts as plain matrix products if its class allows it."""
    reason = ""
    for attention in ("eager", "sdpa"):
        try:
            with torch.device("meta"):
                instance = cls._from_config(config, attn_implementation=attention)
            net: nn.Module = instance.to("meta").eval()  # torch.FloatTensor ignores the meta device
            break
        except Exception as error:  # classes raise any type
            reason = reason or _one_line(error)
    else:
        raise InputError(where, [f"transformers makes no {cls.__name__} of it: {reason}"])
    return countable(net)


def countable(net: nn.Module) -> nn.Module:
    """The same model with experts as k batched products per token, so that FLOPs do not depend on data."""
    for module in net.modules():
        config: Any = getattr(module, "config", None)
        if config is not None:
            config._experts_implementation = "batched_mm"
    return net


def _forward(net: Any, tensors: Mapping[str, Tensor]) -> None:
    options = {"use_cache": False} if "use_cache" in inspect.signature(net.forward).parameters else {}
    with torch.no_grad():
        net(**tensors, **options)


def _fake(inputs: tuple[ModelInput, ...]) -> tuple[FakeTensorMode, dict[str, Tensor]]:
    """A mode in which nothing is computed, and its inputs by name."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True, static_shapes=True)
    return mode, {spec.name: mode.from_tensor(blank(spec, spec.shape)) for spec in inputs}


# Sizes of the trace: distinct primes, so that no two symbols have the same hint.
TRACED = {B: 3, T: 5, T_SRC: 7}


def _trace(net: nn.Module, inputs: tuple[ModelInput, ...] | str) -> _Traced:
    """Formulas for every batch and length; or the reason if a size or the data decides what is computed."""
    if isinstance(inputs, str):
        return _Traced(None, why=inputs)
    try:
        sizes = tuple(spec.sizes() for spec in inputs)
        lengths = (zip(varying, spec.shape, strict=True) for spec, varying in zip(inputs, sizes, strict=True))
        shapes = (tuple(TRACED[x.letter] * x.factor if x else n for x, n in pairs) for pairs in lengths)
        symbols = Symbols(tuple(map(blank, inputs, shapes)), sizes)
        tensors = {spec.name: tensor for spec, tensor in zip(inputs, symbols.inputs, strict=True)}
        with symbols.mode:
            counter = flops.count(net, partial(_forward, net, tensors))
        domain = symbols.domain()
        return _Traced({path: symbols.read(value) for path, value in counter.by_module.items()}, domain)
    except Refuted as refusal:
        return _Traced(None, why=str(refusal).partition(": ")[2])
    except Exception as error:  # some PyTorch operators reject symbols
        return _Traced(None, why=_one_line(error))


def _measure_point(net: nn.Module, inputs: tuple[ModelInput, ...] | str) -> tuple[flops.Count | None, str]:
    """FLOPs at the requested sizes, or the reason why there are none."""
    if isinstance(inputs, str):
        return None, inputs
    try:
        mode, tensors = _fake(inputs)
        with mode:
            counter = flops.count(net, partial(_forward, net, tensors))
            for number in counter.by_module.values():
                int(number)  # raises where it depends on data
            return counter, ""
    except Exception as error:
        if "data-dependent" in str(error) or type(error).__name__ == "GuardOnDataDependentSymNode":
            return None, DECIDED
        return None, _one_line(error)


def _measure_cache(net: Any, batch: int, tokens: int, source: int | None) -> tuple[MeasuredCache | None, str]:
    """The cache after a forward pass of these sizes; None if the model has none, or with the reason why it could not be
    measured."""
    if "use_cache" not in inspect.signature(net.forward).parameters:
        return None, ""
    source = tokens if source is None and getattr(net.config, "is_encoder_decoder", False) else source
    try:
        elements, longer = (_cache_elements(net, inputs_of(net, batch, n, source)) for n in (tokens, tokens + 1))
    except Exception as error:  # model code raises any type
        return None, _one_line(error)
    return (MeasuredCache(elements // batch, (longer - elements) // batch) if elements else None), ""


def _cache_elements(net: Any, inputs: tuple[ModelInput, ...] | str) -> int:
    """Elements that a forward pass leaves in the cache of all sequences."""
    if isinstance(inputs, str):
        raise ValueError(inputs)
    mode, tensors = _fake(inputs)
    with mode, torch.no_grad():
        output = net(**tensors, use_cache=True)
    return _elements(getattr(output, "past_key_values", getattr(output, "cache_params", None)))


def _elements(cache: object) -> int:
    """Elements of the floating-point states in a cache, its layers or lists."""
    if isinstance(cache, Tensor):
        return cache.numel() if cache.is_floating_point() else 0
    if isinstance(cache, Mapping):
        return sum(map(_elements, cache.values()))
    if isinstance(cache, list | tuple):
        return sum(map(_elements, cache))
    if type(cache).__module__.startswith("transformers."):
        return _elements({key: value for key, value in vars(cache).items() if key != "config"})
    return 0


def _measure_with_random_weights(net: Any, text: Iterable[Any]) -> tuple[flops.Count | None, str]:
    """FLOPs of the same model with random weights on the CPU, or the reason why there are none."""
    if sum(weight.numel() for weight in net.parameters()) > MAX_RANDOM_WEIGHTS:
        return None, f"{DECIDED}, and it has more than {MAX_RANDOM_WEIGHTS:,} weights"
    try:
        copy = type(net)._from_config(net.config, attn_implementation=net.config._attn_implementation)
        ids = {spec.name: torch.randint(net.config.vocab_size, spec.shape) for spec in text}
        return flops.count(copy, partial(_forward, countable(copy.eval()), ids)), ""
    except Exception as error:  # its code may reject the ids
        return None, _one_line(error)


def _summarize(
    library: str, net: Any, inputs: tuple[ModelInput, ...] | str, traced: _Traced, counter: flops.Count | None, why: str
) -> TransformersCost:
    """Parameters and FLOPs by module; those of a multimodal model's towers separately."""
    params, by_module = sizes_by_module(net), counter.by_module if counter else None
    parts = [
        TransformersModule(
            path,
            type(module).__name__,
            params[path],
            None if by_module is None else int(by_module.get(path, 0)),
            None if traced.flops is None else traced.flops.get(path, 0),
        )
        for path, module in net.named_modules()
        if params[path] or (by_module or {}).get(path, 0) or (traced.flops or {}).get(path, 0)
    ]
    total, language = sum(params.values()), language_params(net)
    specs = () if isinstance(inputs, str) else inputs
    varying = [pair for spec in specs for pair in zip(spec.sizes(), spec.shape, strict=True)]
    sizes = {size.letter: length // size.factor for size, length in varying if size}
    return TransformersCost(
        library,
        type(net).__name__,
        total if language is None else language,
        None if language is None else total,
        parts,
        (sizes.get(B, 1), sizes.get(T, 1), sizes.get(T_SRC)),
        None if by_module is None else sum(map(int, by_module.values())),
        why,
        None if traced.flops is None else sum(traced.flops.values()),
        traced.domain,
        traced.why,
        sum(counter.uncounted.values(), Counter[str]()) if counter else Counter(),
    )


def language_params(net: Any) -> int | None:
    """Parameters of the decoder and the head of a multimodal model; None for other models."""
    encoder = getattr(net.config, "encoder", None)
    encoder_has_towers = "text_config" in (getattr(encoder, "sub_configs", None) or {})  # T5Gemma 2
    if hasattr(net, "audio_encoder") and hasattr(net, "decoder"):  # it generates audio codes
        return sum(int(weight.numel()) for weight in net.decoder.parameters())
    if not encoder_has_towers and "text_config" not in (getattr(net.config, "sub_configs", None) or {}):
        return None
    text_encoder = net.get_encoder().text_model if encoder_has_towers else None
    parts = net.get_decoder(), net.get_output_embeddings(), text_encoder
    weights = {id(weight): weight for part in parts if part is not None for weight in part.parameters()}
    return sum(int(weight.numel()) for weight in weights.values())


def _one_line(error: BaseException) -> str:
    """An error's message in one line, without the leading location in PyTorch's sources."""
    text = " ".join((str(error) or type(error).__name__).split())
    text = re.sub(r'^(\d+ INTERNAL ASSERT FAILED at )?"?\S+\.(cpp|h)"?:\d+[:,] ', "", text)
    return text if len(text) < 120 else text[:119] + "…"
