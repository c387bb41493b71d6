"""The OpenAI Realtime API (GA) and its opt-in extensions: messages, dialect, connection."""
