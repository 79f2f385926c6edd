"""Beyond one device: tensor and expert parallelism, and scaling laws."""
