"""Constructors as specs and records name them: their functions, and the types of their arguments."""
