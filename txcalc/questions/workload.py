"""The workload and the conventions, as every answer describes them."""

from __future__ import annotations

from txcalc.ledger import Ledger
from txcalc.model import Model
from txcalc.questions.answers import Answer


class WorkloadInfo(Answer, kw_only=True):
    """The workload: sequences, new tokens per sequence, cached tokens, and encoder positions (None without an encoder
    of its own length)."""

    batch: int
    tokens: int
    past: int
    source: int | None

    @classmethod
    def of(cls, model: Model, ledger: Ledger) -> WorkloadInfo:
        work = ledger.work
        source = work.source if model.has_encoder_apart else None
        return cls(batch=work.batch, tokens=work.tokens, past=work.past, source=source)

    def __str__(self) -> str:
        sizes = {"batch": self.batch, "tokens": self.tokens, "past": self.past, "source": self.source}
        return ", ".join(f"{name} {value:,}" for name, value in sizes.items() if value is not None)


class Convention(Answer, kw_only=True):
    """The conventions of FLOPs; `mla`: how latent attention is computed, None without it."""

    flops_per_mac: int
    attention: str
    logits: str
    mla: str | None

    @classmethod
    def of(cls, model: Model, ledger: Ledger, attention: str) -> Convention:
        work = ledger.work
        latent = ("absorbed" if work.absorbed else "expanded") if model.has_latents else None
        return cls(flops_per_mac=2, attention=attention, logits="last" if work.last_logits else "all", mla=latent)

    def __str__(self) -> str:
        words = [f"{self.flops_per_mac} FLOPs per multiply-add", f"{self.attention} attention", f"{self.logits} logits"]
        return "; ".join([*words, *([f"MLA {self.mla}"] if self.mla else [])])
