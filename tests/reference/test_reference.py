"""The reference models by themselves: their paths, their forms, what they remember, and that they learn and write."""

# PyTorch types an attribute of a module as Tensor | Module: what a net holds is not known to mypy.
# mypy: disable-error-code="union-attr, index, operator, arg-type, no-untyped-call"
from __future__ import annotations

import json
import math
from itertools import product
from typing import Any

import pytest

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'txcalc[verify]'")

from paths import GOLDEN  # noqa: E402
from tiny import TINY, V, tiny  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import txcalc  # noqa: E402
from txcalc import reference  # noqa: E402
from txcalc.model import Model  # noqa: E402
from txcalc.parts.convolution import Filter  # noqa: E402
from txcalc.parts.linear import Linear  # noqa: E402
from txcalc.parts.norm import Norm  # noqa: E402
from txcalc.parts.part import Workload  # noqa: E402
from txcalc.parts.spans import Causal, CentredWindow, Chunks, Window  # noqa: E402
from txcalc.reference.linear import RootMeanSquare, Xielu  # noqa: E402
from txcalc.reference.mixers.pieces import MODULES, MatrixProduct  # noqa: E402
from txcalc.reference.recurrent import scan  # noqa: E402
from txcalc.reference.run import TensorOptions  # noqa: E402
from txcalc.sources import presets  # noqa: E402
from txcalc.verification.verdict import module_paths  # noqa: E402

CLOSE = {"atol": 2e-5, "rtol": 2e-5}
DECODERS = [name for name in TINY if TINY[name].get("kind", "decoder") in ("decoder", "encoder-decoder", "audio")]
DECODERS.remove("vectors")
VISION = [name for name in TINY if TINY[name].get("kind") == "vision"]
B, T = 2, 11
MEANS = GOLDEN / "outputs.json"


def tiny_net(name: str, seed: int = 0) -> tuple[Model, Any, tuple[Tensor, ...]]:
    """A tiny model, its module, and inputs; its weights are moved, so that norms and biases do something."""
    torch.manual_seed(seed)
    model = tiny(name)
    net = reference.build(model)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model, net, reference.inputs(model, B, T, 10 if model.has_encoder_apart else None)


def logits(output: Any) -> Tensor:
    """What a whole model says, without what its encoder's pooler makes."""
    return output[0] if isinstance(output, tuple) else output


def test_listed_leaves_compute_what_torch_computes() -> None:
    """The oracles look at shapes alone."""
    torch.manual_seed(0)
    x, like = torch.randn(2, 11, 6, dtype=torch.float64), TensorOptions(torch.device("cpu"), torch.float64)
    part = Filter(c_in=6, c_out=4, taps=3, groups=2, stride=2, bias=True)
    make, shapes = MODULES[Filter]
    net: Any = make(part, like)
    with torch.no_grad():
        for parameter in net.parameters():
            nn.init.normal_(parameter)
        expected = nn.functional.conv1d(x.mT, net.weight, net.bias, stride=2, groups=2).mT
        assert shapes(part, 2, 5, 0) == [x.shape] and torch.allclose(net(x, 5), expected)
        make, shapes = MODULES[Norm]
        net, small = make(norm := Norm(width=6, form="rms", bias=False, eps=None), like), x[:, :, None] / 500
        nn.init.ones_(net.weight)
        assert shapes(norm, 2, 11, 0) == [small.shape]
        assert torch.allclose(net(small), nn.functional.rms_norm(small, (6,), eps=1e-5))
    make, shapes = MODULES[Linear]
    assert make(linear := Linear(d_in=6, d_out=4, bias=True), like).weight.shape == (4, 6)
    assert shapes(linear, 2, 11, 0) == [x.shape]
    product = MatrixProduct()(x.expand(3, 2, 11, 6), x.mT.expand(3, 2, 6, 11))
    assert torch.allclose(product, (x @ x.mT).expand(3, 2, 11, 11))


