#!/usr/bin/env python3
"""Snapshots on a schedule: the whole controller. Time can be set by POSTing a number to /clock, for demonstrations."""
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SNAPSHOTS = "VolumeSnapshot.snapshot.storage.k8s.io/v1"
clock = None


def now():
    return int(time.time()) if clock is None else clock


def taken_at(snapshot):
    return int(snapshot["metadata"]["annotations"]["taken-at"])


def kept(request):
    """The snapshots that are not too old yet. Naming them is enough: existing ones are not changed."""
    ttl = request["parent"]["spec"]["ttlSeconds"]
    return [s for s in request["outputs"][SNAPSHOTS].values() if now() - taken_at(s) <= ttl]


def named(snapshot):
    return {"apiVersion": snapshot["apiVersion"], "kind": snapshot["kind"], "metadata": {"name": snapshot["metadata"]["name"]}}


def map_(request):
    """What snapshots a volume claim is to have."""
    snapshots = kept(request)
    outputs = [named(s) for s in snapshots]
    interval = request["parent"]["spec"]["intervalSeconds"]
    if not snapshots or now() - max(map(taken_at, snapshots)) >= interval:
        claim = request["input"]["metadata"]["name"]
        outputs.append({
            "apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshot",
            "metadata": {"name": f"{claim}-{now()}", "annotations": {"taken-at": str(now())}},
            "spec": {"source": {"persistentVolumeClaimName": claim}},
        })
    return {"outputs": outputs}


def tombstone(request):
    """What to keep of a claim that is gone: the same, but nothing new."""
    return {"outputs": [named(s) for s in kept(request)]}


class Hooks(BaseHTTPRequestHandler):
    def do_POST(self):
        global clock
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/clock":
            clock, answer = body, {}
        else:
            answer = {"/map": map_, "/tombstone": tombstone}[self.path](body)
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    # In a cluster: hook.py, on port 8080. With a file name: on a free port of this host, which is written there.
    local = sys.argv[1:]
    server = ThreadingHTTPServer(("127.0.0.1", 0) if local else ("", 8080), Hooks)
    for name in local:
        with open(name, "w") as file:
            file.write(str(server.server_port))
    server.serve_forever()
