"""asyncio transports for the sans-I/O core: tcp, tls, unix sockets, and a memory pair for tests."""

from nnrp_backend.transport.endpoint import Endpoint, EndpointError, Scheme
from nnrp_backend.transport.tasks import TaskSet

__all__ = ["Endpoint", "EndpointError", "Scheme", "TaskSet"]
