"""Multimodal configs: the language model, and with its towers and projectors the whole, exact or said to be unknown."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from command import typed
from hypothesis import given, strategies as st
from paths import HF
from strategies import share_of

from txcalc import deploy, load, train
from txcalc.errors import InputError, TxcalcError, UnknownName
from txcalc.ledger import walk
from txcalc.model import Model
from txcalc.parts.sharding import Ways
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.stages import Pipeline, layer_numbers
from txcalc.sources import build
from txcalc.sources.huggingface import describe
from txcalc.sources.huggingface.families import STANDALONE_TOWERS
from txcalc.sources.huggingface.tower_registry import TOWER_PLANS

TRUTH: dict[str, dict[str, Any]] = json.loads((HF / "towers.json").read_text())
CONFIGS: dict[str, dict[str, Any]] = json.loads((HF / "configs.json").read_text())


def read(config: Any) -> Model:
    return build(*describe(config))


def notes_of(model: Model) -> str:
    return " ".join(model.notes)


@pytest.mark.drawn(1000)  # all: each is of another tower
@pytest.mark.parametrize("name", TRUTH)
def test_exact(name: str) -> None:
    model, flops = read(TRUTH[name]["config"]), TRUTH[name].get("flops")
    assert model.total_params == TRUTH[name]["whole"]
    # Kept where transformers needs a package that is not among the tests': timm 1.0.31's towers run by transformers.
    assert flops is None or flops == model.towers["vision"].ledger().total("flops")
    assert model.total_params and model.params < model.total_params and "beside the language model" in notes_of(model)


@pytest.mark.parametrize(
    "argv", [("deploy", "--gpu", "h100"), ("train", "--gpu", "h100:2", "--layout", "fsdp=2"), ("fit", "--gpu", "h100")]
)
def test_plans_say_that_towers_are_left_out(argv: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TRUTH["llava default"]["config"]))
    command, *options = argv

    def stderr_of(*extra: str) -> str:
        return " ".join(typed(command, str(tmp_path / "config.json"), *options, *extra).stderr.split())

    assert "are left out: 87,509,376 parameters, 166.9 MiB in 16 bits" in stderr_of("--text-only")
    assert "left out" not in stderr_of()
    assert "left out" not in typed(command, "gpt2", *options, "--text-only").stderr


@pytest.mark.parametrize("name", ["gemma-4-26b-a4b", "qwen3.5-27b"])
def test_a_presets_towers_are_its_configs(name: str) -> None:
    """Part by part, so that an engine that splits towers splits those of a preset too."""
    assert load(name).description.towers == read(CONFIGS[name]).description.towers
    plan = deploy(name, "h100:4", engine="vllm", tp=4).to_dict()
    assert any("are stored split over tp" in note for note in plan["notes"])


@pytest.mark.slow
def test_training_holds_the_towers() -> None:
    model = read(QWEN)

    def states(**options: Any) -> list[int]:
        rank_bytes = train(model, "h100-sxm:8", layout="fsdp=8", tokens=64, **options).ranks[0].bytes
        return [rank_bytes[name] for name in ("parameters", "gradients", "optimizer")]

    elements = (8_292_166_656 - 7_615_616_512) // 8
    added = [a - b for a, b in zip(states(), states(text_only=True), strict=True)]
    # FSDP2 gives the first rank the most rows of what 8 does not divide.
    assert all(0 <= delta - size * elements < 1e-3 * delta for delta, size in zip(added, (4, 4, 8), strict=True))
    frozen = [states(lora="r=8,targets=q", **text_options) for text_options in ({}, {"text_only": True})]
    assert frozen[0][0] > frozen[1][0] and frozen[0][1:] == frozen[1][1:]
    packed = [states(lora="r=8,targets=q,base=nf4", **text_options)[0] for text_options in ({}, {"text_only": True})]
    assert packed[0] - packed[1] == frozen[0][0] - frozen[1][0], "towers stay as published"


def test_the_truth_is_complete() -> None:
    rows = json.loads((HF / "published.json").read_text()).values()
    published = {row["config"]["model_type"] for row in rows if row.get("whole")}
    assert {name.split()[0] for name in TRUTH} | published == set(TOWER_PLANS)


# Published models; those of TRUTH and of CONFIGS have the totals of their checkpoints' headers on the hub.
LLAVA, QWEN = TRUTH["llava llava-1.5-7b"]["config"], TRUTH["qwen2_5_vl qwen2.5-vl-7b"]["config"]


@pytest.mark.parametrize(
    ("name", "whole"),
    [("gemma-3-12b-it", 12_187_325_040), ("gemma-3-27b-it", 27_432_406_640), ("qwen3.5-27b", 27_356_728_560)],
)
def test_published(name: str, whole: int) -> None:
    assert read(CONFIGS[name]).total_params == whole


SMALL = TRUTH["llava clip_vision_model"]["config"]


def changed(**changes: Any) -> dict[str, Any]:
    return SMALL | {"vision_config": SMALL["vision_config"] | changes}


def timm(architecture: str = "", **tower: Any) -> dict[str, Any]:
    """A model of this type whose tower timm builds."""
    perception = TRUTH["perception_lm PE-Lang"]["config"]
    kept = {"architecture": architecture or perception["vision_config"]["architecture"], "hidden_size": 3072}
    if architecture:
        del kept["hidden_size"]
    return perception | {"vision_config": {"model_type": "timm_wrapper", **kept, **tower}}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (changed(num_experts=8), "vision_config.num_experts is 8, a key that is not understood"),
        (changed(model_type="eva"), "vision_config.model_type is 'eva', a tower that is not supported"),
        (changed(model_type=[]), "vision_config.model_type is [], a tower that is not supported"),
        (changed(hidden_size="wide"), "vision_config.hidden_size is 'wide', expected a whole number"),
        (changed(num_attention_heads=7), "vision_config.num_attention_heads is 7, expected a divisor of the width"),
        (changed(patch_size=90), "vision_config.patch_size is 90, expected at most image_size = 60"),
        (SMALL | {"mm_resampler_depth": 3}, "mm_resampler_depth is 3, a key that is not understood"),
        ({key: SMALL[key] for key in SMALL if key != "vision_config"}, "vision_config is missing"),
        (TRUTH["aria idefics3_vision"]["config"] | {"max_value_projector_patch_to_query_dict": 8},
         "max_value_projector_patch_to_query_dict is 8, expected 9"),
        ({**SMALL, "model_type": "perception_lm", "text_config": CONFIGS["llama-7b"]},
         "vision_config.architecture is 'resnet50', expected one of vit_pe_core_tiny_patch16_384"),
        (timm("vit_pe_lang_large_patch14_448"), "model_args.embed_dim is missing"),
        (timm("vit_pe_core_large_patch14_336", model_args={"embed_dim": 1024}),
         "global_pool is 'map', expected"),
        (timm("vit_pe_lang_large_patch14_448", model_args={"embed_dim": 1024, "img_size": [13, 13]}),
         "img_size is [13, 13], expected at least 14"),
    ],
)  # fmt: skip
def test_a_whole_that_is_not_known_is_said_to_be(config: dict[str, Any], message: str) -> None:
    model = read(config)
    assert model.total_params is None and model.params == read(config | {"vision_config": {}}).params
    assert f"params.whole is not known: {message}" in notes_of(model) or message in notes_of(model)


@pytest.mark.parametrize(("key", "value"), [("vision_config", 7), ("vision_feature_layer", "last")])
def test_what_the_class_of_the_whole_takes_no_value_of_is_refused(key: str, value: object) -> None:
    with pytest.raises(InputError, match=f"{key} is {value!r}, expected .*transformers makes no llava of it"):
        read(SMALL | {key: value})


@pytest.mark.parametrize(
    ("name", "extra"),
    [("glm4v glm4v", 0), ("qwen3_vl qwen3_vl", 0), ("llama4 llama4_vision_model", 2 * 16 * 56 * 64),
     ("mllama mllama_vision_model", 2 * 195 * 288 * 64), ("voxtral whisper", 2 * 17 * (384 * 64 + 64 * 64))],
)  # fmt: skip
def test_a_tower_by_itself_is_that_of_its_whole(name: str, extra: int) -> None:
    """Less the FLOPs of what the whole has behind it, `extra`."""
    config = TRUTH[name]["config"]
    tower_type = next(key for key, whole in STANDALONE_TOWERS.items() if whole == config["model_type"])
    kind = "vision" if "vision_config" in config else "audio"
    standalone, tower = read(config[f"{kind}_config"] | {"model_type": tower_type}), read(config).towers[kind]
    assert standalone.root.fixed or not tower.root.fixed
    counted = [model.ledger(1, model.root.fixed or 36).total("flops") for model in (standalone, tower)]
    assert counted[0] + extra == counted[1] and (standalone.params < tower.params) == (extra > 0)


def test_a_tower_by_itself_whose_last_layer_would_have_no_rows_is_refused() -> None:
    with pytest.raises(InputError, match="the steps after its layers: expected a whole number from 1"):
        read({"model_type": "ovis2_vision", "vocab_size": 5})


def test_defaults_of_a_tower_are_told() -> None:
    assert "one crop, pooled to 196 tokens" in " ".join(read(TRUTH["molmo2 default"]["config"]).assumptions)
    assert (
        "vision_config.head_dim = 64, the default of pixtral" in read(TRUTH["mistral3 default"]["config"]).assumptions
    )


def test_a_tower_far_beyond_its_language_model_is_so_many_times(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TRUTH["molmo2 default"]["config"]))
    assert (
        "input tokens, 9,008 times the language model's FLOPs"
        in typed("show", str(tmp_path / "config.json"), "--tokens", "256").stdout
    )


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "config.json"

    def shown(config: Any, *options: str) -> Any:
        path.write_text(json.dumps(config))
        return typed("show", str(path), *options)

    data = json.loads(shown(LLAVA, "--json").stdout)
    assert data["params"]["whole"] == 7_063_427_072 and data["params"]["total"] == 6_738_939_904
    assert sum(data["params"]["by_kind"].values()) == data["params"]["total"]
    assert "7,063,427,072 parameters in all, 324,487,168 in towers and projectors" in " ".join(
        shown(LLAVA).stdout.split()
    )
    unknown = json.loads(shown(LLAVA | {"mm_resampler_depth": 3}, "--json").stdout)
    assert unknown["params"]["whole"] is None and unknown["params"]["total"] == data["params"]["total"]
    assert typed.data("show", "gpt2")["params"]["whole"] == load("gpt2").params
    path.write_text(json.dumps(LLAVA))
    assert load(path, {"n_layers": 2}).total_params is None


values = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 40), st.integers(-(10**30), 10**30), st.floats(), st.text(max_size=3),
    st.lists(st.integers(0, 3), max_size=3), st.dictionaries(st.text(max_size=2), st.integers(0, 9), max_size=2),
)  # fmt: skip


@pytest.mark.slow
@share_of(200)
@given(name=st.sampled_from(sorted(TRUTH)), data=st.data())
def test_mutations_give_a_whole_or_a_reason(name: str, data: st.DataObject) -> None:
    config = copy.deepcopy(TRUTH[name]["config"])
    tables = [config, *(table for table in config.values() if isinstance(table, dict) and table)]
    table = data.draw(st.sampled_from(tables))
    key = data.draw(st.sampled_from([*table, "surplus", "mlp_ratio", "downsample_ratio", "perceiver_config"]))
    if data.draw(st.booleans()):
        table.pop(key, None)
    else:
        table[key] = data.draw(values)
    try:
        model = read(config)
    except TxcalcError as error:
        assert str(error).encode()
        return
    if model.description.multimodal:
        assert (model.total_params is None) == ("params.whole is not known" in notes_of(model))
    assert model.total_params is None or model.total_params >= model.params


def test_multi_token_prediction_is_counted_apart(tmp_path: Path) -> None:
    model = read(CONFIGS["deepseek-v3"])
    # deepseek-ai/DeepSeek-V3: weights of the checkpoint's header without its scales, in which the layer beside the
    # model repeats the table and the head.
    assert model.params + model.predictors + 2 * 129280 * 7168 == 684_489_830_400
    assert read(CONFIGS["deepseek-v3"] | {"num_nextn_predict_layers": 2}).predictors == 2 * model.predictors
    assert read(CONFIGS["deepseek-v3"] | {"num_nextn_predict_layers": 0}).predictors == 0
    assert model.predictor
    ledger = model.predictor.ledger(1, 8)
    assert ledger.at("join.norms.1").total("params") == 7168  # of the hidden state, and of the embedding
    with pytest.raises(UnknownName):
        ledger.at("join.norms.2")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS["deepseek-v3"]))
    answer = typed("show", str(path), "--json")
    assert json.loads(answer.stdout)["params"]["mtp"] == model.predictors == 11_610_067_968
    assert "multi-token prediction, not included: 11,610,067,968" in typed("show", str(path)).stdout


TOWER = {
    "kind": "vision", "d_model": 32, "n_layers": 2, "attention": {"n_heads": 4}, "feed_forward": {"d_ff": 48},
    "positions": {"form": "rotary"}, "head": {"form": "none"}, "vision": {"patch": 4, "class_token": False},
    "projector": {"steps": [{"norm": "rms"}, {"merge": 4}, {"linear": 24}]},
}  # fmt: skip


def test_a_tower_is_a_tree_by_part(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN))

    def towers(*options: str) -> Any:
        return typed.data("show", str(path), *options)["towers"]["vision"]

    few, many = towers(), towers("--source-tokens", "1k", "--batch", "2")
    assert few["tokens"] == 256 and many["tokens"] == 1024
    assert few["params"] == many["params"] and few["params"]["total"] == 8_292_166_656 - 7_615_616_512
    assert sum(few["params"]["by_kind"].values()) == few["params"]["total"]
    # Four whole layers of 32: their scores grow with the square of the patches, those of windows of 64 patches do not.
    core = [4 * 1280 * patches * (4 * patches + 28 * 64) for patches in (1024, 4096)]
    assert [few["flops"]["by_kind"]["attention_core"], many["flops"]["by_kind"]["attention_core"]] == [
        core[0],
        2 * core[1],
    ]
    assert few["flops"]["by_kind"]["projector"] == 2 * 256 * (5120 * 5120 + 5120 * 3584)
    edged = towers("--source-tokens", "260")  # 26 × 40 patches: windows of 8 × 8, and those of 2 × 8 at one edge
    assert edged["flops"]["by_kind"]["attention_core"] == 4 * 1280 * (4 * 1040**2 + 28 * 5 * (3 * 64**2 + 16**2))
    assert edged["known"] == few["known"]
    assert "260 (13 × 20) input tokens" in typed("show", str(path), "--source-tokens", "260").stdout
    deeper = copy.deepcopy(QWEN)
    deeper["vision_config"]["depth"] = 31
    path.write_text(json.dumps(deeper))
    assert towers()["known"]["flops"] == {"how": "modelled", "where": ""}  # nobody ran that
    path.write_text(json.dumps(LLAVA))
    assert towers()["tokens"] == 576  # of 577 positions
    refused = typed("show", str(path), "--source-tokens", "9")
    assert refused.exit_code == 2 and "expected nothing: its vision tower makes 576 tokens" in refused.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"projector": {"steps": [{"merge": 0}]}}, "projector.steps is [{'merge': 0}], expected a whole number"),
        ({"projector": {"steps": [{"stir": 4}]}}, "expected tables that have one of norm, merge"),
        ({"projector": {"steps": [{"linear": 8, "gated": True}]}}, "and its keys alone"),
        ({"projector": {"steps": [], "dropped": 16}, "vision": {"image": 16, "patch": 4, "class_token": False}},
         "projector.dropped is 16, expected a number of the 16 positions that leaves a multiple of 1"),
        ({"projector": {"steps": [{"merge": 3}]}, "vision": {"image": 16, "patch": 4, "class_token": False}},
         "expected a number of the 16 positions that leaves a multiple of 3"),
        ({"positions": {"form": "learned"}}, "positions.rows is missing"),
    ],
)  # fmt: skip
def test_a_tower_that_does_not_fit_together_is_refused(changes: dict[str, Any], message: str) -> None:
    assert build(TOWER, "tower").ledger(tokens=3).total("params") > 0
    with pytest.raises(TxcalcError) as error:
        build(TOWER | changes, "tower")
    assert message in str(error.value)
    with pytest.raises(TxcalcError) as within:  # where it stands in a whole, too
        build({"d_model": 24, "n_layers": 1, "attention": {"n_heads": 2}, "feed_forward": {"d_ff": 8},
               "towers": {"vision": TOWER | changes}}, "whole")  # fmt: skip
    assert message in str(within.value) and "towers.vision" in str(within.value)


@pytest.mark.parametrize(("changes", "message"), [
    ({"side": 4, "cell": 3}, "attention.cell is 3, expected a cell whose square divides the 4 merged positions"),
    ({"side": 4, "window": 8}, "attention.side is 4, which changes nothing here: it counts without attention.window"),
])  # fmt: skip
def test_square_windows_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TxcalcError) as error:
        build(TOWER | {"attention": {"n_heads": 4} | changes}, "tower", written=True)
    assert message in str(error.value)
    with pytest.raises(TxcalcError, match=r"attention\.side is 4, expected none outside a vision tower"):
        build({"d_model": 24, "n_layers": 1, "attention": {"n_heads": 2, "side": 4}, "feed_forward": {"d_ff": 8}}, "a")


def test_tokens_that_are_made_several_at_once_are_whole_numbers_of_them() -> None:
    config = TRUTH["granite_speech granite_speech_encoder"]["config"] | {"window_size": 12}
    tower = read(config).towers["audio"]
    makes = tower.root.projector.makes  # type: ignore[attr-defined]
    partial, full = tower.ledger(2, makes + 1), tower.ledger(2, 2 * makes)
    assert makes == 3 and partial.work.tokens == full.work.tokens == 6
    assert partial.total("flops") == full.total("flops") > tower.ledger(2, makes).total("flops")


def test_a_prompt_that_a_tower_reads_stands_behind_its_tokens(tmp_path: Path) -> None:
    """InstructBLIP's Q-Former: 5 queries, and a table of positions for 20 tokens."""
    (tmp_path / "config.json").write_text(json.dumps(TRUTH["instructblip blip_2_vision_model"]["config"]))

    def flops(*lengths: str) -> list[int]:
        shown = (typed.data("show", str(tmp_path / "config.json"), "--tokens", length)["towers"] for length in lengths)
        return [tower["vision"]["flops"]["forward"]["matmul"] for tower in shown]

    none, still_none, one, most, still_most = flops("1", "5", "6", "25", "30")
    per_token = 5 * (4 * 48 * 48 + 2 * 48 * 80)  # layers of 4 matrices of attention and 2 of a feed-forward
    assert none == still_none and most == still_most
    assert one - none == 2 * per_token + 5 * 4 * 48 * (6 * 6 - 5 * 5)


