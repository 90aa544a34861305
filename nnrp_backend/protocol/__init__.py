"""Sans-I/O NNRP/1: bytes in, events out. No sockets, no clock, standard library only.

``ClientConnection`` and ``ServerConnection`` are the two ends. See ``Connection`` for how to drive
one, ``events`` for what they report, ``states`` for the state tables.
"""

from nnrp_backend.protocol.client_role import ClientConnection
from nnrp_backend.protocol.config import ClientConfig, ServerConfig
from nnrp_backend.protocol.connection import Connection, Counters
from nnrp_backend.protocol.server_role import ServerConnection
from nnrp_backend.protocol.session import Operation, Session, Trace

__all__ = [
    "ClientConfig",
    "ClientConnection",
    "Connection",
    "Counters",
    "Operation",
    "ServerConfig",
    "ServerConnection",
    "Session",
    "Trace",
]
