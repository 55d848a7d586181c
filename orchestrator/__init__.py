"""SSH-based cluster orchestrator for distributed training: TensorFlow, PyTorch and JAX."""

__version__ = "0.1.0"
