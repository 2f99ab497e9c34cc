"""The algorithm: messages, methods as data, the server, and the vector arithmetic underneath."""
