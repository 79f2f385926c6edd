"""The exercises, one file a set: eNN.py belongs to course/exercises/NN_name.py. How to define one: exercise.py."""
