"""The reference models are the real architectures: tiny random ones of transformers, copied weight by weight, give the
same logits. `data/transformers` has a file for each, `data/transformers.toml` the rules that several share."""

from __future__ import annotations

import re
import tomllib
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from paths import DATA

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'txcalc[verify]'")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    hf = pytest.importorskip("transformers", reason="transformers is not installed: pip install 'txcalc[test]'")

from tiny import TINY  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from txcalc import reference  # noqa: E402
from txcalc.errors import InputError  # noqa: E402
from txcalc.planning.formats.quantised import from_config  # noqa: E402
from txcalc.planning.formats.weights import Mixed  # noqa: E402
from txcalc.sources import build as described  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # what transformers warns of is its own
]

Copied = Mapping[str, Tensor]
CLOSE = {"atol": 1e-4, "rtol": 1e-4}
B, T = 2, 11


class Case(NamedTuple):
    """transformers' class and config, our description, and where each of its weights goes.

    A rule's pattern matches a whole name; it gives our name (with the pattern's groups), or a list: of a name of `CUTS`
    and our names of what it makes of the tensor, or of a function of the groups and the tensor. Rows of one of ours
    that are apart in theirs are `name#1`, `name#2`, …. Only buffers that `buffers` and `fixed` match are copied.
    """

    name: str
    model: str
    config: str
    settings: Mapping[str, Any]
    raw: Mapping[str, Any]
    rules: Mapping[str, str | Sequence[str]]
    buffers: str
    fixed: str
    generates: bool


def case_of(path: Path) -> Case:
    content = tomllib.loads(path.read_text("utf-8"))
    settings = content["settings"]
    for dotted in content.get("null", ()):
        *outer, key = dotted.split(".")
        reduce(lambda table, step: table[step], outer, settings)[key] = None
    return Case(
        path.stem,
        content["model"],
        content["config"],
        settings,
        content["described"] if "described" in content else TINY[content["ours"]],
        shared(content.get("like", ())) | content.get("rules", {}),
        content.get("buffers", "no buffer is copied"),
        content.get("fixed", "no buffer is copied as it is"),
        content.get("generates", False),
    )


def shared(names: Sequence[str]) -> dict[str, Any]:
    """The rules of these names, one after another."""
    rules: dict[str, Any] = {}
    for name in names:
        rules |= shared(SHARED[name].get("like", ())) | {k: v for k, v in SHARED[name].items() if k != "like"}
    return rules


SHARED = tomllib.loads((DATA / "transformers.toml").read_text("utf-8"))
CASES = [case_of(path) for path in sorted((DATA / "transformers").glob("*.toml"))]
BY_NAME = {case.name: case for case in CASES}
# What becomes of a tensor, before our names of the pieces.
CUTS: dict[str, Callable[[Tensor, int], Sequence[Tensor]]] = {
    "transposed": lambda t, n: [t.T],  # GPT-2's Conv1D keeps its matrices (in, out)
    "transposed_chunks": lambda t, n: t.T.chunk(n),
    "chunks": lambda t, n: t.chunk(n),  # several, one under the other
    "one_group": lambda t, n: t.split((32, 8, 8)),  # four query heads, and one of keys and of values
    "flat": lambda t, n: [t.flatten()],  # a vector that is kept with axes of one
    "first": lambda t, n: [t[0]],
    "squeezed": lambda t, n: [t.squeeze(-1)],  # a convolution of one tap
    "joined": lambda t, n: [t.flatten(0, 1)],  # heads apart
    "groups": lambda t, n: [t.mT.flatten(0, 1)],  # groups apart, each (in, out)
    "rolled": lambda t, n: [torch.cat((t[2:], t[:2]))],  # two rows before the first position
    "after_padding": lambda t, n: [t[2:]],  # they are left out: for padding, and for what comes before it
    "linear_qkv": lambda t, n: [t.unflatten(0, (4, 3, -1)).transpose(0, 1).flatten(0, 2)],
}


