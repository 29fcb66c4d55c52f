"""Builds on Spark beside the builder of one process: rows per second of processor time, and what executors take of memory.

Two executors with a core each (`local-cluster`), Hadoop's mini cluster as HDFS, Versity's gateway (or moto) as S3; both are processes of their own and are not counted. What is
counted is the processor time of the executors and of all they have started: reading Parquet, Spark's shuffle, Arrow, and larder. Each figure is the median of
some rounds; a round does everything once.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python" / "tests"))
import services  # noqa: E402

FILES = 8
TICKS = os.sysconf("SC_CLK_TCK")

ALONE = """
import sys, time, larder
began = time.process_time()
larder.build(sys.argv[1], store="s", key="member", value="value", out=sys.argv[2], partitions=int(sys.argv[3]), threads=1, profile=False)
print(time.process_time() - began)
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 100])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--places", nargs="+", choices=["folder", "hdfs", "s3"], default=["folder", "hdfs", "s3"])
    parser.add_argument("--s3", choices=["server", "simulation"], default="server", help="Versity's gateway, or moto")
    parser.add_argument("--into", type=Path, help="a file for one line of JSON a measurement")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="larder-bench-spark-") as folder:
        run(given, Path(folder))


def run(given, folder):
    source = folder / "rows"
    write_rows(source, given.rows, given.value_bytes)
    s3 = services.ServedS3(make(folder / "s3")) if given.s3 == "server" else SimulatedS3()
    hdfs = services.Hdfs(make(folder / "hdfs")) if "hdfs" in given.places else None
    os.environ.update(s3.direct)
    try:
        spark = start_spark(folder, s3.direct)
        df = spark.read.parquet(str(source))
        measured = []
        # The first job pays for starting workers and compiling: it does not count.
        on_spark(df, folder / "first", 2)
        for round in range(given.rounds):
            for partitions in given.partitions:
                name = f"{round}-{partitions}"
                places = {
                    "folder": ("Spark, a folder", folder / f"spark-{name}"),
                    "hdfs": ("Spark, HDFS", f"{hdfs.url}/{name}" if hdfs else None),
                    "s3": ("Spark, S3", f"s3://versions/{name}"),
                }
                measured += [
                    measure("one process", partitions, given.rows, alone, source, folder / f"alone-{name}", partitions),
                    measure("Spark's shuffle alone", partitions, given.rows, shuffle, df, partitions),
                ]
                for place in given.places:
                    what, out = places[place]
                    measured.append(measure(what, partitions, given.rows, on_spark, df, out, partitions))
                if "folder" in given.places:
                    same(folder / f"alone-{name}", folder / f"spark-{name}")
                    shutil.rmtree(folder / f"spark-{name}")
                shutil.rmtree(folder / f"alone-{name}")
        spark.stop()
    finally:
        if hdfs:
            hdfs.end()
        s3.end()
    report(measured)
    if given.into:
        with open(given.into, "a") as out:
            for it in measured:
                print(json.dumps(it), file=out)


