"""What there is to learn: `Task` implementations."""
