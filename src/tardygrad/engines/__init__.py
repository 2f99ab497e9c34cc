"""Engines: what carries jobs to workers and brings updates back."""