def write_rows(source, count, value_bytes):
    """Keys in no order, and values that do not compress."""
    source.mkdir()
    each = count // FILES
    for file in range(FILES):
        numbers = range(file * each, (file + 1) * each)
        keys = [f"m{number * 2654435761 % 4294967296:010}" for number in numbers]
        noise = os.urandom(each * value_bytes // 2 + 1).hex()
        values = [noise[at * value_bytes : (at + 1) * value_bytes] for at in range(each)]
        pq.write_table(pa.table({"member": keys, "value": values}), source / f"{file}.parquet")


def make(folder):
    folder.mkdir()
    return folder


class SimulatedS3:
    """moto in a process of its own."""

    SERVER = """
import time, boto3
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b").create_bucket(Bucket="versions")
print(f"http://{host}:{port}", flush=True)
while True: time.sleep(60)
"""

    def __init__(self):
        words = [sys.executable, "-c", self.SERVER]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.direct = {**services.S3.ACCESS, "AWS_ENDPOINT_URL": self._process.stdout.readline().strip()}

    def end(self):
        self._process.kill()
        self._process.wait()


def start_spark(folder, environment):
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.local.dir": folder / "local",
        "spark.sql.warehouse.dir": folder / "warehouse",
        "spark.executor.memory": "1g",
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        **{f"spark.executorEnv.{name}": value for name, value in environment.items()},
    }
    builder = SparkSession.builder.master("local-cluster[2,1,1536]")
    for name, value in settings.items():
        builder = builder.config(name, str(value))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def alone(source, out, partitions):
    """The processor seconds of the build, without those of starting Python, since Spark's workers run already."""
    words = [sys.executable, "-c", ALONE, str(source), str(out), str(partitions)]
    return float(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def on_spark(df, out, partitions):
    from larder.spark import build_store

    return build_store(df, store="s", key="member", value="value", out=out, partitions=partitions, profile=False)


def shuffle(df, partitions):
    df.repartition(partitions, "member").write.format("noop").mode("overwrite").save()


def same(one, other):
    for path in one.glob("*.segment"):
        assert path.read_bytes() == (other / path.name).read_bytes(), path


def measure(what, partitions, rows, work, *arguments):
    before, began = processor_seconds(), time.monotonic()
    done = work(*arguments)
    seconds = time.monotonic() - began
    after = processor_seconds()
    of_larder = after["python"] - before["python"]
    of_all = done if what == "one process" else of_larder + after["java"] - before["java"]
    told = {
        "what": what,
        "partitions": partitions,
        "rows": rows,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(of_all, 2),
        "python_cpu_seconds": round(of_larder, 2),
        "rows_per_cpu_second": round(rows / of_all),
        "python_peak_mib": max(peaks("pyspark"), default=0) >> 10,
        "java_peak_mib": max(peaks("CoarseGrainedExecutorBackend"), default=0) >> 10,
    }
    print(json.dumps(told), flush=True)
    return told


def descendants():
    """This process's, as (process, command line)."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        parents[int(folder.name)] = (int(stat[1]), command, sum(map(int, stat[11:15])) / TICKS)
    for process, (_, command, seconds) in parents.items():
        at = process
        while at in parents and at != os.getpid():
            at = parents[at][0]
        if at == os.getpid():
            yield process, command, seconds


def processor_seconds():
    """Of the executors and of their Python workers, children of theirs that have ended included."""
    seconds = {"java": 0.0, "python": 0.0}
    for _, command, used in descendants():
        if "CoarseGrainedExecutorBackend" in command:
            seconds["java"] += used
        elif "pyspark" in command and "java" not in command.split(" ")[0]:
            seconds["python"] += used
    return seconds


def peaks(name):
    """The most memory that each such process has had, in KiB."""
    for process, command, _ in descendants():
        if name in command and (name != "pyspark" or "java" not in command.split(" ")[0]):
            try:
                status = Path(f"/proc/{process}/status").read_text()
            except OSError:
                continue
            yield int(status.split("VmHWM:")[1].split()[0])


def report(measured):
    print(f"\n{'':24}{'partitions':>11}{'rows/CPU s':>12}{'of one process':>16}{'Python peak':>13}{'JVM peak':>10}")
    median = {}
    for it in measured:
        median.setdefault((it["partitions"], it["what"]), []).append(it)
    for (partitions, what), all in median.items():
        rate = statistics.median(it["rows_per_cpu_second"] for it in all)
        own = statistics.median(it["rows_per_cpu_second"] for it in median[partitions, "one process"])
        python, java = (max(it[f"{name}_peak_mib"] for it in all) for name in ("python", "java"))
        print(f"{what:24}{partitions:>11}{rate:>12,.0f}{rate / own:>16.2f}{python:>9} MiB{java:>6} MiB")


if __name__ == "__main__":
    main()
