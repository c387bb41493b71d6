"""The conversation outside every process: what is stored of it, where, and who may write."""
