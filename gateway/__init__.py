"""An OpenAI-compatible front door for a fleet of NNRP workers."""

__version__ = "0.1.0"
