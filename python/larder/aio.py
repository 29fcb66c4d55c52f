"""A small asyncio client: commands of many tasks share one connection, and replies come in order.

    async with larder.aio.Client("127.0.0.1", 7379) as client:
        await client.get("pymk:42")
        await client.mget("pymk:42", "pymk:43")
        await client.execute("RANGE", "timeline|ann|", "timeline|ann}")

Any Redis client works as well; this one needs no other package.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Optional, Union

__all__ = ["Client", "ReplyError"]

Word = Union[str, bytes, int, float]


class ReplyError(Exception):
    """An error reply of the server. ``code`` is its first word, such as ``CLUSTERDOWN``."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.split(" ", 1)[0]


class Client:
    """A connection to a server. Many tasks may send commands concurrently.

    If the connection ends, for example because the server restarts, the next command opens it again.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 7379, *, password: Optional[str] = None) -> None:
        self._host, self._port, self._password = host, port, password
        self._reader: Optional[asyncio.StreamReader] = None
        self._writer: Optional[asyncio.StreamWriter] = None
        self._waiting: "deque[asyncio.Future[Any]]" = deque()
        self._listening: Optional["asyncio.Task[None]"] = None
        # Set between connect() and close(); only one task at a time connects.
        self._opening: Optional[asyncio.Lock] = None

    async def __aenter__(self) -> "Client":
        await self.connect()
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connects, unless it is connected.

        Raises:
            OSError: the server is not reachable.
            ReplyError: the server rejects the password.
        """
        if self._opening is None:
            self._opening = asyncio.Lock()
        opening = self._opening
        async with opening:
            if self._writer is not None:
                return
            reader, writer = await asyncio.open_connection(self._host, self._port)
            if self._opening is not opening:
                writer.close()
                raise ConnectionError("the connection was closed")
            self._reader, self._writer = reader, writer
            self._listening = asyncio.create_task(self._listen(reader, writer))
            if self._password is None:
                return
            try:
                # Written before any other task can write.
                await self._send(writer, _request(("AUTH", self._password)))
            except BaseException:
                # Without the password the connection is useless.
                if self._writer is writer:
                    self._disconnect(ConnectionError("the server rejected the password"))
                raise

    async def close(self) -> None:
        """Closes the connection; pending commands fail."""
        self._opening = None
        if self._writer is not None:
            self._disconnect(ConnectionError("the connection was closed"))

    def _disconnect(self, why: ConnectionError) -> None:
        """Closes the current connection; pending commands fail with `why`."""
        self._writer.close()
        if self._listening is not None:
            self._listening.cancel()
        self._fail(why)
        self._writer = self._reader = self._listening = None

    async def execute(self, *words: Word) -> Any:
        """Sends a command and waits for its reply: bytes, int, None, or a list of them.

        Raises:
            TypeError: a word is neither str, bytes, int nor float.
            ReplyError: the server returned an error.
            ConnectionError: the connection ended; it is unknown whether the command was executed.
            OSError: the connection had ended, and the server is not reachable.
        """
        request = _request(words)
        if self._opening is None:
            raise ConnectionError("the client is not connected: await connect(), or use `async with`")
        if self._writer is None:
            await self.connect()
        writer = self._writer
        if writer is None:
            raise ConnectionError("the connection has ended")
        return await self._send(writer, request)

    async def _send(self, writer: asyncio.StreamWriter, request: bytes) -> Any:
        reply: "asyncio.Future[Any]" = asyncio.get_running_loop().create_future()
        self._waiting.append(reply)
        try:
            writer.write(request)
            await writer.drain()
        except OSError:
            reply.cancel()
            raise
        answer = await reply
        if isinstance(answer, ReplyError):
            raise answer
        return answer

    async def get(self, key: Word) -> Optional[bytes]:
        return await self.execute("GET", key)

    async def mget(self, *keys: Word) -> list[Optional[bytes]]:
        return await self.execute("MGET", *keys) if keys else []

    async def set(self, key: Word, value: Word) -> None:
        await self.execute("SET", key, value)

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                answer = await _reply(reader)
                if self._waiting:
                    waiting = self._waiting.popleft()
                    if not waiting.done():
                        waiting.set_result(answer)
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            self._fail(ConnectionError(f"the connection has ended: {error}"))
            writer.close()
            if self._writer is writer:
                self._writer = None

    def _fail(self, error: Exception) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_exception(error)


def _request(words: tuple[Word, ...]) -> bytes:
    if not words:
        raise ValueError("a command has at least one word")
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        if not isinstance(word, (str, bytes, int, float)) or isinstance(word, bool):
            raise TypeError(f"{word!r} cannot be a word of a command; give str, bytes, int or float")
        encoded = word if isinstance(word, bytes) else str(word).encode()
        parts += [b"$%d\r\n" % len(encoded), encoded, b"\r\n"]
    return b"".join(parts)


async def _reply(reader: asyncio.StreamReader) -> Any:
    line = await reader.readuntil(b"\r\n")
    kind, rest = line[:1], line[1:-2]
    if kind == b"+":
        return rest
    if kind == b"-":
        return ReplyError(rest.decode(errors="replace"))
    if kind == b":":
        return int(rest)
    if kind == b"$":
        size = int(rest)
        return None if size < 0 else (await reader.readexactly(size + 2))[:-2]
    if kind == b"*":
        count = int(rest)
        return None if count < 0 else [await _reply(reader) for _ in range(count)]
    raise ValueError(f"invalid reply: {line[:40]!r}")
