"""The description of a GGUF file's model, from its keys and tensor names; `gguf_families.json` has one line per family.

Biases, gates and norms follow from the names of tensors; windows and operations without weights from the family.
`sources.load` refuses a file whose tensors are not exactly those of the description.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, json

from txcalc.errors import ABSENT, Fault, InputError, UnknownName
from txcalc.parts.options import Raw, Table
from txcalc.sources.spec import Wrong, count, flag, layers, real, size

Shapes = Mapping[str, tuple[int, ...]]


class GgufFamily(Struct, frozen=True, forbid_unknown_fields=True):
    """Properties that the keys of a GGUF file lack. `windows`: the layer kinds of a cycle, if a window is set; `tied`
    None: as stored. `delta`: a cycle of delta-rule layers that ends with attention, which has element-wise gates."""

    model_type: str
    activation: str = "silu"
    norm: Raw = {}
    parallel: bool = False
    positions: str = "rotary"
    windows: tuple[str, ...] = ()
    tied: bool | None = None
    scaled: bool = False  # embeddings are multiplied by √D
    experts: Raw = {}
    delta: bool = False


FAMILIES = json.decode(Path(__file__).with_name("gguf_families.json").read_bytes(), type=dict[str, GgufFamily])

# Keys of an architecture that change no size, or follow from the tensors.
NEUTRAL = (
    "vocab_size", "attention.causal", "attention.scale", "attention.clamp_kqv", "attention.max_alibi_bias",
    "attention.output_scale", "residual_scale", "tensor_data_layout", "expert_weights_scale", "expert_weights_norm",
    "expert_gating_func", "expert_group_count", "expert_group_used_count", "expert_group_scale", "pooling_type",
    "attention.group_norm_epsilon", "attention.temperature_scale", "attention.temperature_length",
    "n_deepstack_layers", "embedding_scale",
)  # fmt: skip


class MetadataKeys:
    """The keys of one architecture; `finish` reports unread keys."""

    def __init__(self, keys: Table, arch: str) -> None:
        self.keys, self.arch = keys, arch
        self.keys_read: set[str] = set()
        self.faults: list[Fault | str] = []

    def get(self, key: str, check: Any, default: object = ABSENT) -> Any:
        """The checked value of a key. A list of equal values is one value; of key/value heads, zeros are dropped."""
        self.keys_read.add(key)
        name = f"{self.arch}.{key}"
        value = self.keys.get(name, ABSENT)
        if isinstance(value, list) and key == "attention.head_count_kv":
            value = [item for item in value if item] or value
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if value is ABSENT and default is not ABSENT:
            return default
        try:
            if isinstance(value, list):
                raise Wrong("the same for all layers", "layers that differ in it are not supported")
            return check(None if value is ABSENT else value)
        except Wrong as wrong:
            self.faults.append(Fault(name, value, wrong.expected, wrong.fix))
            return 1

    def finish(self, where: str) -> None:
        for name, value in self.keys.items():
            key = name.removeprefix(f"{self.arch}.")
            harmless = key in self.keys_read or key in NEUTRAL or key.startswith("rope.")
            if key == name or harmless or value in (0, False, ""):
                continue
            self.faults.append(Fault(name, value, "a key that is understood", "it may change a size"))
        if self.faults:
            raise InputError(where, self.faults)


def describe(keys: Table, shapes: Shapes, where: str) -> tuple[Raw, tuple[str, ...]]:
    """The description and notes. Errors: `InputError` with every fault, `UnknownName`."""
    arch = keys.get("general.architecture")
    if not isinstance(arch, str):
        raise InputError(where, [Fault("general.architecture", arch, "the name of an architecture, such as 'llama'")])
    if arch not in FAMILIES:
        raise UnknownName(where, "supported GGUF architecture", arch, sorted(FAMILIES), ", ".join(FAMILIES))
    k, family = MetadataKeys(keys, arch), FAMILIES[arch]
    table = shapes.get("token_embd.weight", ())
    if len(table) != 2:
        k.faults.append(Fault("token_embd.weight", table or ABSENT, "a tensor with two dimensions"))
    eps = k.get("attention.layer_norm_rms_epsilon", real, None) or k.get("attention.layer_norm_epsilon", real, None)
    raw: Raw = {
        "kind": "decoder",
        "model_type": family.model_type,
        "context": k.get("context_length", size, None),
        "d_model": k.get("embedding_length", size),
        "n_layers": k.get("block_count", layers) - k.get("nextn_predict_layers", count, 0),
        "vocab_size": table[0] if table else 1,
        "norm": {**family.norm, "eps": _single(eps)},
        "embedding": {"norm": "token_embd_norm.weight" in shapes},
        "head": {
            "tied": "output.weight" not in shapes if family.tied is None else family.tied,
            "bias": "output.bias" in shapes,
            "softcap": _single(k.get("final_logit_softcapping", real, None)),
            "scale": _single(k.get("logit_scale", real, None)),
        },
    }
    if family.norm.get("form") == "layer":
        raw["norm"]["bias"] = "output_norm.bias" in shapes
    if family.scaled:
        raw["embedding"]["scale"] = raw["d_model"] ** 0.5
    raw |= _mixer(k, shapes, arch, family, raw)
    k.finish(where)
    return _without_none(raw), ()


def _single(number: object) -> Any:
    """The decimal of a 32-bit float: 1e-05, not 9.999999747378752e-06."""
    return None if number is None else float(f"{number:.7g}")


def _has(shapes: Shapes, *names: str) -> bool:
    """Whether layer 0, 1 or 3 has one of these tensors."""
    return any(f"blk.{i}.{name}" in shapes for name in names for i in (0, 1, 3))


def _mixer(k: MetadataKeys, shapes: Shapes, arch: str, family: GgufFamily, raw: Raw) -> Raw:
    if arch.startswith("mamba"):
        inner, rank = k.get("ssm.inner_size", size), k.get("ssm.time_step_rank", size)
        k.keys_read |= {"feed_forward_length", "attention.head_count"}  # 0, or a placeholder
        common = {"d_state": k.get("ssm.state_size", size), "d_conv": k.get("ssm.conv_kernel", size)}
        if arch == "mamba":
            norms = bool(k.get("ssm.dt_b_c_rms", flag, False))
            return {
                "mamba": {"d_inner": inner, "dt_rank": rank, "norms": norms, **common},
                "positions": {"form": "none"},
            }
        common |= {"n_heads": rank, "d_head": inner // rank, "n_groups": k.get("ssm.group_count", size, 1)}
        if inner % rank:
            k.faults.append(Fault(f"{arch}.ssm.time_step_rank", rank, f"a divisor of ssm.inner_size = {inner}"))
        return {"mamba2": common, "positions": {"form": "none"}}
    latent = k.get("attention.kv_lora_rank", count, 0)
    attention = _latent(k, latent) if latent else _attention(k, shapes, raw)
    width = attention["d_rope"] if latent else attention["d_head"]
    positions: Raw = {"form": family.positions}
    if family.positions == "rotary":
        positions["theta"] = _single(k.get("rope.freq_base", real, 10000.0))
        dims = k.get("rope.dimension_count", size, width)
        positions |= {"rotary_dims": dims} if dims != width else {}
    elif family.positions == "learned":
        positions["rows"] = shapes.get("position_embd.weight", (1,))[0]
    if family.parallel and k.get("use_parallel_residual", flag, True):
        separate = _has(shapes, "attn_norm_2.weight", "ffn_norm.weight")
        raw["norm"]["parallel"] = "separate" if separate else "shared"
    parts: Raw = {"latent" if latent else "attention": attention, "positions": positions}
    parts |= _channels(k, shapes, family)
    return parts | _delta(k, parts) if family.delta else _windows(k, family, parts)


def _delta(k: MetadataKeys, parts: Raw) -> Raw:
    """Layers with a gated delta rule, and attention in the last of each cycle."""
    heads, inner = k.get("ssm.time_step_rank", size), k.get("ssm.inner_size", size)
    if inner % heads:
        k.faults.append(Fault(f"{k.arch}.ssm.time_step_rank", heads, f"a divisor of ssm.inner_size = {inner}"))
    keys, width, taps = (k.get(f"ssm.{key}", size) for key in ("group_count", "state_size", "conv_kernel"))
    delta = {"n_heads": heads, "n_key_heads": keys, "d_key": width, "d_value": inner // heads, "d_conv": taps}
    cycle, channels = k.get("full_attention_interval", size, 4), "experts" if "experts" in parts else "feed_forward"
    kinds = {name: {"parts": [name, channels]} for name in ("delta", "attention")}
    attention = {**parts["attention"], "gate": "element"}
    return {"attention": attention, "delta": delta, "pattern": [f"{cycle - 1}*delta", "attention"], "layer": kinds}


def _attention(k: MetadataKeys, shapes: Shapes, raw: Raw) -> Raw:
    heads = k.get("attention.head_count", size)
    groups = k.get("attention.head_count_kv", size, heads)
    width = k.get("attention.key_length", size, None)
    if width is None:
        width = max(1, raw["d_model"] // heads)
        if raw["d_model"] % heads:
            k.faults.append(Fault(f"{k.arch}.attention.head_count", heads, "a divisor of embedding_length"))
    values = k.get("attention.value_length", size, width)
    if values != width:
        k.faults.append(Fault(f"{k.arch}.attention.value_length", values, f"key_length = {width}"))
    fused = "qkv" if _has(shapes, "attn_qkv.bias") else ""
    letters = [letter for letter in "qkv" if letter in fused or _has(shapes, f"attn_{letter}.bias")]
    norm = next((shapes[name] for i in (0, 3) if (name := f"blk.{i}.attn_q_norm.weight") in shapes), None)
    return {
        "n_heads": heads,
        "n_kv_heads": groups,
        "d_head": width,
        "bias": letters + ["o"] * _has(shapes, "attn_output.bias"),
        "sinks": _has(shapes, "attn_sinks.weight"),
        "qk_norm": "none" if norm is None else "head" if norm == (width,) else "width",
        "softcap": _single(k.get("attn_logit_softcapping", real, None)),
    }


def _latent(k: MetadataKeys, rank: int) -> Raw:
    """MLA. Newer files have the widths of the absorbed heads, and the model's widths in keys ending in _mla."""
    rope = k.get("rope.dimension_count", size)
    k.keys_read.add("attention.head_count_kv")
    keys, values = k.get("attention.key_length", size), k.get("attention.value_length", size)
    keys, values = k.get("attention.key_length_mla", size, keys), k.get("attention.value_length_mla", size, values)
    return {
        "n_heads": k.get("attention.head_count", size),
        "q_rank": k.get("attention.q_lora_rank", count, 0) or None,
        "kv_rank": rank,
        "d_nope": keys - rope,
        "d_rope": rope,
        "d_v": values,
    }


