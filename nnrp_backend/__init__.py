"""NNRP/1, the `openai-compatible/1` profile, and the worker process that serves an engine."""
