"""The same passes near a GPU's limit: fused weights, Triton kernels, and CUDA graphs that replay a whole step."""