def _channels(k: MetadataKeys, shapes: Shapes, family: GgufFamily) -> Raw:
    """The tables of a feed-forward, of experts, or both."""
    experts = k.get("expert_count", count, 0)
    dense = k.get("leading_dense_block_count", count, 0) if experts else 0
    width = k.get("feed_forward_length", count if experts else size, 0 if experts else ABSENT)
    gated = family.activation in ("silu", "clamped_silu") or _has(shapes, "ffn_gate.weight")
    common = {"gated": gated, "activation": family.activation}
    single: Raw = {"feed_forward": {**common, "d_ff": width, "bias": _has(shapes, "ffn_up.bias")}}
    if not experts:
        return single
    expert_width = k.get("expert_feed_forward_length", size, width)
    shared = k.get("expert_shared_feed_forward_length", count, 0)
    mixture: Raw = {
        **common,
        **family.experts,
        "n_experts": experts,
        "top_k": k.get("expert_used_count", size),
        "d_ff": expert_width,
        "bias": _has(shapes, "ffn_up_exps.bias"),
        "router_bias": _has(shapes, "ffn_gate_inp.bias"),
        "n_shared": k.get("expert_shared_count", count, 0) or int(shared > 0),
    }
    mixture |= {"d_ff_shared": shared} if shared else {}
    if not dense:
        return {"experts": mixture}
    kinds = {"dense": {"parts": ["attention", "feed_forward"]}, "sparse": {"parts": ["attention", "experts"]}}
    sparse = k.get("block_count", layers) - k.get("nextn_predict_layers", count, 0) - dense
    return {**single, "experts": mixture, "pattern": [f"{dense}*dense", f"{max(1, sparse)}*sparse"], "layer": kinds}


