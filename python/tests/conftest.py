import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import services

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def segments():
    """Returns the bytes of a version's segments, by name."""

    def read(folder):
        return {path.name: path.read_bytes() for path in sorted(Path(folder).glob("*.segment"))}

    return read


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory):
    """An HDFS with two datanodes, and two replicas of every file."""
    if not (services.JARS / "Main.class").exists():
        absent = pytest.fail if "CI" in os.environ else pytest.skip
        absent("Hadoop's mini cluster is not installed; scripts/setup test installs it")
    started = services.Hdfs(tmp_path_factory.mktemp("hdfs"))
    yield started
    started.end()


@pytest.fixture(scope="session")
def simulated_s3():
    pytest.importorskip("moto.server")
    started = services.SimulatedS3()
    yield started
    started.end()


@pytest.fixture(scope="session")
def served_s3(tmp_path_factory):
    pytest.importorskip("boto3")
    if not services.ServedS3.PROGRAM.exists():
        absent = pytest.fail if "CI" in os.environ else pytest.skip
        absent("the S3 server is not installed; scripts/setup test installs it")
    started = services.ServedS3(tmp_path_factory.mktemp("s3"))
    yield started
    started.end()


@pytest.fixture(scope="session")
def shared_s3(request):
    """The S3 of Spark's executors: the server, or the simulation if the server is not installed."""
    is_served = services.ServedS3.PROGRAM.exists()
    return request.getfixturevalue("served_s3" if is_served else "simulated_s3")


@pytest.fixture
def s3(shared_s3, monkeypatch):
    """The shared S3, with the settings in this process's environment."""
    yield from reached(shared_s3, monkeypatch)


@pytest.fixture(params=["served_s3", "simulated_s3"])
def each_s3(request, monkeypatch):
    """The server and the simulation, in turn."""
    yield from reached(request.getfixturevalue(request.param), monkeypatch)


def reached(started, monkeypatch):
    for name, value in started.environment.items():
        monkeypatch.setenv(name, value)
    yield started
    started.on(None)


@pytest.fixture
def program():
    """The path of the larder binary."""
    return larder_program()


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory, shared_s3):
    """Spark with two executor processes of one core each."""
    sql = pytest.importorskip("pyspark.sql")
    folder = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.local.dir": folder,
        "spark.sql.warehouse.dir": folder / "warehouse",
        "spark.sql.shuffle.partitions": 4,
        "spark.executor.memory": "512m",
        "spark.task.maxFailures": 2,
        # A short retry window for an HDFS without datanodes.
        "spark.hadoop.dfs.client.retry.window.base": 100,
        **{f"spark.executorEnv.{name}": value for name, value in shared_s3.environment.items()},
    }
    builder = sql.SparkSession.builder.master("local-cluster[2,1,1024]")
    for name, value in settings.items():
        builder = builder.config(name, str(value))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A running server: the addresses of its RESP and HTTP ports."""
    with running(tmp_path_factory.mktemp("data")) as addresses:
        yield addresses


@pytest.fixture
def start_server(tmp_path):
    """Returns a function that starts a server with the current environment."""
    with ExitStack() as servers:
        yield lambda: servers.enter_context(running(tmp_path / "data"))


@contextmanager
def running(data):
    words = [larder_program(), "serve", "--json", "--data", data, "--resp", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    started = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        ready = json.loads(started.stdout.readline())
        yield ready["resp"], ready["http"]
    finally:
        started.terminate()
        started.wait()


def larder_program():
    program = os.environ.get("LARDER") or PROJECT / "target" / "debug" / "larder"
    if not Path(program).exists():
        pytest.skip(f"there is no {program}: cargo build --package larder-cli")
    return program
