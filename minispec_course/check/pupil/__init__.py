"""What runs in a student's process, and the plain data that it speaks."""
