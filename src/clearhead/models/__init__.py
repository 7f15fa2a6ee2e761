"""Model families, loading, capture and proof: the only code that touches transformers."""
