"""The library as people use it from Python: what `load` takes, models that are varied and compared, examples of
docstrings."""

from __future__ import annotations

import copy
import doctest
import inspect
import json
import pickle
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from paths import HF, ROOT
from tiny import config_sizes

import txcalc
from txcalc import COMMANDS, InputError, TxcalcError
from txcalc.sources import build
from txcalc.sources.huggingface import describe
from txcalc.units import short

CONFIGS: dict[str, dict[str, Any]] = json.loads((HF / "configs.json").read_text())
BLOCK = {"d_model": 512, "n_layers": 6, "attention": {"n_heads": 8}, "feed_forward": {"d_ff": 2048, "gated": False}}
PACKAGE = Path(txcalc.__file__).parent
QUESTIONS = sorted(path.stem for path in (PACKAGE / "questions").glob("*.py") if ">>>" in path.read_text("utf-8"))
EXAMPLES = ("", ".ledger", ".model", ".sources", *(f".questions.{name}" for name in QUESTIONS))


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_docstrings_run(name: str) -> None:
    result = doctest.testmod(import_module(f"txcalc{name}"), optionflags=doctest.ELLIPSIS)
    assert result.attempted and not result.failed


def test_changes_are_keywords_or_a_mapping() -> None:
    changed = txcalc.load("llama-3.1-8b", h_kv=4)
    assert changed.params == txcalc.load("llama-3.1-8b", {"h_kv": 4}).params
    assert changed == txcalc.load("llama-3.1-8b").set(h_kv=4) == txcalc.load(txcalc.load("llama-3.1-8b"), h_kv=4)
    assert changed.changed and changed.set(h_kv=8).changed and not txcalc.load("llama-3.1-8b").changed
    with pytest.raises(InputError, match="h_kv"):
        changed.set(h_kv=5)


def test_models_are_equal_by_content() -> None:
    llama = txcalc.load("llama-3.1-8b")
    assert llama == txcalc.load("llama-3.1-8b") and hash(llama) == hash(txcalc.load("llama-3.1-8b"))
    assert llama.set(h_kv=4) != llama and llama.set(h_kv=4).set(h_kv=8) == llama
    assert llama != "llama-3.1-8b"
    assert len({txcalc.load(name) for name in ("gpt2", "gpt2-xl", "gpt2")}) == 2
    assert pickle.loads(pickle.dumps(llama)) == llama


def test_a_model_shows_itself_in_a_line_and_in_a_notebook() -> None:
    model = txcalc.load("mixtral-8x7b")
    assert repr(model) == "<mixtral-8x7b: decoder, 46.7 B parameters>"
    assert f"{model.params:,}" in model._repr_html_() and f"{model.active:,}" in model._repr_html_()
    assert "&lt;b&gt;" in txcalc.load({**BLOCK, "name": "<b>"})._repr_html_(), "names are escaped"


@pytest.mark.parametrize(
    "source", [3, None, 2.5, [1], ("gpt2",), b"gpt2", object(), float, txcalc, {}, {1: 2}, {"a": 1}]
)
def test_a_wrong_kind_is_the_packages_own_error(source: Any) -> None:
    with pytest.raises(TxcalcError):
        txcalc.load(source)


def test_a_dict_within_itself_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["attention"] = endless
    with pytest.raises(InputError, match="nested too deep"):
        txcalc.load(endless)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning:transformers.*")
def test_config_objects_are_read_as_their_files() -> None:
    """Of every type that transformers makes an object of: the same parameters as from the file; T5's config ties its
    head, whatever the file says."""
    transformers = pytest.importorskip("transformers", reason="needs transformers (pip install 'txcalc[transformers]')")
    read = 0
    for name, config in CONFIGS.items():
        try:
            truth = build(*describe(config))
            hf_config = transformers.AutoConfig.for_model(**config)
        except (TxcalcError, ValueError, KeyError, TypeError, AttributeError):
            continue  # one of the two does not read it
        model = txcalc.load(hf_config)
        tied = getattr(hf_config, "tie_word_embeddings", None) is True and config.get("tie_word_embeddings") is False
        assert tied or model.params == truth.params, name
        read += 1
    assert read > 150


