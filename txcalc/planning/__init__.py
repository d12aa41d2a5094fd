"""Questions asked of a ledger: rules of thumb, memory, training, crossovers, published conventions."""
