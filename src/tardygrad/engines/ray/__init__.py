"""The engine on a Ray cluster."""