def _windows(k: MetadataKeys, family: GgufFamily, parts: Raw) -> Raw:
    window = k.get("attention.sliding_window", count, 0)
    if not window:
        return parts
    cycle = _cycle(k, family)
    if not cycle or "layer" in parts:
        k.faults.append(Fault(f"{k.arch}.attention.sliding_window", window, "none", "its layers are not known"))
        return parts
    if cycle == ("local",):
        return {**parts, "attention": {**parts["attention"], "window": window}}
    kinds: Raw = {"local": {"attention": {"window": window}}, "global": {}}
    return {**parts, "pattern": list(cycle), "layer": kinds}


def _cycle(k: MetadataKeys, family: GgufFamily) -> tuple[str, ...]:
    """The layer kinds of a cycle with windows: from the file, as a period or a list, or from the family."""
    key = "attention.sliding_window_pattern"
    k.keys_read.add(key)
    value = k.keys.get(f"{k.arch}.{key}")
    if isinstance(value, list) and all(type(local) is bool for local in value):
        kinds = tuple("local" if local else "global" for local in value)
        return ("local",) if all(value) else kinds if any(value) else ()
    if type(value) is int and value > 1:
        return (f"{value - 1}*local", "global")
    if value is not None:
        k.faults.append(Fault(f"{k.arch}.{key}", value, "a number above 1, or true and false for the layers"))
    return family.windows


def _without_none(raw: Raw) -> Raw:
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in raw.items()
        if value is not None
    }
