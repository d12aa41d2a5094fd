"""The tables of `calibrate`."""

from __future__ import annotations

from txcalc.questions.calibrate import Calibrate
from txcalc.render.measurements import ceilings, chosen_runs
from txcalc.render.report import Report


def report(answer: Calibrate, form: str) -> Report:
    """Rates by kernel, shares, and the predicted steps of the reference model."""
    written = f"written to {answer.file}: txcalc deploy MODEL --gpu {answer.file}" if answer.file else ""
    header = [f"{answer.accelerator['title']}: {answer.rounds} rounds, {chosen_runs(answer)} of each counts"]
    notes = [written or "nothing was written (--out FILE.toml)", *answer.accelerator.get("notes", ())]
    return Report(ceilings(answer), header, notes)
