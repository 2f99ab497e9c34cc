"""Attacks with a fixed seed: damaged records, kills, command lines, arguments, and workers on Ray."""
