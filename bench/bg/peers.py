"""The data stores that bg is pointed at, each a process of its own on a free port of this machine, gone at the end.

Settings are those one would run in production on a machine of this size, with one promise for all that keep
anything on disk: a machine that loses power loses at most about a second of what was acknowledged.

  larder      fsync = everysec, one serving thread, as Redis has one: two processors are bg's, too (LARDER_THREADS=2)
  postgres    shared_buffers 1 GB, synchronous_commit off (the same promise), fsync on, max_wal_size 4 GB
  memcached   4 GB, values up to 8 MB
  redis       append-only file, fsync everysec, no snapshots
  mongodb     mongo-java-server: speaks the protocol, keeps everything in memory; MongoDB itself is not in Debian
"""

import glob
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
POSTGRES = {
    "fsync": "on",
    "synchronous_commit": "off",
    "shared_buffers": "1GB",
    "effective_cache_size": "8GB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "random_page_cost": "1.1",
    "max_connections": "200",
    "jit": "off",
}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(port, process, name):
    for _ in range(3000):
        if process.poll() is not None:
            raise SystemExit(f"{name} ended: {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.01)
    raise SystemExit(f"{name} does not listen")


class Peers:
    """Starts servers as they are asked for; `with` ends them."""

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="bg-peers-")
        os.chmod(self.folder, 0o711)
        self.processes = []
        return self

    def __exit__(self, *_):
        for process, stop in reversed(self.processes):
            process.send_signal(stop)
        for process, _ in reversed(self.processes):
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def spawn(self, name, command, port=None, stop=15, **more):
        log = open(os.path.join(self.folder, f"{name}.log"), "ab")
        more.setdefault("stdout", log)
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, **more)
        self.processes.append((process, stop))
        if port:
            wait_for(port, process, name)
        return process

    def postgres(self, **settings):
        """Its address."""
        programs = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
        programs = programs[-1] if programs else os.path.dirname(shutil.which("initdb") or "")
        data = os.path.join(self.folder, "postgres")
        os.mkdir(data)
        as_user = {"cwd": data, "env": {**os.environ, "LC_ALL": "C.UTF-8"}}
        if os.geteuid() == 0:
            # It refuses to be root's.
            as_user |= {"user": "postgres", "group": "postgres", "extra_groups": []}
            shutil.chown(data, "postgres", "postgres")
        initdb = [f"{programs}/initdb", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8"]
        subprocess.run([*initdb, "-D", data], check=True, stdout=subprocess.DEVNULL, **as_user)
        port = free_port()
        command = [f"{programs}/postgres", "-D", data, "-k", "", "-h", "127.0.0.1", "-p", str(port)]
        for name, value in {**POSTGRES, **settings}.items():
            command += ["-c", f"{name}={value}"]
        # SIGINT: does not wait for clients.
        self.spawn("postgres", command, port, stop=2, **as_user)
        url = f"postgres://postgres@127.0.0.1:{port}/postgres"
        for _ in range(1000):
            asked = subprocess.run(["psql", "-qAt", "-c", "SELECT 1", url], capture_output=True)
            if asked.returncode == 0:
                return url
            time.sleep(0.02)
        raise SystemExit(f"postgres does not answer: {asked.stderr}")

    def memcached(self):
        port = free_port()
        command = ["memcached", "-l", "127.0.0.1", "-U", "0", "-p", str(port), "-m", "4096", "-I", "8m", "-t", "2"]
        if os.geteuid() == 0:
            command += ["-u", "root"]
        self.spawn("memcached", command, port)
        return f"127.0.0.1:{port}"

    def redis(self):
        port = free_port()
        data = os.path.join(self.folder, "redis")
        os.mkdir(data)
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", data, "--save", ""]
        self.spawn("redis", [*command, "--appendonly", "yes", "--appendfsync", "everysec"], port)
        return f"127.0.0.1:{port}"

    def mongodb(self):
        port = free_port()
        jars = os.path.join(ROOT, ".mongo-java-server")
        command = ["java", "-Xmx4g", "-cp", f"{jars}:{jars}/*", "Main", str(port)]
        self.spawn("mongodb", command, port)
        return f"127.0.0.1:{port}"

    def larder(self, binary):
        command = [binary, "serve", "--json", "--resp", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        command += ["--set", f"server.threads={os.environ.get('LARDER_THREADS', '1')}", "--set", "tables.fsync=everysec"]
        command += ["--set", "log.level=warn", "--data", os.path.join(self.folder, "larder")]
        process = self.spawn("larder", command, stdout=subprocess.PIPE)
        return json.loads(process.stdout.readline())["resp"]


def machine():
    """A line about it."""
    with open("/proc/cpuinfo") as info:
        models = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kernel = os.uname()
    return f"{os.cpu_count()} processors ({models[0] if models else kernel.machine}), {memory:.0f} GiB, Linux {kernel.release}"
