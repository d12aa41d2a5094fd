"""Accelerators: every preset against a second copy of the datasheets' figures, and the lint that finds a wrong one."""

from __future__ import annotations

import csv
import io
import json
import tomllib
from collections.abc import Mapping
from fractions import Fraction
from math import inf
from pathlib import Path
from typing import Any

import pytest
from command import typed
from msgspec.structs import replace
from paths import DATA

import txcalc
from txcalc import hardware
from txcalc.errors import InputError, UnknownName
from txcalc.hardware import cards
from txcalc.hardware.curves import Curve, Link
from txcalc.questions.phrases import parse_priced
from txcalc.render.csv import as_csv
from txcalc.sources.presets import folder
from txcalc.units import parse_bytes

DATASHEETS = json.loads((DATA / "hardware.json").read_text())
# Left out on purpose, for sources disagree by factors; and what a datasheet row has no word for.
DISPUTED = {("b300", "int8"), ("gb300", "int8"), ("gaudi-3", "fp16")}
PROMISED = ("a100-80gb-sxm", "h100-sxm", "h100-pcie", "h200", "b200", "mi300x", "l4", "l40s", "rtx-4090", "tpu-v5e")


def raw(name: str) -> dict[str, Any]:
    return tomllib.loads((folder() / "hardware" / f"{name}.toml").read_text())


def lint(name: str, table: Mapping[str, Any]) -> list[str]:
    """What is wrong with a preset: another figure than the datasheet's, a sparse peak, GB for GiB, no source."""
    faults = []
    try:
        card = hardware.parse(table, name, name)
    except InputError as error:
        return [str(error)]
    if name in DATASHEETS:
        sheet = DATASHEETS[name]
        of = sheet.get("devices", 1)  # whose sheet it is together; the link is each one's
        peaks = {k: Fraction(str(v)) * 10**12 / of for k, v in sheet["peaks"].items() if (name, k) not in DISPUTED}
        if peaks != dict(card.peaks):
            faults.append(f"peaks are {card.peaks}, the datasheet has {peaks}")
        if card.bandwidth * of != sheet["bandwidth"] * 10**9:
            faults.append("bandwidth is not the datasheet's")
        by_slot = sheet["link"] is None and "PCIe" in card.sources.get("link", "")  # a datasheet does not give it
        if not by_slot and card.link != (None if sheet["link"] is None else Fraction(str(sheet["link"])) * 10**9):
            faults.append("link is not the datasheet's, one way")
        if (card.power and card.power * of) != sheet["power"]:
            faults.append("power is not the datasheet's")
        size, unit = sheet["memory"]
        vendor = table["memory"].get("vendor")
        if size is not None and (vendor is None or vendor["value"] != f"{size // of}{unit}"):
            faults.append(f"vendor's memory is not {size} {unit}")
    vendor, driver = (
        parse_bytes(table["memory"][k]["value"]) if k in table["memory"] else None for k in ("vendor", "driver")
    )
    if vendor and driver and not 0.93 < driver / vendor < 1.08:
        faults.append("driver and vendor differ by more than GB from GiB")
    if "bf16" in card.peaks and card.peaks.get("fp8", 0) > Fraction(205, 100) * card.peaks["bf16"]:
        faults.append("fp8 is more than twice bf16: with sparsity?")
    if "fp8" in card.peaks and card.peaks.get("fp4", 0) > Fraction(401, 100) * card.peaks["fp8"]:
        faults.append("fp4 is more than four times fp8: with sparsity?")
    return faults


@pytest.mark.parametrize("name", hardware.names())
def test_a_preset_is_what_its_datasheet_says(name: str) -> None:
    assert lint(name, raw(name)) == []


