"""Text: corpora and their splits, windows of tokens, tokenizers."""
