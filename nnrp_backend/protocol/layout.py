"""Fixed metadata as data: one ``Layout`` per message says its bytes and its rules."""

import struct
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from nnrp_backend.protocol.constants import ErrorCode
from nnrp_backend.protocol.errors import LocalProtocolError, RemoteProtocolError

__all__ = ["Layout"]

_M = TypeVar("_M", bound=NamedTuple)


class Layout(Generic[_M]):
    """How one message's fixed metadata lies in bytes, and what a receiver must refuse.

    Args:
        message: The NamedTuple type; its fields are in wire order.
        layout: ``struct`` format, little endian.
        zero: Reserved fields, which must be 0.
        nonzero: Fields that must not be 0.
        masks: Flag fields with the bits that may be set.
        tail: Field that counts the bytes of the body, when the message has one.
    """

    __slots__ = ("fields", "masks", "message", "nonzero", "size", "struct", "tail", "zero")

    def __init__(
        self,
        message: type[_M],
        layout: str,
        *,
        zero: tuple[str, ...] = (),
        nonzero: tuple[str, ...] = (),
        masks: Mapping[str, int] | None = None,
        tail: str | None = None,
    ) -> None:
        index = message._fields.index
        self.struct = struct.Struct(layout)
        self.size = self.struct.size
        self.fields = message._fields
        self.message = message
        self.zero = tuple(index(name) for name in zero)
        self.nonzero = tuple(index(name) for name in nonzero)
        self.masks = tuple((index(name), ~mask) for name, mask in (masks or {}).items())
        self.tail = None if tail is None else index(tail)

    def pack(self, message: _M) -> bytes:
        """Return the metadata bytes.

        Raises:
            LocalProtocolError: a value does not fit its field.
        """
        try:
            return self.struct.pack(*message)
        except struct.error as error:
            raise LocalProtocolError(f"{message!r}: {error}") from error

    def unpack(self, metadata: bytes, body: bytes = b"") -> _M:
        """Return the message, its rules checked.

        Raises:
            RemoteProtocolError: the size is wrong, a reserved bit is set, a required field is 0, or
                the body is not as long as the metadata says.
        """
        if len(metadata) != self.size:
            raise _malformed(f"metadata is {len(metadata)} bytes, must be {self.size}")
        values: tuple[Any, ...] = self.struct.unpack(metadata)
        for index in self.zero:
            if values[index]:
                raise _malformed(f"reserved field {self.fields[index]} is {values[index]}")
        for index in self.nonzero:
            if not values[index]:
                raise _malformed(f"{self.fields[index]} must not be 0")
        for index, forbidden in self.masks:
            if values[index] & forbidden:
                raise _malformed(f"{self.fields[index]} has reserved bits set: {values[index]:#x}")
        if self.tail is not None and values[self.tail] != len(body):
            name = self.fields[self.tail]
            raise _malformed(f"{name} is {values[self.tail]}, the body has {len(body)} bytes")
        return self.message._make(values)


def _malformed(detail: str) -> RemoteProtocolError:
    return RemoteProtocolError(detail, code=ErrorCode.MALFORMED_BODY)
