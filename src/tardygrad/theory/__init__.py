"""What the paper proves, as numbers: rates and schedules, conditions on delays, explicit bounds."""
