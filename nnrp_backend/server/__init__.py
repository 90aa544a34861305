"""NNRP/1 server: `NnrpServer` accepts operations and hands them to a service."""

from nnrp_backend.server.operation import OperationEvents, ServerOperation
from nnrp_backend.server.server import NnrpServer

__all__ = ["NnrpServer", "OperationEvents", "ServerOperation"]
