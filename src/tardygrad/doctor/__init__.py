"""The doctor: what a record says of a fleet, which setting suits that fleet, and what is wrong with a run."""
