"""An engine without models that takes the time of one: it speaks coded tones, after times drawn from distributions."""
