import asyncio

import pyarrow as pa
import pytest

import larder
import larder.aio


def address(text):
    host, _, port = text.rpartition(":")
    return host, int(port)


def test_a_frame_is_pushed_and_read_over_the_network(server, tmp_path):
    resp, http = server
    rows = pa.table({"k": [f"k{number}" for number in range(100)], "v": [str(number) for number in range(100)]})
    built = larder.build(rows, store="numbers", key="k", value="v", out=tmp_path / "built")
    pull = larder.push(built.location, store="numbers", server=http, min_records=100, canary={"k7": "7"})
    assert pull["state"] == "done"

    async def read():
        async with larder.aio.Client(*address(resp)) as client:
            await client.set("t|a", "1")
            together = [client.get(f"numbers:k{number}") for number in range(100)]
            assert await asyncio.gather(*together) == [str(number).encode() for number in range(100)]
            assert await client.mget("numbers:k1", "numbers:nobody", "t|a") == [b"1", None, b"1"]
            assert await client.mget() == []
            with pytest.raises(larder.aio.ReplyError) as refused:
                await client.execute("NONSENSE")
            assert refused.value.code == "ERR"
            assert await client.get("t|a") == b"1"

    asyncio.run(read())


def test_a_rejected_push_reports_the_reason(server, tmp_path):
    _, http = server
    larder.build(pa.table({"k": ["a"], "v": ["1"]}), store="few", key="k", value="v", out=tmp_path / "built")
    with pytest.raises(larder.PushError, match="min|record") as refused:
        larder.push(tmp_path / "built", store="few", server=http, min_records=2)
    assert refused.value.code == "REFUSED"
    with pytest.raises(larder.PushError):
        larder.push(tmp_path / "nothing", store="few", server=http)


def test_an_absent_server_is_reported(tmp_path):
    with pytest.raises(OSError):
        larder.push(tmp_path, store="s", server="127.0.0.1:1")

    async def connect():
        async with larder.aio.Client("127.0.0.1", 1):
            pass

    with pytest.raises(OSError):
        asyncio.run(connect())
    with pytest.raises(ConnectionError, match="not connected"):
        asyncio.run(larder.aio.Client().get("a"))


def test_a_client_reconnects_after_its_connection_ended():
    async def echo(reader, writer):
        while (line := await reader.readline()) != b"":
            words = []
            for _ in range(int(line[1:])):
                size = int((await reader.readline())[1:])
                words.append((await reader.readexactly(size + 2))[:-2])
            if words == [b"DROP"]:
                break
            writer.write(b"+" + b" ".join(words) + b"\r\n")
        writer.close()

    async def run():
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        client = larder.aio.Client("127.0.0.1", server.sockets[0].getsockname()[1])
        await client.connect()
        with pytest.raises(TypeError, match="None"):
            await client.get(None)
        assert await client.get("a") == b"GET a"
        with pytest.raises(ConnectionError):
            await client.execute("DROP")
        assert await asyncio.gather(client.get("b"), client.get("c")) == [b"GET b", b"GET c"]
        await client.close()
        server.close()

    asyncio.run(run())
