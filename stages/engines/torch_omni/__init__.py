"""Qwen3-Omni's stages in torch, from the `transformers` library: audio tower, Thinker, Talker, Code2Wav.

What they hand over is the model's own: embeddings and hidden states, codec frames, samples at 24 kHz. Without a
checkpoint a tiny model with random weights stands in. It talks nonsense, and does so exactly as the library does.
"""
