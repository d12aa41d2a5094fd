"""What follows from a ledger: memory, training and serving plans, crossovers, published conventions, rules of thumb."""
