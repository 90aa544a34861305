"""NNRP/1 client: `NnrpClient` speaks to one worker, many operations at a time."""

from nnrp_backend.client.client import NnrpClient
from nnrp_backend.client.diagnostics import (
    CacheUse,
    Diagnostics,
    EnginePressure,
    read_diagnostics,
)
from nnrp_backend.client.errors import (
    ClientError,
    Congested,
    ConnectError,
    NotConnected,
    PayloadTooLarge,
    TooManyOperations,
    WorkerDraining,
)
from nnrp_backend.client.link import ClientListener
from nnrp_backend.client.operation import (
    ClientOperation,
    OperationHandler,
    Terminal,
    TerminalKind,
)
from nnrp_backend.client.stream import OperationStream

__all__ = [
    "CacheUse",
    "ClientError",
    "ClientListener",
    "ClientOperation",
    "Congested",
    "ConnectError",
    "Diagnostics",
    "EnginePressure",
    "NnrpClient",
    "NotConnected",
    "OperationHandler",
    "OperationStream",
    "PayloadTooLarge",
    "Terminal",
    "TerminalKind",
    "TooManyOperations",
    "WorkerDraining",
    "read_diagnostics",
]