# --- what there is ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", presets.names())
def test_every_weight_of_a_preset_by_path_and_shape(name: str) -> None:
    model = reference.truncate(txcalc.load(name), 4)
    net = reference.build(model, device="meta")
    shapes = {
        f"{path}.{weight.name}": weight.shape
        for entry in model.ledger()
        for path in module_paths(entry, experts=True)
        for weight in entry.leaf.weights()
    }
    assert {path: tuple(weight.shape) for path, weight in net.named_parameters()} == shapes
    modules = dict(net.named_modules())
    # A layer's own scalar (Gemma-4) is a buffer of its block, which no profiler counts.
    unmoduled = [entry for entry in model.ledger() if entry.path not in modules]
    assert [entry.path for entry in unmoduled if entry.flops or not entry.path.endswith(".scale")] == []


def test_layers_are_cut_in_both_stacks_and_keep_their_pattern() -> None:
    whole = txcalc.load("gemma-3-27b")
    assert [layer.attention.core.window for layer in reference.build(whole, layers=7, device="meta").layers] == [
        1024, 1024, 1024, 1024, 1024, None, 1024,
    ]  # fmt: skip
    net = reference.build(txcalc.load("t5-small"), layers=2, device="meta")
    assert (len(net.encoder.layers), len(net.decoder.layers)) == (2, 2)
    assert reference.truncate(whole, 100).params == whole.params


def test_tied_weights_are_one_parameter_and_shared_layers_one_module() -> None:
    gpt2 = reference.build(tiny("gpt2"))
    assert gpt2.head.projection.weight is gpt2.embedding.tokens.weight
    t5 = reference.build(tiny("t5"))
    tables = {t5.decoder.head.projection.weight, t5.encoder.embedding.tokens.weight, t5.decoder.embedding.tokens.weight}
    assert len(tables) == 1
    assert "encoder.embedding.tokens.weight" not in dict(t5.named_parameters())
    albert = reference.build(tiny("albert"))
    assert len(albert.layers) == 3 and len(set(albert.layers)) == 1


def test_the_largest_models_are_only_shapes_on_meta() -> None:
    net = reference.build(txcalc.load("mixtral-8x7b"), device="meta", dtype=torch.bfloat16)
    assert sum(weight.numel() for weight in net.parameters()) == 46_702_792_704
    assert {(weight.device.type, weight.dtype) for weight in net.parameters()} == {("meta", torch.bfloat16)}


# --- the forms agree --------------------------------------------------------------------------------------------------


@pytest.mark.drawn(1000)
@pytest.mark.parametrize("name", TINY)
@torch.no_grad()
def test_explicit_products_equal_fused_kernels(name: str, update_golden: bool) -> None:
    """Of the inputs that `forward` takes; their mean magnitude with fixed random weights is that in
    `golden/outputs.json`, too."""
    model, net, inputs = tiny_net(name)
    fused = net(*inputs)
    classifier = model.kind == "vision" and model.root.stacks[0].head is not None  # one row a picture; else its patches
    assert logits(fused).shape[:-1] == ((B,) if classifier else (B, 9) if model.kind == "vision" else (B, T))
    mean = float(logits(fused).abs().mean())
    kept = json.loads(MEANS.read_text("utf-8"))
    if update_golden:
        kept[name] = float(f"{mean:.6g}")
        MEANS.write_text(json.dumps(kept, indent=0) + "\n", "utf-8")
    assert mean == pytest.approx(kept[name], rel=1e-4)
    with reference.mode(explicit=True):
        torch.testing.assert_close(net(*inputs), fused, **CLOSE)


@pytest.mark.drawn(1000)
@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe", "gpt-oss", "deepseek-v2", "deepseek-v3"])
@torch.no_grad()
def test_experts_in_fixed_shapes_equal_those_that_are_routed(name: str) -> None:
    _, net, inputs = tiny_net(name)
    layer = next(layer.experts for layer in net.layers if "experts" in layer.names)
    # Scores by a bias alone: every token prefers the first k experts, as the fixed shapes assume.
    first = torch.linspace(3, -3, len(layer.routed))
    for experts in (layer.experts for layer in net.layers if "experts" in layer.names):
        experts.router.weight.zero_()
        experts.router.bias = nn.Parameter(first)
    routed = net(*inputs)
    with reference.mode(static=True):
        torch.testing.assert_close(net(*inputs), routed, **CLOSE)


