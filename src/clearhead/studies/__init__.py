"""Studies: the tables and figures of a paper, each beside its published value."""