@pytest.mark.slow
def test_modules_are_read_by_their_configs() -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers (pip install 'txcalc[transformers]')")
    torch = pytest.importorskip("torch")
    config = transformers.LlamaConfig(**config_sizes(256, 2, 4, 512, 999))
    classes: list[Callable[..., Any]] = [transformers.LlamaForCausalLM, transformers.LlamaModel]
    with torch.device("meta"):
        whole, bare = (cls(config) for cls in classes)
    for module in (whole, bare):
        assert txcalc.load(module).params == sum(weight.numel() for weight in module.parameters())
    assert txcalc.load(whole).params - txcalc.load(bare).params == 999 * 256
    assert txcalc.load(whole, h_kv=2) == txcalc.load(config, h_kv=2)
    whole.model.layers[0].mlp.up_proj = torch.nn.Linear(256, 512, bias=True, device="meta")
    with pytest.raises(InputError, match="its config describes"):
        txcalc.load(whole)


@pytest.mark.slow
def test_modules_without_a_config_are_measured() -> None:
    torch = pytest.importorskip("torch")
    layers = [torch.nn.Embedding(99, 32), torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)]
    net = torch.nn.Sequential(*layers, torch.nn.Linear(32, 99, bias=False))
    net[2].weight = net[0].weight
    before = [weight.clone() for weight in net.parameters()]
    model = txcalc.load(net)
    assert all(map(torch.equal, before, net.parameters())) and net.training, "the module itself is left as it is"
    assert model.params == sum(weight.numel() for weight in net.parameters())
    assert repr(model) == f"<Sequential: a measured module, {short(model.params)} parameters>"
    for batch, tokens in ((1, 1), (3, 7), (2, 1024)):
        block, head = 2 * tokens * 32 * (4 * 32 + 2 * tokens + 2 * 64), 2 * tokens * 32 * 99
        ledger = model.ledger(batch, tokens)
        assert ledger.total("flops") == batch * (block + head)
        assert ledger.at("1").total("flops") == batch * block and ledger.at("2").by_kind("flops") == {
            "other": batch * head
        }
    assert next(row["path"] for row in ledger.rows()) == "0" and "parameters" in model._repr_html_()
    traced = txcalc.trace(net)
    assert traced.total.params == model.params and traced.total.flops == "64·B·T·(2·T + 355)"
    assert txcalc.load(torch.nn.Linear(3, 5)).ledger(2, 4).total("flops") == 2 * 2 * 4 * 3 * 5
    unknown: list[Callable[[], Any]] = [
        lambda: ledger.total("cache"),
        lambda: model.active,
        lambda: model.ledger(past=4),
        lambda: model.ledger(tokens=0),
        lambda: model.ledger(dtype="nonsense"),
        lambda: model.ledger(past=numpy().array([0, 0])),
        lambda: model.ledger(tokens=numpy().array([4, 8])),
        lambda: model.ledger(logits="last"),
        lambda: model.ledger(source=3),
        lambda: txcalc.load(net, h=2),
        lambda: txcalc.show(model),
        lambda: txcalc.compare(net, "gpt2"),
        lambda: txcalc.deploy(net, "h100"),
        lambda: txcalc.train(model, "h100:8"),
        lambda: txcalc.load(torch.nn.Conv2d(3, 3, 3)),
        lambda: txcalc.trace(3),  # type: ignore[arg-type]
    ]
    for ask in unknown:
        with pytest.raises(TxcalcError):
            ask()


