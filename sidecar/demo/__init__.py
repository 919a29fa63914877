"""The demo: a real a2a-sdk agent and the sample sessions it writes; nothing outside this package may import it."""
