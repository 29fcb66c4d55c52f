"""Faults of S3 while a version is built there and while a server pulls it."""

import pyarrow as pa
import pytest

import larder


@pytest.fixture
def s3(each_s3):
    return each_s3


def frame(letter, count=3000):
    return pa.table({"member": [f"m{n}" for n in range(count)], "value": [f"{letter}{n}" * 9 for n in range(count)]})


def build(letter, out):
    return larder.build(frame(letter), store="s", key="member", value="value", out=out, partitions=4)


def once(fault, method, name):
    """Returns a function that injects the fault at the first matching request, and a list of that request."""
    seen = []

    def decide(requested, path):
        if requested == method and name in path and not seen:
            seen.append(path)
            return fault
        return None

    return decide, seen


@pytest.mark.parametrize("fault", [500, 503, "cut"])
def test_a_rejected_segment_upload_is_retried(s3, tmp_path, fault):
    decide, seen = once(fault, "PUT", "p00002")
    s3.on(decide)
    build("a", f"s3://versions/again-{fault}")
    assert seen
    larder.open(s3.get(f"again-{fault}/", tmp_path / "got")).verify()


@pytest.mark.parametrize("name", ["p00002.segment", "manifest.json"])
def test_a_rejected_build_leaves_no_version_and_a_retry_finishes(s3, tmp_path, name):
    out = f"s3://versions/refused-{name}"
    s3.on(lambda method, path: 403 if method == "PUT" and path.split("?")[0].endswith(f"/{name}") and "refused" in path else None)
    with pytest.raises(larder.Error, match="403|denied|permission") as refused:
        build("a", out)
    assert name in str(refused.value) or "versions/refused" in str(refused.value)
    s3.on(None)
    assert not any(left.endswith("manifest.json") for left in s3.list(f"refused-{name}/"))
    build("a", out)
    larder.open(s3.get(f"refused-{name}/", tmp_path / "got")).verify()


def test_a_pull_resumes_after_short_responses_and_rejects_missing_files(s3, s3_server):
    server, read = s3_server
    build("a", "s3://versions/one")
    build("b", "s3://versions/two")
    larder.push("s3://versions/one", store="s", server=server)
    assert read("m7").startswith("a7")

    # With an outdated view, the manifest is visible but one of its segments is not.
    s3.on(lambda method, path: 404 if method in ("GET", "HEAD") and "p00003" in path else None)
    with pytest.raises(larder.PushError, match="p00003"):
        larder.push("s3://versions/two", store="s", server=server)
    assert read("m7").startswith("a7")

    # The only segment that is certainly missing: the failed pull may have left all others.
    decide, seen = once("short", "GET", "p00003")
    s3.on(decide)
    larder.push("s3://versions/two", store="s", server=server)
    assert seen and read("m7").startswith("b7")


@pytest.fixture
def s3_server(s3, start_server):
    resp, http = start_server()
    client = pytest.importorskip("redis").Redis(*resp.split(":"), decode_responses=True)
    return http, lambda key: client.get(f"s:{key}")
