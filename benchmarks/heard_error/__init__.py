"""How far history is from what was heard, over a thousand replies that are cut at random points.

Theory of operation
    The synthetic engine speaks coded tones. `plan` draws callers from a seed: their transport, their network, how they
    tell what they played, and where and how they cut each reply. `line` carries the plan of one call out, over a
    WebSocket or WebRTC, and keeps the sound that the loudspeaker really played. When a wave of calls is over, `judge`
    decodes that sound and compares it with what the store says of each reply. `report` counts. `run` is the shell.
"""
