"""The commands that serve a plan: what was planned, in the engines' own flags."""

from __future__ import annotations

import json
import re

import pytest
from command import Command

emit = Command("deploy")


LLAMA = ("llama-3.1-70b", "--gpu", "h100-sxm:8", "--tp", "4", "--context", "8k", "--concurrency", "32")


def test_a_dense_model_in_every_engines_words() -> None:
    code, out, _ = emit(*LLAMA, "--kv", "fp8", "--emit", "vllm")
    assert code == 0 and out.splitlines() == [
        "vllm serve meta-llama/Llama-3.1-70B \\",
        "  --tensor-parallel-size 4 \\",
        "  --data-parallel-size 2 \\",
        "  --max-model-len 8192 \\",
        "  --max-num-seqs 16 \\",
        "  --max-num-batched-tokens 8192 \\",
        "  --block-size 16 \\",
        "  --gpu-memory-utilization 0.9 \\",
        "  --kv-cache-dtype fp8",
    ]
    _, out, _ = emit(*LLAMA, "--weights", "fp8", "--emit", "sglang")
    assert out.startswith("# the checkpoint's weights are fp8\npython -m sglang.launch_server --model-path ")
    assert all(f"{flag} \\" in out for flag in ("--tp-size 4", "--dp-size 2", "--max-running-requests 16"))
    _, out, _ = emit(*LLAMA, "--emit", "trtllm")
    assert out.startswith("# 2 of these, each on 4 GPUs, behind a load balancer\ntrtllm-serve ")
    assert "--tp_size 4 \\" in out and "--max_batch_size 16 \\" in out and "--max_num_tokens 8192 \\" in out
    kept = [emit(*LLAMA, *more, "--emit", "trtllm")[1].split()[-1] for more in ([], ["--engine", "trtllm"])]
    assert 0.7 < float(kept[0]) < float(kept[1]) == 0.9  # what weights leave: less a tenth of all, or of itself
    fraction = float(emit(*LLAMA, "--emit", "sglang")[1].partition("--mem-fraction-static ")[2].split()[0])
    assert 0.85 < fraction < 0.9  # but for activations


def test_experts_that_copies_share() -> None:
    argv = ("deepseek-v3", "--gpu", "h200:16", "--weights", "fp8-block", "--tp", "1", "--dp", "16", "--ep", "16")
    out = emit(*argv, "--concurrency", "64", "--emit", "vllm")[1]
    assert "# on 2 nodes" in out and "--data-parallel-size 16 \\" in out and "--enable-expert-parallel \\" in out
    out = emit(*argv, "--concurrency", "64", "--emit", "sglang")[1]
    assert "--tp-size 16 \\" in out and "--dp-size 16 \\" in out and "--enable-dp-attention \\" in out
    assert "--ep-size 16 \\" in out and "--max-running-requests 64 \\" in out
    assert "--chunked-prefill-size 131072 \\" in out  # of all 16 copies, 8,192 each
    sliced = (*argv[:-2], "--etp", "16", "--concurrency", "64", "--emit")
    for engine, flags in (
        ("vllm", "--tensor-parallel-size 1 \\\n  --data-parallel-size 16 \\\n  --max-model-len"),
        ("sglang", "--tp-size 16 \\\n  --dp-size 16 \\\n  --enable-dp-attention \\\n  --context-length"),
        ("trtllm", "--tp_size 16 \\\n  --max_seq_len"),
    ):
        assert flags in emit(*sliced, engine)[1]
    out = emit(*argv, "--concurrency", "64", "--gather", "50", "--emit", "trtllm")[1]
    assert "--tp_size 16 \\" in out and "--ep_size 16 \\" in out and "load balancer" not in out
    assert "enable_attention_dp: true\nattention_dp_config:\n  enable_balance: true\n  timeout_iters: 50\n" in out
    out = emit(*argv, "--concurrency", "64", "--poll", "30", "--emit", "sglang")[1]
    assert "--scheduler-recv-interval 30" in out
    for engine, ask in (("vllm", "--poll"), ("sglang", "--gather"), ("trtllm", "--poll")):
        code, out, err = emit(*argv, ask, "9", "--emit", engine)
        assert (code, out) == (2, "") and f"{engine} has no flag for {ask}" in err
    code, out, err = emit(*argv, "--gather", "1", "--emit", "vllm")
    assert (code, out) == (2, "") and "vllm has no flag for --gather" in err
    wide = ("deepseek-v3", "--gpu", "h200:16", "--weights", "fp8-block", "--tp", "2", "--dp", "8", "--ep", "16")
    code, out, err = emit(*wide, "--emit", "trtllm")
    assert (code, out) == (2, "") and "TensorRT-LLM's flags do not say the layout" in err


