"""Real speech on a CPU: Whisper tiny.en, SmolLM2, and a Piper voice in two halves, one thread each."""
