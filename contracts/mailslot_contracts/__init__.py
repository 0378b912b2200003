"""What is promised: everything that crosses a process boundary."""
