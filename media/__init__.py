"""Sound: formats, sample clock, resampling, voice activity, playout. Imports nothing else of this project."""
