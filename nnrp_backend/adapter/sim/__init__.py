"""The sim engine: OpenAI chat without a model, deterministic and honest about it.

A last user message that begins with `/sim` scripts the answer (`directives`); without one the
engine talks about the last message, calls the tool that was asked for, or makes JSON that
satisfies the given schema (`schema` says which).
"""

from nnrp_backend.adapter.sim.engine import SimEngine, create

__all__ = ["SimEngine", "create"]
