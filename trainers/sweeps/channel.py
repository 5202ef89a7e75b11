"""Messages between a driver and its workers over a pair of sockets. The driver's side never waits.

A message is its size in eight bytes and then itself, pickled: the two processes are one program.
"""

from __future__ import annotations

import collections
import pickle
import socket
import struct
from typing import Any

_SIZE = struct.Struct("!Q")
_BLOCK = 1 << 18


def send(end: socket.socket, message: Any) -> None:
    """Sends a message and waits until it is on its way: the worker's side."""
    data = pickle.dumps(message)
    end.sendall(_SIZE.pack(len(data)) + data)


def receive(end: socket.socket) -> Any:
    """Waits for a message: the worker's side. `EOFError` where the driver has closed."""
    return pickle.loads(_exactly(end, _SIZE.unpack(_exactly(end, _SIZE.size))[0]))


def _exactly(end: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        block = end.recv(min(_BLOCK, size - len(data)))
        if not block:
            raise EOFError
        data += block
    return bytes(data)


class Channel:
    """The driver's side: what cannot be sent at once is kept, what has not arrived whole is waited for elsewhere."""

    def __init__(self, end: socket.socket):
        end.setblocking(False)
        self._end = end
        self._leaving: collections.deque[memoryview] = collections.deque()
        self._arrived = bytearray()

    def fileno(self) -> int:
        """For selectors."""
        return self._end.fileno()

    @property
    def is_sending(self) -> bool:
        """Whether something is left to send."""
        return bool(self._leaving)

    def send(self, message: Any) -> None:
        """Takes a message, and sends what can be sent without waiting."""
        data = pickle.dumps(message)
        self._leaving.append(memoryview(_SIZE.pack(len(data)) + data))
        self.flush()

    def flush(self) -> None:
        """Sends what can be sent without waiting. Where the other side has gone, all that is left is forgotten."""
        try:
            while self._leaving:
                sent = self._end.send(self._leaving[0][: 1 << 20])
                self._leaving[0] = self._leaving[0][sent:]
                if not self._leaving[0]:
                    self._leaving.popleft()
        except BlockingIOError:
            return
        except OSError:
            self._leaving.clear()  # That it has gone is noticed when its answer is waited for.

    def receive(self) -> tuple[list[Any], bool]:
        """Returns the messages that have arrived whole, and whether more may come."""
        is_open = True
        try:
            while block := self._end.recv(_BLOCK):
                self._arrived += block
            is_open = False
        except BlockingIOError:
            pass
        except OSError:
            is_open = False
        return list(self._whole_messages()), is_open

    def _whole_messages(self) -> list[Any]:
        messages, start = [], 0
        while len(self._arrived) - start >= _SIZE.size:
            end = start + _SIZE.size + _SIZE.unpack_from(self._arrived, start)[0]
            if len(self._arrived) < end:
                break
            messages.append(pickle.loads(self._arrived[start + _SIZE.size : end]))
            start = end
        del self._arrived[:start]
        return messages

    def close(self) -> None:
        """Closes this side."""
        self._end.close()