def experts(name: str, tensor: Tensor) -> Copied:
    """A matrix of every expert."""
    return {name.format(e): expert for e, expert in enumerate(tensor)}


def qkv_by_head(layer: str, suffix: str, tensor: Tensor) -> Copied:
    """q, k and v interleaved head by head (BLOOM, GPT-NeoX), four heads."""
    rows = tensor.unflatten(0, (4, 3, -1))
    return {f"layers.{layer}.attention.{name}.{suffix}": rows[:, i].flatten(0, 1) for i, name in enumerate("qkv")}


def thirds_by_head(layer: str, tensor: Tensor) -> Copied:
    """The same without biases, head by head q over k over v (DeBERTa)."""
    return qkv_by_head(layer, "weight", tensor)


def expert_pairs(layer: str, tensor: Tensor) -> Copied:
    """gate and up of every expert, one under the other."""
    at = f"layers.{layer}.experts.routed"
    return {
        f"{at}.{e}.{name}.weight": half
        for e, expert in enumerate(tensor)
        for name, half in zip(("gate", "up"), expert.chunk(2), strict=True)
    }


def oss_pairs(layer: str, suffix: str, tensor: Tensor) -> Copied:
    """gpt-oss: (in, out) matrices, gate and up in alternating columns."""
    at, kind = f"layers.{layer}.experts.routed", suffix.lstrip("_") or "weight"
    return {
        f"{at}.{e}.{name}.{kind}": expert[..., i::2].T
        for e, expert in enumerate(tensor)
        for i, name in enumerate(("gate", "up"))
    }


def oss_downs(layer: str, suffix: str, tensor: Tensor) -> Copied:
    at, kind = f"layers.{layer}.experts.routed", suffix.lstrip("_") or "weight"
    return {f"{at}.{e}.down.{kind}": expert.T for e, expert in enumerate(tensor)}


def delta_projections(layer: str, tensor: Tensor) -> Copied:
    """q, k, v and z of two key heads of 8 and four value heads of 6, interleaved key head by key head."""
    q, k, v, z = tensor.unflatten(0, (2, -1)).split((8, 8, 12, 12), 1)
    mixed = torch.cat([side.flatten(0, 1) for side in (q, k, v)])
    at = f"layers.{layer}.delta"
    return {f"{at}.in_proj.weight": mixed, f"{at}.gate_proj.weight": z.flatten(0, 1)}


def delta_gates(layer: str, tensor: Tensor) -> Copied:
    beta, decay = (side.flatten(0, 1) for side in tensor.unflatten(0, (2, -1)).chunk(2, 1))
    return {f"layers.{layer}.delta.beta_proj.weight": beta, f"layers.{layer}.delta.decay_proj.weight": decay}


def queries_and_gates(layer: str, tensor: Tensor) -> Copied:
    """A query and its gates, head by head."""
    q, gates = (side.flatten(0, 1) for side in tensor.unflatten(0, (4, -1)).chunk(2, 1))
    return {f"layers.{layer}.attention.q.weight": q, f"layers.{layer}.attention.g.weight": gates}


def stacked_rows(layer: str, letter: str, tensor: Tensor) -> Copied:
    """q, k and v of a delta rule, one under the other."""
    return {f"layers.{layer}.delta.in_proj.weight#{'qkv'.index(letter)}": tensor}


def channels_and_gates(layer: str, tensor: Tensor) -> Copied:
    """A channel and its gate in turn."""
    rows = tensor.unflatten(0, (-1, 2))
    return {f"layers.{layer}.mamba.in_proj.weight": rows.transpose(0, 1).flatten(0, 1)}


USES = (0, 1, 3)  # the layers that read a shared block, in the order of their adapters