def test_every_datasheet_row_has_a_preset() -> None:
    assert {*DATASHEETS, "a10g"} == set(hardware.names())
    assert set(PROMISED) <= set(hardware.names())


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("h100-sxm", ("peak", "bf16", "value"), 1979),  # with sparsity
        ("l40s", ("peak", "fp8", "value"), 1466),
        ("h100-pcie", ("peak", "bf16", "value"), 989),  # the SXM's
        ("h100-sxm", ("memory", "vendor", "value"), "80GiB"),
        ("h200", ("memory", "driver", "value"), "150GiB"),
        ("h100-sxm", ("link", "value"), "900GB"),  # both ways
        ("h100-sxm", ("bandwidth", "value"), "3072GB"),
        ("h100-sxm", ("power", "value"), 350),
        ("h100-sxm", ("peak", "fp8", "source"), "nobody"),
        ("h100-sxm", ("bandwidth",), {"value": "3350GB"}),
        ("h100-sxm", ("peak", "fp7"), {"value": 1, "source": "ml-engineering"}),
    ],
)
def test_the_lint_finds_a_wrong_value(name: str, path: tuple[str, ...], value: Any) -> None:
    wrong = place = raw(name)
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert lint(name, wrong)


def test_values_of_the_list_are_in_the_units_of_their_headings() -> None:
    header, row = csv.reader(io.StringIO(as_csv(txcalc.presets("h100-sxm", hardware=True).report())))
    cells = dict(zip(header, row, strict=True))
    assert Fraction(cells["memory GiB"]) * 2**30 == hardware.load("h100-sxm").memory
    assert (cells["GB/s"], cells["bf16 TFLOP/s"], cells["link GB/s"], cells["W"]) == ("3350", "989", "450", "700")
    header, row = csv.reader(io.StringIO(as_csv(txcalc.presets("rtx-4090", hardware=True).report())))
    assert row[header.index("bf16 TFLOP/s")] == "165.15" and row[header.index("link GB/s")] == "32"


def test_what_is_not_known_is_refused_when_it_is_needed() -> None:
    with pytest.raises(InputError, match=r"a100-80gb-sxm: dtype of the peak is 'fp8', expected one of fp32, tf32"):
        hardware.load("a100-80gb-sxm").peak("fp8")
    with pytest.raises(InputError, match="its peak is not known"):
        hardware.load("24GB@600GB/s").peak("bf16")
    with pytest.raises(InputError, match="m4-pro: its link is not known"):
        hardware.load("m4-pro").needed("link")
    assert hardware.load("h100-sxm").needed("power") == 700


def test_an_unknown_accelerator_has_near_names() -> None:
    with pytest.raises(UnknownName, match="did you mean h100-sxm"):
        hardware.load("h100-sxn")
    with pytest.raises(UnknownName):
        hardware.load("../models/gpt2")


MINE = """
title = "Mine"
bandwidth = { value = "1TB", source = "me" }
[memory]
vendor = { value = "32GiB", source = "me" }
[sources]
me = "measured"
"""


def test_all_faults_of_a_file_at_once() -> None:
    wrong = {
        "title": 3,
        "bandwith": {"value": "1TB", "source": "me"},
        "memory": {"vendor": {"value": "16Gb", "source": "me"}, "size": 3},
        "power": {"value": -1, "source": "me"},
        "peak": {"bf16": {"value": float("inf"), "source": "me"}, "fp8": 3},
        "sources": {"me": "measured"},
    }
    with pytest.raises(InputError) as refusal:
        hardware.parse(wrong, "wrong", "wrong.toml")
    text = str(refusal.value)
    for words in (
        "'bandwith' is not a key of it (did you mean bandwidth?)",
        "may mean bits",
        "memory.size is not known",
        "bandwidth is missing",
        "power.value is -1, expected a number of watts above 0",
        "peak.bf16.value is inf",
        "peak.fp8 is 3, expected a table { value = …, source = … }",
        "title is 3, expected a text",
    ):
        assert words in text, text


def test_what_is_between_nodes_needs_their_size(tmp_path: Path) -> None:
    card = 'link_between = { value = "50GB", source = "me" }'
    path = tmp_path / "mine.toml"
    path.write_text(MINE.replace("[memory]", f"{card}\nnode = {{ value = 8, source = 'me' }}\n[memory]"))
    accelerator = hardware.load(path)
    assert (accelerator.link_between, accelerator.node) == (50 * 10**9, 8)
    path.write_text(MINE.replace("[memory]", f"{card}\n[memory]"))
    with pytest.raises(InputError, match="link_between needs node"):
        hardware.load(path)
    path.write_text(MINE.replace("[memory]", f"{card}\nnode = {{ value = 2.5, source = 'me' }}\n[memory]"))
    with pytest.raises(InputError, match=r"node.value is 2.5, expected a number of accelerators above 0"):
        hardware.load(path)


