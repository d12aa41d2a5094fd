"""txcalc: what a Transformer costs, as a formula, an exact integer and a proof.

>>> import txcalc
>>> model = txcalc.load("llama-3.1-8b")
>>> model.params
8030261248
>>> model.ledger(tokens=2048).total("flops")
32938104193024
"""

from txcalc.errors import InputError, MissingExtra, Refuted, TxcalcError, UnknownName
from txcalc.ledger import Ledger
from txcalc.model import Model
from txcalc.sources import load

__all__ = ["InputError", "Ledger", "MissingExtra", "Model", "Refuted", "TxcalcError", "UnknownName", "load"]
__version__ = "0.2.0"