def adapters(layer: str, name: str, use: str, step: str, tensor: Tensor) -> Copied:
    """A layer's own, kept with the block that it shares."""
    ours = {"linear_q": "q", "linear_k": "k", "linear_v": "v", "gate_up_proj": "gate_up"}[name]
    return {f"layers.{USES[int(use)]}.shared.{ours}_{('down', 'up')[int(step)]}.weight": tensor}


FUNCTIONS: dict[str, Callable[..., Copied]] = {
    cls.__name__: cls
    for cls in (
        qkv_by_head,
        thirds_by_head,
        expert_pairs,
        oss_pairs,
        oss_downs,
        delta_projections,
        delta_gates,
        queries_and_gates,
        stacked_rows,
        channels_and_gates,
        adapters,
    )
}


def mapped(rule: str | Sequence[str], match: re.Match[str], tensor: Tensor) -> Copied:
    """Our names of a tensor's pieces, with the pieces."""
    if isinstance(rule, str):
        return {match.expand(rule): tensor}
    how, *names = rule
    if how in FUNCTIONS:
        return FUNCTIONS[how](*match.groups(), tensor=tensor)
    names = [match.expand(name) for name in names]
    if how == "experts":
        return experts(names[0], tensor)
    return dict(zip(names, CUTS[how](tensor, len(names)), strict=True))


