"""The laboratory: what is trained on, what is trained, how it is scored."""
