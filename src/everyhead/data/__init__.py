"""Files, built-in corpora, tokenizers and batches. Floor 1: imports nothing of layers or models."""