def theirs_of(case: Case) -> nn.Module:
    """transformers' model, every weight that learns moved: norms of ones and biases of zeros would hide a wrong map."""
    config = getattr(hf, case.config)(**case.settings, attn_implementation="eager")
    model = getattr(hf, case.model)(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:  # sinusoids are what they are
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
        for name, buffer in model.named_buffers():
            if re.fullmatch(case.buffers, name):
                buffer.add_(torch.randn(buffer.shape, generator=generator), alpha=0.1)
    return model.eval()


@torch.no_grad()
def copy(case: Case, theirs: nn.Module, ours: nn.Module) -> None:
    """Copies every weight of `theirs` by the case's rules; each of ours must be given exactly once."""
    uncopied = dict(ours.named_parameters()) | {k: v for k, v in ours.named_buffers() if v.is_floating_point()}
    copied, pieces = f"{case.buffers}|{case.fixed}", dict[str, dict[str, Tensor]]()
    tensors = [*theirs.named_parameters(), *((k, v) for k, v in theirs.named_buffers() if re.fullmatch(copied, k))]
    for name, tensor in tensors:
        # a later rule is the more particular one
        rule, match = [(r, m) for p, r in case.rules.items() if (m := re.fullmatch(p, name))][-1]
        for path, value in mapped(rule, match, tensor).items():
            path, piece, number = path.partition("#")
            if piece:
                pieces.setdefault(path, {})[number] = value
            else:
                uncopied.pop(path).copy_(value)
    for path, rows in pieces.items():
        uncopied.pop(path).copy_(torch.cat([rows[number] for number in sorted(rows)]))
    assert not uncopied, f"nothing was copied to {sorted(uncopied)}"


def pair(case: Case) -> tuple[nn.Module, nn.Module, tuple[Tensor, ...]]:
    """transformers' model, ours with its weights, and inputs for ours."""
    torch.manual_seed(0)
    theirs = theirs_of(case)
    model = described(case.raw, case.name)
    ours = reference.build(model)
    copy(case, theirs, ours)
    return theirs, ours, reference.inputs(model, B, T, 10 if model.has_encoder_apart else None)


def their_logits(case: Case, theirs: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    if case.name in ("t5", "umt5"):
        return theirs(decoder_input_ids=inputs[0], input_ids=inputs[1]).logits
    if case.name == "whisper":
        return theirs(decoder_input_ids=inputs[0], input_features=inputs[1]).logits
    if case.name in ("bert2bert", "vit2trocr"):
        source = {"input_ids" if case.name == "bert2bert" else "pixel_values": inputs[1]}
        return theirs(decoder_input_ids=inputs[0], **source).logits, theirs.encoder(inputs[1]).pooler_output  # type: ignore[operator]
    options = {  # for they take some ids for padding
        "mpnet": {"position_ids": torch.arange(2, T + 2).expand(B, T)},
        "xlm": {"lengths": torch.full((B,), T), "langs": torch.zeros_like(inputs[0])},
    }
    out = theirs(inputs[0], **options.get(case.name, {}))
    if case.name in ("layoutlm", "big-bird"):  # their pooler always runs
        return out.logits, theirs.base_model(inputs[0]).pooler_output  # type: ignore[operator]
    return (out.last_hidden_state, out.pooler_output) if case.name == "bert-pooler" else out.logits


@pytest.mark.drawn(1000)
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
@torch.no_grad()
def test_the_same_logits_as_transformers(case: Case) -> None:
    theirs, ours, inputs = pair(case)
    expected = their_logits(case, theirs, inputs)
    torch.testing.assert_close(ours(*inputs), expected, **CLOSE)
    with reference.mode(explicit=True):
        torch.testing.assert_close(ours(*inputs), expected, **CLOSE)


@pytest.mark.drawn(1000)
@pytest.mark.parametrize("name", [case.name for case in CASES if case.generates])
@torch.no_grad()
def test_prefill_and_decode_with_a_cache_equal_the_whole(name: str) -> None:
    theirs, ours, inputs = pair(BY_NAME[name])
    expected = their_logits(BY_NAME[name], theirs, inputs)
    for absorbed in (False, True) if "latent" in BY_NAME[name].raw else (False,):
        cache, pieces, start = reference.CacheTensors(), [], 0
        for tokens in (5, 1, 2, 1, 1, 1):
            piece = inputs[0][:, start : start + tokens]
            source = inputs[1:] if start == 0 else ()
            with reference.mode(absorbed=absorbed):
                pieces.append(ours(piece, *source, cache=cache))
            start += tokens
        assert start == T == cache.past
        torch.testing.assert_close(torch.cat(pieces, 1), expected, **CLOSE)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_module_that_a_quantiser_leaves_wide_is_found_by_its_own_name(case: Case) -> None:
    """Each linear layer of transformers alone in a list: the matrices that its weight is copied to stay wide, and no
    others (but what gates a query, of which Qwen's models keep the rows in `q_proj`), or the list is refused. Neither
    ALBERT nor XLM call their layers so."""
    model, theirs = described(case.raw, case.name), theirs_of(case)

    def narrow(*names: str) -> set[tuple[str, int]]:
        form = from_config(model, {"quant_method": "fp8", "modules_to_not_convert": list(names)})
        assert isinstance(form, Mixed)
        return {(path, number or 0) for path, row in form.table.items() for number, kind in row.items() if kind}

    every = narrow()
    for name, module in theirs.named_modules():
        matches = [(r, m) for p, r in case.rules.items() if (m := re.fullmatch(p, f"{name}.weight"))]
        if not (isinstance(module, nn.Linear) and matches and (at := re.search(r"\.(\d+)\.", name))):
            continue
        with torch.no_grad():
            copied = {path.rpartition(".weight")[0] for path in mapped(*matches[-1], module.weight)}
        matrices = every & {(re.sub(r"\.\d+", "", path), int(at[1])) for path in copied}
        try:
            wide = every - narrow(name)
            gates = {(path, number) for path, number in wide if path.endswith("attention.g")} if matrices else set()
            assert wide == matrices | gates or case.name in ("albert", "xlm"), name
        except InputError as error:
            assert "unknown modules" in str(error) or "not known here" in str(error)


def test_a_weight_that_is_not_mapped_is_noticed() -> None:
    case = BY_NAME["llama"]
    theirs, ours = theirs_of(case), reference.build(described(case.raw, "tiny"))
    rules = {**case.rules, r"model\.norm\.weight": "layers.0.attention_norm.weight"}
    with pytest.raises(KeyError):
        copy(case._replace(rules=rules), theirs, ours)
