"""Beyond one device: tensor and expert parallelism, scaling laws, and the way to a production engine."""