@pytest.mark.slow
def test_modules_of_a_tower_are_refused() -> None:
    pytest.importorskip("torch")
    from txcalc import verify

    with pytest.raises(TxcalcError, match="has no modules for the towers"):
        verify(build(TOWER, "tower"))


@pytest.mark.slow
def test_every_tower_has_a_share_of_each_rank() -> None:
    for name, row in TRUTH.items():
        for root in read(row["config"]).tower_roots:
            for ranks in (1, 2):
                ways = Ways(ranks)
                shard = root.shard(ways)
                assert ways.faults or sum(leaf.params for leaf in shard.leaves()) > 0, name


def test_layers_of_towers_have_numbers_of_their_own() -> None:
    """Of two beside a decoder, which training keeps apart by them."""
    model = read(TRUTH["gemma4 gemma4_vision"]["config"])
    (piece,) = Pipeline(model, Recipe(tokens=64)).pieces
    roots = (model.root, *model.tower_roots)
    stacks = [{i for entry in walk(root, piece.work) for i in layer_numbers(entry)} for root in roots]
    assert len({i for leaf in (*piece.leaves, *piece.towers) for i in leaf.layers}) == sum(map(len, stacks)) > 6


def test_towers_stay_beside_a_model_whose_sizes_do() -> None:
    model = load("gemma-4-26b-a4b")
    assert model.set({"dtype": "fp16"}).tower_params == model.tower_params
    narrow = model.set({"top_k": 4})
    assert narrow.tower_params is None and any("left out" in note for note in narrow.notes)