@torch.no_grad()
def test_tokens_go_to_their_own_experts_and_none_is_dropped() -> None:
    experts = tiny_net("mixtral")[1].layers[0].experts
    x = torch.randn(3, 5, 32)
    run: Any = None
    expected = torch.zeros_like(x)
    for place in product(range(3), range(5)):
        scores = experts.router(x[place])
        best = scores.topk(2).indices
        for expert, share in zip(best.tolist(), scores[best].softmax(0), strict=True):
            expected[place] += share * experts.routed[expert](x[place], run)
    torch.testing.assert_close(experts(x, run), expected, **CLOSE)


@pytest.mark.parametrize("state", [False, True])
def test_a_scan_in_closed_form_equals_the_loop(state: bool) -> None:
    torch.manual_seed(0)
    x, step = torch.randn(2, 9, 6), torch.rand(2, 9, 6)
    rate, write, read = -torch.rand(6, 4), torch.randn(2, 9, 1, 4), torch.randn(2, 9, 1, 4)
    before = torch.randn(2, 6, 4) if state else None
    y, last = scan(x, step, rate, write, read, before)
    with reference.mode(static=True):
        closed, closed_last = scan(x, step, rate, write, read, before)
    torch.testing.assert_close(closed, y, **CLOSE)
    torch.testing.assert_close(closed_last, last, **CLOSE)


def test_a_norm_has_the_gradient_of_its_definition() -> None:
    x = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: RootMeanSquare.apply(x, w, 1e-6), (x, weight))
    assert torch.autograd.gradcheck(lambda x: RootMeanSquare.apply(x, None, 1e-6), (x,))
    torch.testing.assert_close(RootMeanSquare.apply(x, weight, 1e-6), nn.functional.rms_norm(x, (5,), weight, 1e-6))


def test_an_activation_that_learns_has_the_gradient_of_its_definition() -> None:
    x = torch.linspace(-3, 3, 24, dtype=torch.float64).view(2, 3, 4).requires_grad_()
    slopes = [torch.tensor([value], dtype=torch.float64, requires_grad=True) for value in (0.3, -0.4)]
    assert torch.autograd.gradcheck(Xielu.apply, (x, *slopes))
    above, below = nn.functional.softplus(slopes[0]), 0.5 + nn.functional.softplus(slopes[1])
    direct = torch.where(x > 0, above * x**2 + x / 2, below * (x.exp() - 1 - x) + x / 2)
    torch.testing.assert_close(Xielu.apply(x, *slopes), direct)


def test_forms_are_set_within_and_restored_after() -> None:
    from txcalc.reference.run import current

    with pytest.raises(ZeroDivisionError), reference.tracing(absorbed=True) as forms:
        assert forms == current() == reference.Mode(explicit=True, static=True, absorbed=True)
        raise ZeroDivisionError
    assert current() == reference.Mode()
    with pytest.raises(ValueError, match="nonsense"), reference.mode(nonsense=True):
        pass


# --- what is remembered -----------------------------------------------------------------------------------------------


