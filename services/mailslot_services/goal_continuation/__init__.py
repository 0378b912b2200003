"""goal-continuation."""
