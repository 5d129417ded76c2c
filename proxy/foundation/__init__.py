"""What every package may use: tasks, ids, secrets, durations, outages."""