@pytest.mark.drawn(1000)
@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_pieces_with_a_cache_equal_the_whole_and_hold_what_the_ledger_says(name: str) -> None:
    model, net, (ids, *source) = tiny_net(name)
    for _, decay in (item for item in net.named_parameters() if item[0].endswith("scan.decay")):
        decay.sub_(4)  # RWKV-4's sums in closed form have no exponent of their own
    with reference.mode(static=True):
        static = logits(net(ids, *source))
    wholes = logits(net(ids, *source)), static
    if name in ("mamba", "mamba2", "recurrent-gemma", "rwkv"):  # closed forms, and no other result
        torch.testing.assert_close(*wholes, **CLOSE)
    positions = 10 if source else None
    steps, elements = (5, 1, 2, 1, 1, 1), list[dict[str, int]]()
    for i, tokens in enumerate(steps):
        ledger = model.ledger(B, tokens, sum(steps[:i]), None if model.kind == "audio" else positions)
        paths = ((path, e) for e in ledger if e.cache for path in module_paths(e, experts=True))
        elements.append({path: entry.cache // entry.runs for path, entry in paths})
    latent = [(False, True, 0), (True, True, T - 5)] if "latent" in TINY[name] else []
    for explicit, absorbed, room in [(False, False, T - 5), (True, False, 0), *latent]:
        cache, pieces = reference.CacheTensors(room), []
        for tokens, expected in zip(steps, elements, strict=True):
            past = cache.past
            with reference.mode(explicit=explicit, static=explicit, absorbed=absorbed):
                pieces.append(logits(net(ids[:, past : past + tokens], *(() if past else source), cache=cache)))
            assert cache.elements() == expected
        torch.testing.assert_close(torch.cat(pieces, 1), wholes[explicit], **CLOSE)


@torch.no_grad()
def test_a_window_sees_as_many_tokens_as_it_says() -> None:
    _, net, (ids,) = tiny_net("mistral")
    reach = 2 * (4 - 1)  # of the last position, through two layers of a window of 4
    before = net(ids)[:, -1]
    for place, moved in ((T - 1 - reach, True), (T - 2 - reach, False)):
        changed_ids = ids.clone()
        changed_ids[:, place] = (changed_ids[:, place] + 1) % V
        assert (not torch.equal(net(changed_ids)[:, -1], before)) == moved


@pytest.mark.parametrize(
    "span",
    [Causal(), Window(window=4), Chunks(window=4), CentredWindow(window=3)],
    ids=lambda span: type(span).__name__,
)
def test_a_mask_lets_through_as_many_pairs_as_the_span_counts(span: Any) -> None:
    core = reference.attention.Core(span, 1.0)
    for past, tokens in ((0, 1), (0, 3), (0, 11), (2, 3), (7, 6), (9, 1)):
        if past and isinstance(span, CentredWindow):
            continue
        work = Workload(1, tokens, past, None)
        run = reference.run.Run(past, torch.arange(past, past + tokens))
        mask = core.additive_mask(run, span.keys(work), torch.float32)
        assert mask.shape == (tokens, span.keys(work))
        assert (mask == 0).sum() == span.visible(work), (past, tokens)


@torch.no_grad()
def test_states_carry_a_token_as_far_as_attention_does() -> None:
    for name in ("mamba", "mamba2", "qwen3-next", "channel-delta", "recurrent-gemma", "rwkv", "minimax", "llama"):
        _, net, (ids,) = tiny_net(name)
        changed_ids = ids.clone()
        changed_ids[:, 0] = (changed_ids[:, 0] + 1) % V
        changed = (net(changed_ids) - net(ids)).abs().amax(-1)
        assert (changed[:, [0, 5, -1]] > 1e-6).all(), name
        later = ids.clone()
        later[:, -1] = (later[:, -1] + 1) % V
        torch.testing.assert_close(net(later)[:, :-1], net(ids)[:, :-1], atol=1e-6, rtol=1e-6)


# --- positions --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_rotary_scores_depend_on_the_distance_alone() -> None:
    for interleaved in (False, True):
        model = tiny("llama", positions={"interleaved": interleaved, "rotary_dims": 6})
        rotary = reference.build(model).layers[0].attention.rotary
        q, k = torch.randn(2, 1, 1, 1, 8).expand(2, 1, 9, 1, 8)
        run = reference.run.Run(0, torch.arange(9))
        scores = rotary(q, run)[0, :, 0] @ rotary(k, run)[0, :, 0].T
        for distance in (-3, 0, 4):
            line = scores.diagonal(distance)
            torch.testing.assert_close(line, line[:1].expand_as(line), **CLOSE)
        assert not torch.allclose(scores[0, 0], scores[0, 4], atol=1e-3)


def test_alibi_slopes_are_the_published_ones() -> None:
    run = reference.run.Run(0, torch.arange(3))
    for heads, published in ((8, [2**-i for i in range(1, 9)]), (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])):
        attention = {"n_heads": heads, "d_head": 4}
        core = reference.build(tiny("bloom", attention=attention)).layers[0].attention.core
        slopes = -core.alibi_bias(run, 3, torch.float32, heads)[:, 2, 1]
        torch.testing.assert_close(slopes, torch.tensor(published, dtype=torch.float32))


@torch.no_grad()
def test_projected_distances_meet_the_queries_at_their_distance() -> None:
    core = tiny_net("chinchilla")[1].layers[0].attention.core
    run = reference.run.Run(3, torch.arange(3, 7))
    q, projected = torch.randn(2, 4, 4, 8), torch.randn(2, 7, 4, 8)
    scores = core.distance_scores(q, projected, run)
    for i, j in product(range(4), range(7)):
        if j <= 3 + i:
            expected = torch.einsum("bhd,bhd->bh", q[:, i], projected[:, 3 + i - j]) * 8**-0.5
            torch.testing.assert_close(scores[:, :, i, j], expected, **CLOSE)


def test_sinusoids_are_the_published_ones() -> None:
    table = reference.linear.sinusoids(torch.arange(40), 16)
    for place, i in product((0, 1, 39), range(8)):
        angle = place / 10000 ** (2 * i / 16)
        expected = torch.tensor([math.sin(angle), math.cos(angle)])
        torch.testing.assert_close(table[place, 2 * i : 2 * i + 2], expected, **CLOSE)


# --- they start, learn and write --------------------------------------------------------------------------------------


def test_gpt2_starts_as_published() -> None:
    torch.manual_seed(0)
    net = reference.build(txcalc.load("gpt2", {"D": 256, "h": 4, "F": 1024, "V": 512}))
    block = net.layers[3]
    for linear, std in (
        (block.attention.q, 0.02),
        (block.feed_forward.up, 0.02),
        (block.attention.o, 0.02 / 24**0.5),
        (block.feed_forward.down, 0.02 / 24**0.5),
    ):
        assert linear.weight.std().item() == pytest.approx(std, rel=0.02)
        assert linear.bias.abs().max() == 0
    assert net.embedding.tokens.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert (net.final_norm.weight == 1).all() and (net.final_norm.bias == 0).all()


def test_others_start_so_that_their_parts_do_what_they_are_for() -> None:
    torch.manual_seed(0)
    bert = reference.build(tiny("bert", d_model=256, feed_forward={"d_ff": 1024, "bias": True}))
    assert bert.layers[0].feed_forward.down.weight.std().item() == pytest.approx(0.02, rel=0.02)  # post-norm: as any
    gemma = reference.build(tiny("gemma2"))
    assert (gemma.final_norm.weight == 0).all()  # multiplies by 1 + weight
    mamba = reference.build(tiny("mamba")).layers[0].mamba
    torch.testing.assert_close(mamba.scan.A_log.exp(), torch.arange(1.0, 5).expand(64, 4))
    for bias in (mamba.dt_proj.bias, reference.build(tiny("mamba2")).layers[0].mamba2.scan.dt_bias):
        steps = nn.functional.softplus(bias)
        assert 0.0009 < steps.min() < steps.max() < 0.11


@pytest.mark.parametrize(
    "name",
    [name for name in TINY if name not in (*VISION, "vectors", "bert", "bert-pooler", "esm", "roformer", "layoutlm")],
)
def test_a_step_of_training_reaches_every_weight(name: str) -> None:
    torch.manual_seed(0)
    model = tiny(name)
    net = reference.build(model)
    inputs = reference.inputs(model, 8, T, 10 if model.has_encoder_apart else None)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = net.loss(*inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(V), abs=0.3)
    assert losses[-1] < losses[0] - 0.05
    unreached = {path for path, weight in net.named_parameters() if weight.grad is None}
    # What selects keys learns from a loss of its own, and no word is said by what pools an encoder.
    untrained = (".indexer.", ".selector.", "encoder.pooler.", *(["pooler."] if model.kind == "encoder" else []))
    assert unreached == {path for path, _ in net.named_parameters() if any(part in path for part in untrained)}


def test_labels_say_what_is_to_be_learnt() -> None:
    torch.manual_seed(0)
    bert, vit = reference.build(tiny("bert")), reference.build(tiny("vit"))
    ids = torch.randint(V, (2, 5))
    labels = torch.full_like(ids, -100)
    labels[0, 3] = 7
    expected = nn.functional.cross_entropy(bert(ids)[0, 3], torch.tensor(7))
    torch.testing.assert_close(bert.loss(ids, labels=labels), expected)
    (pictures,) = reference.inputs(tiny("vit"), 3, 1)
    assert vit.loss(pictures, labels=torch.tensor([0, 6, 2])).item() == pytest.approx(math.log(7), abs=0.2)


def test_a_model_without_logits_says_so() -> None:
    for name in ("vectors", "bert-pooler"):
        model = tiny(name)
        with pytest.raises(txcalc.InputError, match="without a head gives no logits"):
            reference.build(model).loss(*reference.inputs(model, 2, 5))


@pytest.mark.drawn(1000)
@pytest.mark.parametrize("name", ["llama", "mixtral", "t5", "mamba2"])
def test_blocks_computed_again_have_the_same_gradients(name: str) -> None:
    _, net, inputs = tiny_net(name)
    gradients = []
    for checkpoint in (False, True):
        net.zero_grad()
        with reference.mode(checkpoint=checkpoint):
            net.loss(*inputs).backward()
        gradients.append([weight.grad for weight in net.parameters()])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_greedy_generation_is_the_likeliest_of_the_whole(name: str) -> None:
    _, net, (ids, *source) = tiny_net(name)
    encoded: list[Any] = []
    if source:
        net.encoder.register_forward_hook(lambda *_: encoded.append(_))
    written = net.generate(ids[:, :3], *source, steps=6)
    assert len(encoded) == len(source)  # once, not for every token
    assert written.shape == (B, 9) and torch.equal(written[:, :3], ids[:, :3])
    assert torch.equal(logits(net(written, *source))[:, 2:-1].argmax(-1), written[:, 3:])


@pytest.mark.parametrize("name", TINY)
@torch.no_grad()
def test_bfloat16_runs_in_every_form(name: str) -> None:
    model = tiny(name)
    net = reference.build(model, dtype=torch.bfloat16)
    inputs = reference.inputs(model, B, T, 10 if model.has_encoder_apart else None)
    inputs = tuple(x.bfloat16() if x.is_floating_point() else x for x in inputs)
    for explicit in (False, True):
        with reference.mode(explicit=explicit):
            out = net(*inputs)
        out = out[0] if isinstance(out, tuple) else out
        assert out.dtype == torch.bfloat16 and out.isfinite().all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", TINY)
@torch.no_grad()
def test_the_same_on_a_gpu(name: str) -> None:
    model, net, inputs = tiny_net(name)
    if vocab := model.description.last.vocab_size:  # a token once: equal keys tie where an attention selects some
        inputs = (torch.stack([torch.randperm(vocab)[:T] for _ in range(B)]), *inputs[1:])
    here = net(*inputs)
    there = net.to("cuda")(*(x.cuda() for x in inputs))
    torch.testing.assert_close(there, here, atol=1e-3, rtol=1e-3, check_device=False)


# --- lengths may be symbols -------------------------------------------------------------------------------------------


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", [*TINY][::5])
def test_every_size_is_free_in_a_trace(name: str) -> None:
    pytest.importorskip("fvcore", reason="fvcore is not installed: pip install 'txcalc[verify]'")
    from txcalc.verification import NotForAll, verify

    if name == "compressed":  # T // 3 entries: PyTorch asks whether there is one, and whether any token is left
        with pytest.raises(NotForAll, match="//"):
            verify(tiny(name), ["flops"], lengths="symbolic")
        return
    verdict = verify(tiny(name), ["flops"], lengths="symbolic")
    assert verdict.failures == [] and verdict.rows
