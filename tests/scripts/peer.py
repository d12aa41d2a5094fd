"""What the peer says of the measured servers: `python tests/scripts/peer.py`, with PyPI `aiconfigurator` 0.12.0.

Asks its `cli_estimate` (aggregated, mode SILICON, its own defaults but for the cache's dtype) for every row of
`tests/data/serving/servers.csv`, and writes `peer.csv` beside it: the row's number and latencies in milliseconds.
`servers.py --peer` prints its errors beside the library's. It reads kernels alone: its wheel also has measured servers
(`systems/silicon_sample.csv`), which should be removed before.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

from aiconfigurator.cli.api import cli_estimate
from aiconfigurator.sdk.perf_database import get_latest_database_version
from servers import DATA, Row, cache_of, form, rows

# The checkpoint of each model and format, whose own formats the peer infers.
CHECKPOINTS = {
    "Llama-3.1-70B fp8": "nvidia/Llama-3.1-70B-Instruct-FP8",
    "GLM-5 fp8-block": "zai-org/GLM-5-FP8",
    "GLM-5 nvfp4": "nvidia/GLM-5-NVFP4",
    "MiniMax-M2.5 nvfp4": "nvidia/MiniMax-M2.5-NVFP4",
    "Qwen3.5-397B-A17B nvfp4": "nvidia/Qwen3.5-397B-A17B-NVFP4",
}
CHECKPOINTS |= {
    f"DeepSeek-{name} nvfp4": "nvidia/DeepSeek-V3.1-NVFP4" for name in ("R1", "V3", "R1-NVFP4", "V3.1-NVFP4")
}


@cache
def version(gpu: str, engine: str) -> str | None:
    """The newest of an engine's tables, which the peer takes unless told; finding it takes it seconds."""
    found: str | None = get_latest_database_version(system=gpu, backend=engine)
    return found


def modes(row: Row) -> Iterator[dict[str, str]]:
    """What to say of formats, in turn until the peer has tables for it: of gpt-oss those that engines take first."""
    if f"{row.name} {form(row)}" == "Qwen3.5-397B-A17B fp8-block":
        yield dict.fromkeys(("gemm_quant_mode", "moe_quant_mode"), "fp8_block")
        return
    if form(row) == "mxfp4":
        yield from ({"moe_quant_mode": f"w4a8_mxfp4_mxfp8{of}"} for of in ("", "_trtllm") if row.gpu.startswith("b"))
    yield {}


def answer(row: Row) -> tuple[float, float]:
    """TTFT and TPOT in milliseconds. Errors: whatever the peer raises at last."""
    *first, last = modes(row)
    for asked in first:
        with suppress(Exception):
            return estimate(row, asked)
    return estimate(row, last)


def estimate(row: Row, asked: dict[str, str]) -> tuple[float, float]:
    width = row.tp * row.dp
    found = cli_estimate(
        CHECKPOINTS.get(f"{row.name} {form(row)}", row.model),
        row.gpu,
        backend_name=row.engine.split()[0],
        backend_version=version(row.gpu, row.engine.split()[0]),
        isl=row.prompt,
        osl=row.answer,
        batch_size=-(-row.concurrency // row.dp),
        tp_size=row.tp,
        attention_dp_size=row.dp,
        moe_tp_size=width // row.ep,
        moe_ep_size=row.ep,
        kvcache_quant_mode={"bf16": "bfloat16"}.get(cache_of(row), cache_of(row)),
        **asked,
    )
    return found.ttft, found.tpot


def main() -> None:
    refused = Counter[str]()
    with (DATA / "peer.csv").open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["row", "ttft_ms", "tpot_ms"])
        for number, row in enumerate(rows()):
            try:
                ttft, tpot = answer(row)
            except Exception as error:  # whatever the peer raises is its refusal
                refused[f"{row.name}: {type(error).__name__}: {str(error).splitlines()[0][:90]}"] += 1
            else:
                out.writerow([number, f"{ttft:.5g}", f"{tpot:.5g}"])
    for reason, many in refused.most_common():
        print(f"{many:5} rows refused: {reason}")


if __name__ == "__main__":
    main()
