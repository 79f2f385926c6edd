"""Many requests at once: paged memory, continuous batching, and the engine that puts them together."""
