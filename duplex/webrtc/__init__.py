"""The browser transport: offers and answers, Opus both ways, and the events on a data channel."""
