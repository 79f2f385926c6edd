"""The exercises, a folder per set. How to define one: exercise.py.

page.py      the source of the set's notebook
cases.py     of each exercise the right answer, inputs that tell right from wrong, and known wrong answers
texts.yaml   title, level, minutes, points and hints: what can be read without importing torch
"""
