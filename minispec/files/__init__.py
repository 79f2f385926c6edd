"""Models on disk: where they come from, how they are read, and the handle that everything else takes."""
