"""The formulas: every part of a model as a frozen Struct, from a linear layer to a whole encoder–decoder."""
