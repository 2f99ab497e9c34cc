"""An asynchronous Flower app."""
