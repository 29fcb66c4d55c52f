import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def segments():
    """The bytes of a version's segments, by their names."""

    def read(folder):
        return {path.name: path.read_bytes() for path in sorted(Path(folder).glob("*.segment"))}

    return read


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A larder that runs: the addresses of its RESP and HTTP ports."""
    program = os.environ.get("LARDER") or PROJECT / "target" / "debug" / "larder"
    if not Path(program).exists():
        pytest.skip(f"there is no {program}: cargo build --package larder-cli")
    data = tmp_path_factory.mktemp("data")
    words = [program, "serve", "--json", "--data", data, "--resp", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    started = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        ready = json.loads(started.stdout.readline())
        yield ready["resp"], ready["http"]
    finally:
        started.terminate()
        started.wait()
