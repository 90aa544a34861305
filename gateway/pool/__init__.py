"""The workers behind the gateway, and which of them serves the next request."""

from gateway.pool.backend import Backend, BackendState, WorkerSpec
from gateway.pool.interfaces import Outcome, OutcomeKind, PoolRequest, Sink, Worker
from gateway.pool.limits import PoolCounters, PoolLimits
from gateway.pool.pool import Pool
from gateway.pool.ticket import Ticket, TicketState

__all__ = [
    "Backend",
    "BackendState",
    "Outcome",
    "OutcomeKind",
    "Pool",
    "PoolCounters",
    "PoolLimits",
    "PoolRequest",
    "Sink",
    "Ticket",
    "TicketState",
    "Worker",
    "WorkerSpec",
]
