"""Beyond one device: tensor, pipeline and expert parallelism, scaling laws, and the way to a production engine."""