def test_drafts_and_adapters_in_every_engines_words() -> None:
    asked = (*LLAMA[:3], "--tp", "8", "--context", "8k", "--acceptance", "70%")
    many = ("--draft", "4:llama-3.2-1b", "--adapters", "4", "--adapter-rank", "20")
    out = emit(*asked, *many, "--emit", "vllm")[1]
    config = '{"method": "draft_model", "model": "meta-llama/Llama-3.2-1B", "num_speculative_tokens": 4}'
    assert f"--speculative-config '{config}' \\" in out and out.startswith("# name each adapter: --lora-modules")
    assert out.endswith("  --enable-lora \\\n  --max-loras 4 \\\n  --max-lora-rank 32\n")  # the next that it has
    out = emit(*asked, *many, "--emit", "sglang")[1]
    assert "--speculative-algorithm STANDALONE \\" in out and "--speculative-num-draft-tokens 5 \\" in out
    assert "--max-loras-per-batch 4 \\" in out and "--max-lora-rank 20 \\" in out
    out = emit(*asked, *many, "--kv", "fp8", "--emit", "trtllm")[1]
    assert "<<'END'\nkv_cache_config:\n  dtype: fp8\nspeculative_config:\n  decoding_type: DraftTarget\n" in out
    assert "  max_draft_len: 4\n  speculative_model: meta-llama/Llama-3.2-1B\ndisable_overlap_scheduler: true\n" in out
    assert "  max_lora_rank: 20\n  max_loras: 4\n" in out and out.endswith(" --extra_llm_api_options options.yaml\n")
    out = emit(*asked, "--draft", "4", "--emit", "dynamo")[1]
    assert '"method": "ngram", "num_speculative_tokens": 4' in out and "proposed at no cost" in out
    code, _, err = emit(*asked[:3], "--tp", "4", "--pp", "2", *asked[-2:], "--draft", "4", "--emit", "vllm")
    assert code == 2 and "vLLM drafts in no pipeline: --pp 1" in err


@pytest.mark.slow
def test_a_models_own_layer_drafts_in_every_engines_words() -> None:
    asked = ("deepseek-v3", "--gpu", "h200:8", "--context", "8k", "--draft", "2:mtp", "--acceptance", "70%", "--emit")
    assert '"method": "mtp", "num_speculative_tokens": 2}' in emit(*asked, "vllm")[1]
    sglang, trtllm = (emit(*asked, engine)[1] for engine in ("sglang", "trtllm"))
    assert "--speculative-algorithm EAGLE \\" in sglang and "--speculative-draft-model-path" not in sglang
    assert "  decoding_type: MTP\n  max_draft_len: 2\n  num_nextn_predict_layers: 2\nEND" in trtllm


@pytest.mark.slow
def test_dynamo_starts_the_workers_of_both_pools() -> None:
    code, out, _ = emit(*LLAMA[:3], "--concurrency", "32", "--prompt", "7k", "--answer", "1k", "--emit", "dynamo")
    assert code == 0 and out.startswith("python -m dynamo.frontend\n# ") and "--disaggregation-mode" not in out
    apart = emit(
        *LLAMA[:2], "h100-sxm:16", "--prompt", "7k", "--answer", "1k", "--disaggregate", "8", "--emit", "dynamo"
    )
    assert apart[0] == 0
    front, first, prefill, second, decode = re.split(r"\n(?=#|python)", apart[1].rstrip())
    assert front == "python -m dynamo.frontend" and first.endswith("for prefill") and second.endswith("for decode")
    for text, role in ((prefill, "prefill"), (decode, "decode")):
        assert text.startswith(
            "python -m dynamo.vllm \\\n  --model meta-llama/Llama-3.1-70B \\\n  --tensor-parallel-size "
        )
        assert f"--disaggregation-mode {role} \\" in text and "NixlConnector" in text
    code, _, err = emit(*LLAMA[:2], "h100-sxm:16", "--disaggregate", "8", "--emit", "vllm")
    assert code == 2 and "--emit dynamo" in err


def test_requests_at_random_may_all_run_at_once() -> None:
    """As many as the cache holds, not as many as there are on average."""
    argv = ("llama-3.1-8b", "--gpu", "h100-sxm:1", "--prompt", "6k", "--answer", "128", "--rate", "2/s")
    out = emit(*argv, "--emit", "vllm")[1]
    assert (
        int(out.partition("--max-num-seqs ")[2].split()[0]) == json.loads(emit(*argv, "--json")[1])["max_concurrency"]
    )


def test_a_plan_that_fails_still_exits_with_one() -> None:
    code, out, err = emit("llama-3.1-8b", "--gpu", "h100-sxm:1", "--tpot", "1ms", "--emit", "vllm")
    assert code == 1 and out.startswith("vllm serve ") and "note: misses a limit: TPOT" in err
