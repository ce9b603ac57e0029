#!/usr/bin/env python3
"""Copies of ConfigMaps with their keys in upper case: the whole controller."""
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def map_(request):
    source, parent = request["input"], request["parent"]
    return {"outputs": [{
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": source["metadata"]["name"] + parent["spec"]["suffix"],
            "labels": {"made-by": parent["metadata"]["name"]},
        },
        "data": {key.upper(): value for key, value in source.get("data", {}).items()},
    }]}


class Hooks(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        data = json.dumps(map_(request)).encode()
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
