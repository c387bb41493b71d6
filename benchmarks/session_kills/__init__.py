"""What a conversation keeps when a gateway, the Thinker or the store is killed (`kill -9`) amid it.

Theory of operation
    Callers converse with a service whose voice is coded tones: they type and speak, listen as a real player does, cut
    replies, and come back with `session.resume` when their connection breaks. `plan` draws from a seed who is killed
    and when; one kill hits all callers. `caller` is one conversation over all of its connections, and `striker` kills.
    When a service's kills are over, each conversation is resumed once more, and `judge` compares its history with what
    the client was told, what its ear decoded, what the store had at each kill and what the tool's server was asked.
    `report` counts. `run` is the shell.
"""
