"""Starts the servers that are compared, each on loopback ports of its own and in a directory of its own."""
import os
import secrets
import socket
import subprocess
import time

USERS = 'golden-admin,uid-golden-admin,"system:masters"', 'golden-user,uid-golden-user,"golden-team"'


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


class Server:
    """A server under comparison: `url`, and the tokens of the users `admin` and `user`."""

    def __init__(self, url, tokens):
        self.url, self.tokens, self.processes = url, tokens, []

    def stop(self):
        for process in reversed(self.processes):        # a kube-apiserver cannot end without its etcd
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()

    def died(self):
        return any(process.poll() is not None for process in self.processes)


def token_file(directory):
    tokens = secrets.token_hex(16), secrets.token_hex(16)
    path = os.path.join(directory, 'tokens.csv')
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 'w') as f:
        f.writelines('%s,%s\n' % pair for pair in zip(tokens, USERS))
    return path, tokens


def spawn(server, command, log):
    with open(log, 'wb') as out:
        server.processes.append(subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL))


def wait_ready(server, check, what, log, seconds=180):
    deadline = time.time() + seconds
    while not check():
        if server.died() or time.time() > deadline:
            server.stop()
            raise SystemExit('%s did not start; its log: %s' % (what, log))
        time.sleep(0.2)


def ours(binary, directory):
    """Starts `kubestellar apiserver` with its data in memory."""
    os.makedirs(directory, exist_ok=True)
    tokens_path, tokens = token_file(directory)
    address, log = os.path.join(directory, 'url'), os.path.join(directory, 'log')
    server = Server('', tokens)
    spawn(server, [binary, 'apiserver', '--listen', '127.0.0.1:0', '--token-auth-file', tokens_path,
                   '--address-file', address], log)
    wait_ready(server, lambda: os.path.exists(address) and os.path.getsize(address), binary, log, 60)
    with open(address) as f:
        server.url = f.read().strip()
    return server


def real(apiserver, etcd, directory):
    """Starts etcd and an unmodified kube-apiserver as the recordings were made: no controllers, RBAC, defaults."""
    import requests
    os.makedirs(directory, exist_ok=True)
    tokens_path, tokens = token_file(directory)
    client, peer, port = free_port(), free_port(), free_port()
    key = os.path.join(directory, 'sa.key')
    subprocess.run(['openssl', 'genrsa', '-out', key, '2048'], check=True, capture_output=True)
    ca_key, ca = os.path.join(directory, 'ca.key'), os.path.join(directory, 'ca.crt')
    subprocess.run(['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-keyout', ca_key, '-out', ca,
                    '-subj', '/CN=ca', '-days', '2'], check=True, capture_output=True)
    server = Server('https://127.0.0.1:%d' % port, tokens)
    store = 'http://127.0.0.1:%d' % client
    spawn(server, [etcd, '--data-dir', os.path.join(directory, 'etcd'), '--listen-client-urls', store,
                   '--advertise-client-urls', store, '--listen-peer-urls', 'http://127.0.0.1:%d' % peer,
                   '--unsafe-no-fsync'], os.path.join(directory, 'etcd.log'))
    log = os.path.join(directory, 'log')
    spawn(server, [apiserver, '--etcd-servers', store, '--bind-address', '127.0.0.1', '--advertise-address',
                   '127.0.0.1', '--secure-port', str(port), '--cert-dir', directory, '--token-auth-file', tokens_path,
                   '--client-ca-file', ca, '--authorization-mode', 'RBAC', '--service-account-key-file', key,
                   '--service-account-signing-key-file', key, '--service-account-issuer',
                   'https://kubernetes.default.svc', '--service-cluster-ip-range', '10.96.0.0/16',
                   '--endpoint-reconciler-type', 'none', '--allow-privileged'], log)
    session = requests.Session()
    session.trust_env = False

    def ready():
        try:
            answer = session.get(server.url + '/readyz', verify=False, timeout=2,
                                 headers={'Authorization': 'Bearer ' + tokens[0]})
            return answer.status_code == 200
        except requests.RequestException:
            return False
    import urllib3
    urllib3.disable_warnings()
    wait_ready(server, ready, apiserver, log)
    return server
