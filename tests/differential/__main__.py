#!/usr/bin/env python3
"""Compares `kubestellar apiserver` with a real kube-apiserver, request by request.

  scripts/differential --real KUBE_APISERVER --etcd ETCD [--ours BINARY] [OPTIONS]

Requests are generated from the real server's OpenAPI documents and the samples beside this file. Differences are
grouped by cause; those of `deliberate.json` are left out. Ends with 'N passed, N failed'; exit status 0 without
differences. One seed gives the same requests again.
"""
import argparse
import collections
import importlib.util
import itertools
import json
import os
import random
import re
import signal
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import cases                    # noqa: E402
import compare                  # noqa: E402
import record                   # noqa: E402
import servers                  # noqa: E402
from schema import Schemas      # noqa: E402

ROOT = os.path.dirname(os.path.dirname(HERE))


def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--real', help='path of a kube-apiserver')
    ap.add_argument('--etcd', default='etcd', help='path of etcd 3.6 or later')
    ap.add_argument('--real-url', help='URL of a running real server, with --real-tokens')
    ap.add_argument('--real-tokens', help='its tokens of golden-admin and golden-user: T,U')
    ap.add_argument('--ours', default=os.path.join(os.environ.get('CARGO_TARGET_DIR', os.path.join(ROOT, 'target')), 'debug', 'kubestellar'))
    ap.add_argument('--replay', default=os.path.join(ROOT, '..', 'shared', 'golden', 'replay.py'), help='the module that replays recordings')
    ap.add_argument('--kinds', default='.', help='only resources (group/version/plural) that match this regular expression')
    ap.add_argument('--verbs', default='.', help='only verbs that match this regular expression')
    ap.add_argument('--labels', default='.', help='only cases whose label matches this regular expression')
    ap.add_argument('--per-verb', type=int, default=150, help='most cases for each kind and verb (0: all)')
    ap.add_argument('--seed', type=int, default=1)
    ap.add_argument('--show', type=int, default=2, help='examples shown of each cause')
    ap.add_argument('--record', help='write one trace for each cause that --causes selects into this file')
    ap.add_argument('--causes', default='.', help='regular expression on "kind verb cause"')
    ap.add_argument('--json', help='write all differences into this file')
    ap.add_argument('--keep', help='directory of the servers; kept')
    return ap.parse_args()


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def discover(pair, samples, wanted):
    """The kinds of the real server that have samples."""
    target = pair.targets[0]
    get = lambda path: target.send('GET', path, {}, None, 'admin').json()   # noqa: E731
    documents = {}
    for key in samples:
        if not re.search(wanted, key):
            continue
        group, version, plural = key.split('/')
        root = '/api/v1' if group == 'core' else '/apis/%s/%s' % (group, version)
        if root not in documents:
            documents[root] = get(root)['resources'], Schemas(get('/openapi/v3' + root))
        resources, schemas = documents[root]
        found = [r for r in resources if r['name'] == plural]
        if not found:
            print('the real server has no', key, file=sys.stderr)
            continue
        kind = cases.Kind(key, found[0], schemas, samples[key])
        kind.subresources = [r['name'].split('/', 1)[1] for r in resources if r['name'].startswith(plural + '/')]
        yield kind


def prepare(pair, kind, run):
    """Makes a namespace and the stored samples of a kind on both servers. Returns names and variables."""
    ns = run + '-' + re.sub('[^a-z]', '', kind.plural) + kind.version + re.sub('[^a-z]', '', kind.group)[:12]
    variables = pair.variables(run=run, ns=ns)
    names, steps = kind.setup()
    setup = [{'m': 'POST', 'path': '/api/v1/namespaces', 'body': {'metadata': {'name': '{ns}'}}},
             {'m': 'POST', 'path': '/api/v1/namespaces/{ns}/serviceaccounts', 'body': {'metadata': {'name': 'robot'}}}]
    found = []
    for step in setup + steps:
        step = dict(step)
        missing, answers = pair.differences(cases.case(kind, 'create', 'stored ' + step['path'], step), variables)
        found += [(cases.case(kind, 'create', 'stored', step), missing, answers)] if missing else []
        if answers[0][0]['status'] not in (201, 409):
            print('not accepted:', kind.key, json.dumps(answers[0][0]['body'])[:600], file=sys.stderr)
    kept = []
    for name, body in names:
        ok = True
        for which in (0, 1):
            answer = pair.replay.do(pair.targets[which], {'m': 'GET', 'path': kind.item(name)}, variables[which])
            version = ((answer['body'] or {}).get('metadata') or {}).get('resourceVersion') if isinstance(answer['body'], dict) else None
            ok = ok and version is not None
            variables[which]['rv_' + name.replace('{run}-', '')] = version or '1'
        if ok:
            kept.append((name, body))
    return kept, variables, found, setup + steps