def test_options_are_classes_or_keywords() -> None:
    """A class of options, its fields as keywords, and both: a keyword is what holds."""
    load, limits = txcalc.Load(prompt="1k", concurrency=4), txcalc.Limits(ttft="1s")
    typed = txcalc.deploy("gpt2", "h100", load=load, limits=limits, engine=txcalc.Engine(engine="vllm", block=32))
    flat = txcalc.deploy("gpt2", "h100", prompt="1k", users=4, ttft="1s", engine="vllm", block=32)
    mixed = txcalc.deploy("gpt2", "h100", load=txcalc.Load(prompt="1k"), concurrency=4, ttft=1, engine="vllm", block=32)
    assert typed == flat == mixed and (typed.workload.concurrency, typed.engine.block) == (4, 32)
    card = txcalc.Accelerator("mine", "My card", 16 * 10**9, 10**12, {"bf16": 10**14}, None, None, {})
    assert txcalc.deploy("gpt2", card, tp=1).gpu.name == "mine"
    assert [plan.to_dict()["fits"] for plan in txcalc.deploy("gpt2", [card, "h100"]).deployments] == [True, True]
    with pytest.raises(InputError, match="prompt is \\[1\\], expected a whole number or a text"):
        txcalc.deploy("gpt2", "h100", load=txcalc.Load(prompt=[1]))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="load is 5, expected a Load"):
        txcalc.deploy("gpt2", "h100", load=5)  # type: ignore[arg-type]
    with pytest.raises(txcalc.TxcalcError, match="no argument named 'promt' \\(did you mean prompt"):
        txcalc.deploy("gpt2", "h100", promt=5)


LLAMA: Any = txcalc.load("llama-3.1-8b")
OPEN: Any = txcalc  # its functions, whatever they are given