MEASURED = """
[calibration]
memory = { value = 0.91, source = "me" }
launch_s = { value = 4.2e-6, source = "me" }
matmul.bf16 = { value = 1, source = "me" }
"""


def test_a_calibrated_card_is_used_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the card's own name, with single figures for all kernels, decides what deploy and train say of it
    without being asked for; its sources come along."""
    pytest.importorskip("tomli_w", reason="tomli_w is not installed: pip install 'txcalc[export]'")
    from txcalc.sources.export import as_toml

    plain = hardware.load("h100-sxm")
    flat = {"memory": 0.5, "matmul.bf16": 0.4, "launch_s": 9e-6, "host_s": 20e-6}
    source = "measured by txcalc calibrate on a card that never was, 2026-11-22"
    calibrated = replace(plain, calibration=plain.efficiency.overlaid(flat, dict.fromkeys(flat, source)))
    links = plain.efficiency.overlaid({"link": 0.5}, {"link": source}).links.values()
    assert {(link.share, link.growth, link.crowd) for link in links} == {(0.5, 0.0, 0.0)}
    fp8 = plain.efficiency.overlaid({"matmul.fp8": 0.4}, {"matmul.fp8": source}).curve("matmul", "fp8")
    usual = plain.efficiency.curve("matmul", "fp8")  # whose memory and starts stay
    assert (fp8.compute, fp8.memory, fp8.start_s, fp8.depth_s) == (0.4, usual.memory, usual.start_s, usual.depth_s)
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "h100-sxm.toml").write_text(as_toml(hardware.describe(calibrated)))
    before = speeds()
    monkeypatch.setenv("TXCALC_PRESETS", str(tmp_path))
    efficiency = hardware.load("h100").efficiency
    assert {key: efficiency.figures()[key] for key in flat} == flat
    assert all(efficiency.sources[key] == source for key in flat)
    assert (hardware.load("h100").link, hardware.load("h100").node) == (plain.link, plain.node)
    after = speeds()
    assert after["tpot"] > 1.5 * before["tpot"] and after["step"] > 1.5 * before["step"]
    assert source in after["sources"] and source not in before["sources"]


def test_an_engines_kernels_stand_beside_the_others() -> None:
    before = hardware.load("a100-80gb-sxm").efficiency
    flat = {"memory": 0.5, "launch_s": 9e-6, "host_s": 20e-6, "matmul.fp8": 0.4, "attention_prefill": 0.3}
    after = before.with_kernels("torch", flat, dict.fromkeys(flat, "here"))
    assert (after.memory, after.launch_s, after.host_s) == (0.5, 9e-6, 20e-6)
    assert after.cited["memory"] == after.cited["torch.matmul.fp8"] == after.cited["torch.attention.prefill"] == "here"
    products, prompts = after.curves["torch.matmul.fp8"], after.curves["torch.attention.prefill"]
    assert (products.compute, products.memory, products.start_s, prompts.compute) == (0.4, 0.5, 9e-6, 0.3)
    assert products.quantise == before.curve("matmul", "fp8").quantise > 0
    assert prompts.score == before.curve("attention", "prefill").score > 0
    assert after.has("torch") and not before.has("torch") and after.without("torch").curves == before.curves
    assert {key: after.curves[key] for key in before.curves} == before.curves
    assert not any(key.startswith("torch.") for key in after.without("torch").cited)
    assert Curve() == (1, 1, 0, 0, inf, 0, 0, 0, 0, 0, 0, 2.5, 0, 0) and Link() == (1, 0, 0, 0, 0)


def speeds() -> dict[str, Any]:
    """What deploy and train say of an H100."""
    deploy = ["deploy", "llama-3.1-8b", "--gpu", "h100:1", "--concurrency", "8", "--context", "4k", "--json"]
    train = ["train", "llama-3.2-1b", "--gpu", "h100:1", "--tokens", "2048", "--layout", "dp=1", "--json"]
    served, trained = (json.loads(typed(*argv).stdout) for argv in (deploy, train))
    used = {entry["source"] for entry in served["speed"]["efficiency"].values()}
    return {"tpot": served["speed"]["tpot_s"], "sources": used, "step": trained["step_s"]["achievable"]}


@pytest.mark.parametrize(
    "name", [*hardware.names(), "p5.48xlarge", "p5.4xlarge", "g5.48xlarge", "16GB@500GB/s@60TFLOPS"]
)
def test_a_description_that_is_written_reads_back(name: str) -> None:
    pytest.importorskip("tomli_w")
    import tomli_w

    card = hardware.load(name)
    card = replace(card, calibration=card.efficiency)
    back = hardware.parse(tomllib.loads(tomli_w.dumps(hardware.describe(card))), card.name, "written.toml")
    assert back == replace(card, sources=back.sources)
    assert back.sources.items() <= card.sources.items()  # the vendor's memory is left out where the driver's is known


def test_all_faults_of_a_calibration_at_once() -> None:
    wrong = tomllib.loads(MINE.replace("[memory]", MEASURED + "[memory]"))
    wrong["calibration"] |= {
        "memory": {"value": 1.2, "source": "me"},
        "link": {"value": 0, "source": "me"},
        "attention_decode": {"value": float("nan"), "source": "me"},
        "launch_s": {"value": -1e-6, "source": "me"},
        "collective_s": {"value": True, "source": "me"},
        "attention_prefill": 0.5,
        "matmul": {"bf16": {"value": 0.5, "source": "nobody"}, "bf61": {"value": 0.5, "source": "me"}},
        "speed": 3,
    }
    with pytest.raises(InputError) as refusal:
        hardware.parse(wrong, "wrong", "wrong.toml")
    assert len(refusal.value.faults) == 9, refusal.value
    for words in (
        "calibration.memory.value is 1.2, expected a share above 0 and at most 1",
        "calibration.link.value is 0,",
        "calibration.attention_decode.value is nan",
        "calibration.launch_s.value is -1e-06, expected seconds from 0 to below 1",
        "calibration.collective_s.value is True",
        "calibration.attention_prefill is 0.5, expected a table { value = …, source = … }",
        "calibration.matmul.bf16.source is 'nobody', expected a key of [sources]",
        "calibration.matmul.bf61 is not known",
        "calibration.speed is not known, expected one of attention_prefill",
    ):
        assert words in str(refusal.value), refusal.value
    for value in (3, {"matmul": 3}):
        with pytest.raises(InputError, match="expected a table"):
            hardware.parse({**wrong, "calibration": value}, "wrong", "wrong.toml")


@pytest.mark.parametrize("text", ["", "[memory", "memory = 3\nsources = 4\npeak = 'x'", "\x00", "notes = 3"])
def test_a_broken_file_is_one_message(text: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(InputError):
        hardware.load(path)


# As people write them, and as nvidia-smi, rocm-smi, hl-smi, macOS and JAX print them.
NAMES: dict[str, str] = json.loads((DATA / "hardware_names.json").read_text("utf-8"))


@pytest.mark.parametrize(("text", "name"), NAMES.items())
def test_names_that_people_use(text: str, name: str) -> None:
    assert hardware.load(text).name == name


def test_an_xtx_is_no_number_of_cards() -> None:
    assert [
        cards.split_count(text) for text in ("7900xtx", "7900xtx:2", "7900xt", "2x7900xtx", "4xt4", "8 x h100")
    ] == [
        (None, "7900xtx"),
        (None, "7900xtx:2"),
        (None, "7900xt"),
        (2, "7900xtx"),
        (4, "t4"),
        (8, "h100"),
    ]


def test_every_short_name_is_of_a_preset() -> None:
    assert set(cards.SHORT.values()) <= set(hardware.names())


def test_every_cloud_instance_has_the_accelerators_of_a_preset() -> None:
    for name in cards.instance_names():
        instance, card = cards.find_instance(name), hardware.load(name)
        assert instance and (card.name, card.node) == (instance.accelerator, instance.gpus), name
        assert card.link_between == instance.network
        assert instance.gpus == 1 or card.link, name  # else its GPUs could not talk to each other
    network = {"p5.48xlarge": 50 * 10**9, "standard_nd96amsr_a100_v4": 25 * 10**9, "g5.xlarge": None}
    assert {name: hardware.load(name).link_between for name in network} == network


def test_an_instance_is_all_its_gpus_and_its_price_is_of_them() -> None:
    assert parse_priced("p5.48xlarge@55") == ("p5.48xlarge", 8, 55 / 8)
    assert parse_priced("2xg5.12xlarge") == ("g5.12xlarge", 8, None)
    assert parse_priced("g5.xlarge") == ("g5.xlarge", None, None) and parse_priced("g5.xlarge:3")[1] == 3
    with pytest.raises(UnknownName, match=r"p5\.48xlarge"):
        hardware.load("p5.49xlarge")


def test_a_link_that_is_given_is_taken() -> None:
    with pytest.raises(InputError, match=r"--link 32GB/s"):
        hardware.load("m4-pro").needed("link")
    linked = hardware.load("rtx-4090").placed(node=4, network=10**9, link=25 * 10**9)
    assert linked.needed("link") == 25 * 10**9
    assert [linked.sources[key] for key in ("node", "link_between", "link")] == ["--node", "--network", "--link"]
    assert [hardware.load("rtx-4090").placed(node=node).node for node in (1, 1 << 16)] == [1, 1 << 16]
    with pytest.raises(InputError, match="--link is 0, expected a rate above 0"):
        hardware.load("rtx-4090").placed(link=0)


def test_a_card_by_numbers() -> None:
    small = hardware.load("16GB@500GB/s")
    assert (small.memory, small.bandwidth, small.peaks) == (16 * 10**9, 500 * 10**9, {})
    large = hardware.load("24GiB@1TB/s@80TFLOPS")
    assert (large.memory, large.bandwidth, large.peak("bf16")) == (24 * 2**30, 10**12, 80 * 10**12)
    for text in ("16@500", "16GB@500", "16@500GB/s"):
        with pytest.raises(InputError, match="expected a size and a bandwidth with their units"):
            hardware.load(text)
    with pytest.raises(InputError, match="expected its arithmetic with a unit"):  # or is it a price?
        hardware.load("16GB@500GB/s@60")


def test_a_chip_of_apples_with_less_memory() -> None:
    """Its GPU gets what Metal says: 11,453.25 MB of 16 GB and 28,991.03 of 36 (recommendedMaxWorkingSetSize)."""
    for text, name, most in (("m4-16gb", "m4-16gb", 11_453.25), ("M3 Max 36GB", "m3-max-36gb", 28_991.03)):
        chip, whole = hardware.load(text), hardware.load(name.rpartition("-")[0])
        assert (chip.name, chip.memory >> 30) == (name, int(name[-4:-2])) and chip.peaks == whole.peaks
        assert chip.visible == pytest.approx(most * 10**6, abs=10**4)
    assert hardware.load("strix-halo-128gb") == hardware.load("strix-halo")  # it has 127.65 GiB
    for text in ("m4-pro-128gb", "m4-pro-0gb"):
        with pytest.raises(InputError, match="expected at most 64GB of memory, as m4-pro is sold"):
            hardware.load(text)
    with pytest.raises(InputError, match="expected 192GB of memory, as mi300x is sold"):  # a card has one size
        hardware.load("mi300x-64gb")


@pytest.mark.parametrize("text", ["16GB@500", "4x16GB@500GB/s@60", "h100@cheap", "v100-sxm-16gb@cheap"])
def test_a_number_that_lacks_its_unit_is_no_price(text: str) -> None:
    with pytest.raises(InputError, match=r"unit|price per GPU-hour"):
        parse_priced(text)
