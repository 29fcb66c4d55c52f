"""An HDFS and an S3 for the tests, with fault injection."""

import http.client
import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
JARS = PROJECT / ".hdfs-mini-cluster"


class Hdfs:
    """Hadoop's mini cluster; scripts/hdfs-mini-cluster/Main.java defines its commands."""

    def __init__(self, folder, datanodes=2):
        words = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx400m", "-cp", f"{JARS}:{JARS}/*", "Main"]
        words += [folder / "data", str(datanodes), f"dfs.replication={datanodes}"]
        self._log = open(folder / "log", "w")
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, cwd=folder
        )
        ready = self._process.stdout.readline()
        assert ready.startswith("ready "), (folder / "log").read_text()
        self.url = f"hdfs://127.0.0.1:{int(ready.split()[1])}"

    def send(self, line):
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        assert answer.startswith("ok"), f"{line}: {answer}"
        return answer[2:].strip()

    def list(self, path):
        """Returns the paths of the files below a folder."""
        return sorted(entry.rpartition("=")[0] for entry in self.send(f"list {path}").split())

    def get(self, path, folder):
        """Copies the files of a folder to a local one."""
        folder.mkdir()
        self.send(f"get {path} {folder}")
        return folder

    def end(self):
        self._process.kill()
        self._process.wait()
        self._log.close()


class S3:
    """An S3 with the bucket `versions`, behind a proxy that injects faults."""

    ACCESS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}

    def __init__(self, host, port):
        import boto3

        self._proxy = _Proxy((host, port))
        self.requests = self._proxy.requests
        self.direct = {**self.ACCESS, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}
        self.environment = {**self.ACCESS, "AWS_ENDPOINT_URL": self._proxy.url}
        self._client = boto3.client(
            "s3",
            endpoint_url=self.direct["AWS_ENDPOINT_URL"],
            region_name="us-east-1",
            aws_access_key_id="a",
            aws_secret_access_key="b",
        )
        self._client.create_bucket(Bucket="versions")

    def on(self, fault):
        """Calls `fault` with the method and path of each request. It may block, and returns None, a status to reply with, "cut" to break the
        connection, or "short" to break it in the middle of the response."""
        self._proxy.fault = fault

    def list(self, prefix=""):
        answer = self._client.list_objects_v2(Bucket="versions", Prefix=prefix)
        return sorted(item["Key"] for item in answer.get("Contents", []))

    def get(self, prefix, folder):
        folder.mkdir()
        for name in self.list(prefix):
            self._client.download_file("versions", name, str(folder / name.rpartition("/")[2]))
        return folder

    def put(self, local, name):
        self._client.upload_file(str(local), "versions", name)

    def sent(self):
        """Returns the number of object bytes that were sent so far."""
        return self._proxy.sent

    def end(self):
        self._proxy.end()


class SimulatedS3(S3):
    """A simulated S3: moto, in this process."""

    def __init__(self):
        from moto.server import ThreadedMotoServer

        self._moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._moto.start()
        super().__init__(*self._moto.get_host_and_port())

    def end(self):
        super().end()
        self._moto.stop()


class ServedS3(S3):
    """Versity's gateway: an S3 server whose objects are files in a folder."""

    PROGRAM = PROJECT / ".s3-server" / "versitygw"

    def __init__(self, folder):
        objects = folder / "objects"
        objects.mkdir()
        self._log = open(folder / "log", "w")
        self._process = subprocess.Popen(
            [self.PROGRAM, "--quiet", "--port", "127.0.0.1:0", "posix", "--sidecar", made(folder / "metadata"), objects],
            env={**os.environ, "ROOT_ACCESS_KEY": "a", "ROOT_SECRET_KEY": "b"},
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        port = None
        while port is None:
            assert self._process.poll() is None, (folder / "log").read_text()
            port = listening_port(self._process.pid)
        super().__init__("127.0.0.1", port)

    def end(self):
        super().end()
        self._process.kill()
        self._process.wait()
        self._log.close()


def made(folder):
    folder.mkdir()
    return folder


def listening_port(process):
    """Returns the port on which a process listens; None if it does not listen yet."""
    sockets = set()
    for entry in Path(f"/proc/{process}/fd").iterdir():
        try:
            sockets.add(os.readlink(entry))
        except OSError:
            continue
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            return int(fields[1].rpartition(":")[2], 16)
    return None


class _Proxy:
    def __init__(self, target):
        proxy = self
        self.fault = None
        self.requests = []
        self.sent = 0
        self._target = target

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do(self):
                proxy._carry(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _carry(self, request):
        body = request.rfile.read(int(request.headers.get("content-length") or 0))
        self.requests.append((request.command, request.path))
        fault = self.fault and self.fault(request.command, request.path)
        if fault == "cut":
            request.close_connection = True
            return
        if isinstance(fault, int):
            request.send_response(fault)
            request.send_header("content-length", "0")
            request.end_headers()
            return
        upstream = http.client.HTTPConnection(*self._target)
        headers = {name: value for name, value in request.headers.items() if name.lower() != "connection"}
        upstream.request(request.command, request.path, body=body, headers=headers)
        answer = upstream.getresponse()
        content = answer.read()
        request.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                request.send_header(name, value)
        length = answer.getheader("content-length") if request.command == "HEAD" else len(content)
        request.send_header("content-length", str(length or 0))
        request.end_headers()
        if fault == "short":
            content = content[: len(content) // 2]
            request.close_connection = True
        if request.command != "HEAD":
            self.sent += len(content)
            request.wfile.write(content)
        upstream.close()

    def end(self):
        self._server.shutdown()
        self._server.server_close()