@pytest.mark.drawn(1000)
@pytest.mark.parametrize(
    "ask",
    [
        lambda: OPEN.sweep(LLAMA, over={"T": []}),
        lambda: OPEN.sweep(LLAMA, over={"T": 5}),
        lambda: OPEN.sweep(LLAMA, over={"T": None}),
        lambda: OPEN.sweep(LLAMA, over={3: [1]}),
        lambda: OPEN.sweep(LLAMA, over=5),
        lambda: OPEN.sweep(LLAMA, over=[5]),
        lambda: OPEN.sweep(LLAMA, over={"T": [1]}, changes=[1]),
        lambda: LLAMA.set(h_kv=numpy().array([1, 2])),
        lambda: LLAMA.set([1]),
        lambda: LLAMA.set({1: 2}),
        lambda: OPEN.load("gpt2", [1]),
        lambda: OPEN.load("gpt2", "L=3"),
        lambda: LLAMA.ledger(tokens=numpy().array([1.5, 2.0])),
        lambda: LLAMA.ledger(dtype=5),
        lambda: LLAMA.ledger().total(5),
        lambda: LLAMA.ledger().at(5),
        lambda: LLAMA.ledger().total([1]),
        lambda: LLAMA.ledger().where(5),
        lambda: LLAMA.set(h=b"x"),
        lambda: LLAMA.set(h=object()),
        lambda: OPEN.kv(LLAMA).report([1]),
        lambda: OPEN.deploy(LLAMA, "h100").to_command(5),
        lambda: OPEN.show(LLAMA, tokens=numpy().array([1, 2])),
        lambda: OPEN.report(),
        lambda: OPEN.report(LLAMA, gpu="h100", contexts=0),
        lambda: OPEN.report(LLAMA, gpu="h100", contexts=[]),
        lambda: OPEN.report(LLAMA, gpu="h100", concurrency=0),
        lambda: OPEN.report(LLAMA, gpu="h100", weights=""),
        lambda: OPEN.report(LLAMA, gpu="h100", kv=[]),
        lambda: OPEN.report(LLAMA, gpu=[]),
        lambda: OPEN.export(LLAMA, "yaml"),
        lambda: OPEN.presets("no such"),
        lambda: OPEN.measurements("none"),
        lambda: OPEN.entropy([float("nan"), 1.0]),
        lambda: OPEN.sweep(LLAMA, over={"T": iter(())}),
        lambda: OPEN.deploy("mixtral-8x7b", "h100:2", etp=0),
        lambda: OPEN.deploy(LLAMA, "h100:2", disaggregate=0),
        lambda: OPEN.design(compute=10**20, train_tokens=0),
        pytest.param(lambda: OPEN.measure("cpu", limit=0), marks=pytest.mark.slow),
    ],
)
def test_a_wrong_argument_is_the_packages_own_error(ask: Any) -> None:
    with pytest.raises(TxcalcError) as caught:
        ask()
    assert "expected" in str(caught.value) or "no " in str(caught.value)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_argument_of_every_function_is_checked(name: str) -> None:
    """What is of no kind that anything takes is refused before anything is computed, by the name of the argument."""
    declared = inspect.signature(txcalc.__getattr__(name)).parameters
    needed = [arg.name for arg in declared.values() if arg.default is arg.empty and arg.kind is not arg.VAR_POSITIONAL]
    arguments = {argument: {"over": {"T": [1]}, "to": "toml"}.get(argument, "gpt2") for argument in needed}
    for argument, arg in declared.items():
        if arg.annotation is arg.empty:
            continue  # `load` says what it takes
        with pytest.raises(InputError, match=f"{argument} is <object object"):
            getattr(txcalc, name)(**{**arguments, argument: object()})


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: OPEN.show(LLAMA, attention="nope"), "show: attention is 'nope', expected 'dense' or 'masked'"),
        (lambda: OPEN.show(LLAMA, tokns=1), "show: no argument named 'tokns' (did you mean tokens?)"),
        (lambda: OPEN.show(), "show: missing a required argument: 'source'"),
        (lambda: LLAMA.ledger(batchs=3), "no argument named 'batchs' (did you mean batch?)"),
        (lambda: OPEN.show(LLAMA, tokens=[1]), "show: tokens is [1], expected a whole number or a text"),
        (lambda: OPEN.show(LLAMA, tokens=-1), "tokens is -1, expected a whole number"),
        (lambda: OPEN.kv(LLAMA, batches=-1), "--batch is -1, expected a whole number"),
        (lambda: OPEN.deploy(LLAMA, "h100", price="x"), "deploy: price is 'x', expected a number"),
        (lambda: OPEN.deploy(LLAMA, "h100", node=2.5), "deploy: node is 2.5, expected a whole number"),
        (lambda: OPEN.kv(LLAMA, context=1, contexts=2), "kv: context and contexts say the same thing twice"),
        (lambda: OPEN.deploy(LLAMA, "h100", kv_dtype="fp8", kv="bf16"), "kv_dtype and kv say the same thing twice"),
        (lambda: OPEN.kv(LLAMA).plot(5), "plot: place is 5, expected a text or a path"),
        (lambda: OPEN.kv(LLAMA).to_text(5), "to_text: form is 5, expected a text"),
        (lambda: OPEN.sweep(LLAMA, over={"T": [1]}).to_parquet(5), "to_parquet: place is 5, expected a text or a path"),
        (lambda: OPEN.report(LLAMA, ignore="x"), "report: ignore is 'x', expected a list of a text"),
    ],
)
def test_a_wrong_kind_is_said_in_words(ask: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        ask()
    assert message in str(caught.value)


def test_ledgers_are_equal_by_content() -> None:
    ledger = LLAMA.ledger(tokens="2k")
    assert ledger == txcalc.load("llama-3.1-8b").ledger(tokens=2048) and hash(ledger) == hash(LLAMA.ledger(tokens=2048))
    assert ledger != LLAMA.ledger() and ledger != LLAMA.set(h_kv=4).ledger(tokens=2048) and ledger != 5
    assert LLAMA.ledger(dtype="fp32") != LLAMA.ledger()
    lengths = numpy().array([1, 2])
    assert LLAMA.ledger(tokens=lengths) == LLAMA.ledger(tokens=lengths) != LLAMA.ledger(tokens=lengths + 1)


def test_every_result_has_a_title_and_a_short_repr() -> None:
    for result in (txcalc.presets("gpt2*"), txcalc.entropy("0.5,0.5"), txcalc.presets("h100*", hardware=True)):
        name = result.schema.split("/")[1]
        assert repr(result).startswith(f"<txcalc.{name}: ") and not repr(result).endswith(": >")
        assert re.search(r"<title>\w+", result.to_text("html"))
    assert re.fullmatch(r"<txcalc.report: a page of [\d,]+ bytes>", repr(txcalc.report("gpt2")))


def numpy() -> Any:
    return pytest.importorskip("numpy")


def test_pages_and_descriptions_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    page = txcalc.report(LLAMA, title="mine")
    assert page.save(tmp_path / "plan.html").read_text() == page.html and "<title>mine</title>" in page.html
    assert '"price":2.37' in txcalc.report("gpt2", train="h100-sxm:8@2.37", layouts="fsdp=8").html
    with pytest.raises(InputError, match="exists already"):
        page.save(tmp_path / "plan.html")
    export = txcalc.export(LLAMA, "toml", tmp_path / "mine.toml", changes={"h_kv": 4})
    with pytest.raises(InputError, match="exists already"):
        txcalc.export(LLAMA, "toml", tmp_path / "mine.toml")
    assert txcalc.export(LLAMA, "toml", tmp_path / "mine.toml", changes={"h_kv": 4}, force=True) == export
    assert (
        txcalc.load(tmp_path / "mine.toml") == LLAMA.set(h_kv=4) and export.text == (tmp_path / "mine.toml").read_text()
    )


NOTEBOOK = ROOT / "docs" / "notebook.ipynb"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_notebook_runs(tmp_path: Path) -> None:
    client = pytest.importorskip("nbclient", reason="needs nbclient (pip install '.[test]')")
    formats = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = formats.read(NOTEBOOK, as_version=4)
    client.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert (tmp_path / "sweep.parquet").is_file()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    assert any("image/svg+xml" in output["data"] for output in shown)
    assert sum("text/html" in output["data"] for output in shown) >= 6


def test_numbers_of_numpy_are_pythons_own() -> None:
    """A product of theirs wraps at 2^63 and says nothing."""
    numpy = pytest.importorskip("numpy")
    large = txcalc.load("llama-3.1-405b")
    wide = large.set(L=numpy.int64(126), D=numpy.int32(16384), h_kv=numpy.int64(4))
    assert wide == large.set(h_kv=4) and type(wide.params) is int
    assert wide.ledger(batch=4096, tokens="128k").total("flops") == large.set(h_kv=4).ledger(4096, 131072).total(
        "flops"
    )
    description = {
        "d_model": numpy.int64(512),
        "n_layers": 6,
        "attention": {"n_heads": numpy.int32(8)},
        "feed_forward": {"d_ff": 2048, "gated": True},
    }
    assert txcalc.compare(txcalc.load(description), "gpt2").to_dict() and type(txcalc.load(description).params) is int
    assert [row.context for row in txcalc.kv("gpt2", numpy.array([512, 1024]), 1).rows] == [512, 1024]
    with pytest.raises(txcalc.TxcalcError):
        txcalc.kv("gpt2", numpy.array([512.5]))


def test_a_configs_dict_may_count_its_labels() -> None:
    config = {"model_type": "gpt2", "vocab_size": 99, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}
    labels = {"id2label": {0: "a", 1: "b"}, "label2id": {"a": 0, "b": 1}}
    assert txcalc.load({**config, **labels}).params == txcalc.load(config).params


def test_help_lists_every_argument() -> None:
    """Each argument stands once, in the declaration; `help` has it too."""
    text = inspect.getdoc(txcalc.kv) or ""
    assert text.startswith("The KV cache in bytes over contexts")
    lines = dict(line.split(maxsplit=1) for line in text.partition("Arguments:\n")[2].splitlines())
    assert lines["context"].startswith("Context length: cached and new tokens")
    assert lines.keys() == inspect.signature(txcalc.kv).parameters.keys()


def test_models_are_given_one_by_one_or_in_a_list() -> None:
    pair = [txcalc.load("gpt2"), txcalc.load("gpt2-xl")]
    assert txcalc.compare(pair) == txcalc.compare(*pair)
    assert OPEN.compare(pair[0], set=["h_kv=1"]) == txcalc.compare(pair[0], variants=["h_kv=1"])
    assert txcalc.crossover(pair, formulas=False) == txcalc.crossover(*pair, formulas=False)
    with pytest.raises(InputError, match="1 given"):
        txcalc.compare(pair[:1])


def test_a_ledger_takes_lengths_by_letter_and_in_lists() -> None:
    model = txcalc.load("t5-small")
    assert model.ledger(B=2, T="1k", T_src=512) == model.ledger(batch=2, tokens=1024, source=512)
    with pytest.raises(InputError, match="tokens and T say the same thing twice"):
        model.ledger(tokens=512, T=1024)
    flops = [model.ledger(tokens=tokens).total("flops") for tokens in (1024, 2048)]
    assert numpy().array_equal(model.ledger(tokens=["1k", 2048]).total("flops"), flops)


def test_an_answer_within_an_answer_shows_its_figures() -> None:
    flops = txcalc.show("gpt2", tokens=1).flops
    assert repr(flops).startswith(f"Flops(forward=ForwardFlops(matmul={flops.forward.matmul}, ")


def test_dir_shows_what_people_look_for_and_errors_name_it() -> None:
    model, answer = txcalc.load("gpt2"), txcalc.kv("gpt2")
    shown = {name for name in dir(model) if not name.startswith("_")}
    assert {"params", "flops_per_token", "n_layers", "summary", "ledger"} <= shown
    assert all(hasattr(model, name) for name in shown) and not shown & {"root", "builder", "tower_roots", "cache"}
    assert "draw" not in dir(answer) and "rows" in dir(answer)
    for owner, name, near in (
        (model, "num_params", "params"),
        (model, "flops", "flops_per_token"),
        (answer, "row", "rows"),
    ):
        with pytest.raises(AttributeError, match=f"{name}.*did you mean {near}"):
            getattr(owner, name)
    assert copy.deepcopy(model) == model and not hasattr(model, "__array__")


def test_options_classes_explain_their_fields() -> None:
    for name in ("Engine", "Limits", "Load", "Parallelism", "Speculation", "Cluster", "Mfu", "RecipeOptions", "Run"):
        kind = getattr(txcalc, name)
        for field in set(kind.__struct_fields__) - {"gpus", "price"}:  # which the --gpu of a command says
            assert re.search(rf"^    {field} ", kind.__doc__, re.M), (name, field)


def test_a_formula_is_an_expression_of_sympy() -> None:
    answer = txcalc.formula("gpt2", tokens=8)
    (row,) = (row for row in answer.rows if (row.part, row.quantity) == ("total", "flops"))
    expression = answer.to_sympy()
    values = {letter.letter: letter.value for letter in answer.letters}
    assert expression.subs({symbol: values[symbol.name] for symbol in expression.free_symbols}) == row.value
    assert "expressions" not in answer.to_dict()
    with pytest.raises(txcalc.UnknownName, match="did you mean flops"):
        answer.to_sympy("flop")
    with pytest.raises(txcalc.UnknownName, match="no part named 'haed'"):
        answer.to_sympy("flops", "haed")


def test_a_grid_has_each_point_once() -> None:
    from txcalc.questions.report import ServingGrid

    grid = ServingGrid(context="4k,1k,4096", concurrency="8,8").plan_grid()
    assert (grid.contexts, grid.users) == ((1024, 4096), (8,))
