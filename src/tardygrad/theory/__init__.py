"""The paper's theorems as numbers: rates and schedules, conditions on delays, explicit bounds."""
