#!/usr/bin/env python3
"""An annotation on a Deployment brings it a ConfigMap with its owner's telephone number: the whole controller."""
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def sync(request):
    deployment = request["object"]
    owner = deployment["metadata"]["annotations"]["on-call"]
    return {
        "labels": {"has-contact": "true"},
        "attachments": [{
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": deployment["metadata"]["name"] + "-contact"},
            "data": {"on-call": owner, "replicas": str(deployment["spec"].get("replicas", 1))},
        }],
    }


def finalize(request):
    """The Deployment goes, or has lost its annotation: take everything back."""
    return {"labels": {"has-contact": None}, "attachments": [], "finalized": not request["attachments"]["ConfigMap.v1"]}


class Hooks(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        data = json.dumps({"/sync": sync, "/finalize": finalize}[self.path](request)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    local = sys.argv[1:]
    server = ThreadingHTTPServer(("127.0.0.1", 0) if local else ("", 8080), Hooks)
    for name in local:
        with open(name, "w") as file:
            file.write(str(server.server_port))
    server.serve_forever()