def generated(kind, names, rnd, per_verb):
    """The cases of a kind, shuffled and cut to `per_verb` of each generator."""
    makers = [cases.creates(kind)]
    if 'update' in kind.verbs and names:
        makers += [cases.updates(kind, names), cases.status_updates(kind, names), cases.directives(kind, names)]
        makers += [cases.patches(kind, names)]
        if kind.group != 'admissionregistration.k8s.io':        # a stored webhook delays all other requests
            makers += [cases.applies(kind, rnd)]
    if 'get' in kind.verbs:
        makers += [cases.reads(kind, names)]
    makers += [cases.options(kind, names), cases.deletions(kind) if 'delete' in kind.verbs and kind.group != 'admissionregistration.k8s.io' else []]
    for maker in makers:
        made = list(maker)
        if per_verb and len(made) > per_verb:
            first, rest = made[:2], made[2:]
            made = first + rnd.sample(rest, per_verb - 2)
        yield from made


class Report:
    def __init__(self, deliberate):
        self.deliberate = [(re.compile(d['difference']), d['why']) for d in deliberate]
        self.groups = collections.defaultdict(list)
        self.table = collections.defaultdict(lambda: [0, 0, 0])
        self.known = 0

    def add(self, case, found, answers):
        row = self.table[case['kind'], case['verb']]
        row[0] += 1
        new = [c for c in found if not any(d.search('%s %s %s' % (case['kind'], case['verb'], c)) for d, _ in self.deliberate)]
        self.known += bool(found) and not new
        row[1] += bool(new)
        for cause in new[:3]:
            self.groups[case['kind'], case['verb'], cause].append((case, answers))

    def print(self, show):
        by_cause = collections.defaultdict(list)
        for (kind, verb, cause), hits in self.groups.items():
            by_cause[cause].append((len(hits), kind, verb, hits))
        for cause, found in sorted(by_cause.items(), key=lambda c: (-sum(f[0] for f in c[1]), c[0])):
            kinds = sorted({'%s %s' % (kind.split('/')[-1], verb) for _, kind, verb, _ in found})
            print('%4d %s\n     in %s' % (sum(f[0] for f in found), cause, ', '.join(kinds)[:200]))
            for case in [hit[0] for f in found for hit in f[3][:1]][:show]:
                print('       %s: %s' % (case['kind'].split('/')[-1], case['label'][:160]))
        print('\n%-58s %-16s %8s %8s' % ('kind', 'verb', 'cases', 'differ'))
        for (kind, verb), (n, bad, _) in sorted(self.table.items()):
            if bad:
                print('%-58s %-16s %8d %8d' % (kind, verb, n, bad))
        total, bad = (sum(row[i] for row in self.table.values()) for i in (0, 1))
        print('%d causes; %d cases differ deliberately' % (len(self.groups), self.known))
        print('%d passed, %d failed' % (total - bad, bad))
        return bad


def main():
    a = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))       # so that the servers are stopped
    replay = load(a.replay, 'replay')
    with open(os.path.join(HERE, 'samples.json')) as f:
        samples = json.load(f)
    with open(os.path.join(HERE, 'deliberate.json')) as f:
        deliberate = json.load(f)
    scratch = None if a.keep else tempfile.TemporaryDirectory(prefix='differential-')
    base = a.keep or scratch.name
    if a.real_url:
        real = servers.Server(a.real_url, a.real_tokens.split(','))
    else:
        real = servers.real(a.real, a.etcd, os.path.join(base, 'real'))
    ours = None
    try:
        ours = servers.ours(a.ours, os.path.join(base, 'ours'))
        return compare_all(a, compare.Pair(replay, real, ours), samples, deliberate)
    finally:
        for server in (real, ours):
            if server:
                server.stop()


def compare_all(a, pair, samples, deliberate):
    run = 'gld' + ''.join(random.Random(time.time()).choice('bcdfghjkmnpqrstvwxz') for _ in range(6))
    report, traces = Report(deliberate), []
    for kind in discover(pair, samples, a.kinds):
        rnd = random.Random('%d %s' % (a.seed, kind.key))
        names, variables, found, setup = prepare(pair, kind, run)
        for case, causes, answers in found:
            report.add(case, causes, answers)
        started, before = time.time(), pair.requests
        for case in itertools.chain(generated(kind, names, rnd, a.per_verb)):
            if not re.search(a.verbs, case['verb']) or not re.search(a.labels, case['label']):
                continue
            causes, answers = pair.differences(case, variables)
            report.add(case, causes, answers)
            if causes and a.record:
                traces.append((case, causes, setup))
        print('%s: %d requests in %.0f s' % (kind.key, pair.requests - before, time.time() - started), file=sys.stderr)
        if a.json:
            with open(a.json, 'w') as f:
                json.dump([{'kind': k, 'verb': v, 'cause': c, 'count': len(h), 'label': h[0][0]['label'],
                            'steps': h[0][0]['steps'], 'answers': h[0][1]}
                           for (k, v, c), h in report.groups.items()], f, indent=1)
    if a.record:
        record.write(a.record, pair, traces, a.causes)
    return 1 if report.print(a.show) else 0


if __name__ == '__main__':
    sys.exit(main())
