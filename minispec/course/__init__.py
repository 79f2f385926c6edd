"""What notebooks need and engines do not: widgets, exercises and their grader, interview practice, the demo."""
