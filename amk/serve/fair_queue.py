"""Requests that wait for the model: first come, first served for each client, and the clients take turns."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Holds at most `most` items, `most_of_one` of any client. Thread safe; `put` and `take` take constant time."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most, self._most_of_one, self._size, self._closed = most, most_of_one, 0, False
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()
        """Of clients that wait; the first one's turn is next."""
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return self._size

    def put(self, client: str, item: T) -> bool:
        """False if there is no room, or the queue is closed."""
        with self._changed:
            line = self._lines.get(client)
            if self._closed or self._size >= self._most or (line is not None and len(line) >= self._most_of_one):
                return False
            self._lines.setdefault(client, deque()).append(item)
            self._size += 1
            self._changed.notify()
            return True

    def take(self) -> T | None:
        """The next item, waiting for one; None once the queue is closed."""
        with self._changed:
            while not self._lines and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            client, line = self._lines.popitem(last=False)
            item = line.popleft()
            if line:
                self._lines[client] = line
            self._size -= 1
            return item

    def remove(self, client: str, item: T) -> bool:
        """Forget an item that nobody waits for; false if it does not wait. Takes time linear in the client's items."""
        with self._changed:
            line = self._lines.get(client, deque())
            if item not in line:
                return False
            line.remove(item)
            self._size -= 1
            if not line:
                del self._lines[client]
            return True

    def close(self) -> list[T]:
        """Takes no more items; those that waited."""
        with self._changed:
            left = [item for line in self._lines.values() for item in line]
            self._lines.clear()
            self._size, self._closed = 0, True
            self._changed.notify_all()
            return left
