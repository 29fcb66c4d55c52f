from __future__ import annotations

import base64
import json
import os
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Mapping, Optional, Union


from larder._options import limits

Limits = Union[float, Mapping[str, float], None]


class PushError(Exception):
    """The server could not pull the version, or rejected it.

    ``code`` is the error code, such as ``REFUSED`` for a gate.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


def push(
    version: Union[str, "os.PathLike[str]"],
    *,
    store: str,
    server: str = "http://127.0.0.1:7070",
    password: Optional[str] = None,
    min_records: Optional[int] = None,
    max_shrink_percent: Optional[float] = None,
    max_growth_percent: Optional[float] = None,
    max_nulls: Limits = None,
    max_empty: Limits = None,
    max_shift: Limits = None,
    canary: Optional[Mapping[str, str]] = None,
    activate: bool = True,
    allow_missing_replicas: int = 0,
) -> dict[str, Any]:
    """Makes a server or a cluster pull a built version, and waits until it is live.

        larder.push("built/pymk", store="pymk")
        larder.push("s3://bucket/built/pymk", store="pymk", server="http://larder-1:7070", min_records=1_000_000)

    Args:
        version: a folder or URL with ``manifest.json``. The server must be able to read a folder.
        server: the HTTP address of the server.
        min_records: reject a version with fewer records.
        max_shrink_percent: reject a version with fewer records than the live one by more than this.
        max_growth_percent: reject a version with more records than the live one by more than this.
        max_nulls, max_empty: reject a version in which a column is null, or an empty text, in a larger percentage of the rows: a number for every
            column, or ``{column: number}``.
        max_shift: reject a version in which a column has shifted further from the live one, as a population stability index.
        canary: keys that must have exactly these values.
        activate: if false, the version is kept but does not become live.
        allow_missing_replicas: in a cluster, the number of nodes that may lack the version when it becomes live.

    Returns:
        The final status of the pull: ``version``, ``bytes_done`` and more.

    Raises:
        PushError: the pull failed, or a gate rejected the version; the live version is unchanged.
        OSError: the server is not reachable.
    """
    text = os.fspath(version)
    source = text if "://" in text else Path(text).absolute().as_uri()
    gates: dict[str, Any] = {}
    if min_records is not None:
        gates["min_records"] = min_records
    if max_shrink_percent is not None:
        gates["max_shrink_percent"] = max_shrink_percent
    if max_growth_percent is not None:
        gates["max_growth_percent"] = max_growth_percent
    for name, given in (("max_nulls", max_nulls), ("max_empty", max_empty), ("max_shift", max_shift)):
        by_column = limits(given, name)
        if by_column:
            gates[name] = [{"column": column, "limit": limit} for column, limit in by_column.items()]
    if canary:
        gates["canary"] = [{"key": key, "value": value} for key, value in canary.items()]
    request: dict[str, Any] = {"source": source, "activate": activate}
    if allow_missing_replicas:
        request["allow_missing_replicas"] = allow_missing_replicas
    if gates:
        request["gates"] = gates
    admin = _Admin(server, password)
    pull = admin.request("POST", f"/v1/stores/{store}/pull", request)
    pause = 0.01
    while pull["state"] not in ("done", "failed", "cancelled"):
        time.sleep(pause)
        pause = min(pause * 2, 0.2)
        pull = admin.request("GET", f"/v1/pulls/{pull['id']}")
    if pull["state"] == "done":
        return pull
    error = pull.get("error") or {"code": "CANCELLED", "message": "the pull was cancelled"}
    raise PushError(error["code"], error["message"])


class _Admin:
    def __init__(self, server: str, password: Optional[str]) -> None:
        self._base = (server if "://" in server else f"http://{server}").rstrip("/")
        self._headers = {"content-type": "application/json"}
        if password is not None:
            credentials = base64.b64encode(f"default:{password}".encode()).decode()
            self._headers["authorization"] = f"Basic {credentials}"

    def request(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data=data, headers=self._headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            text = refused.read()
            try:
                error = json.loads(text)["error"]
            except (ValueError, KeyError, TypeError):
                raise PushError(str(refused.code), text.decode(errors="replace")[:200]) from None
            raise PushError(error["code"], error["message"]) from None
