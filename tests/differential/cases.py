"""Generates cases. Each generator yields dicts with `kind`, `verb`, `label` and `steps`; see compare.py."""
import copy
import json

from schema import DELETE, edited, edits, shown

MERGE, JSON_PATCH, STRATEGIC = ('application/%s+json' % t for t in ('merge-patch', 'json-patch', 'strategic-merge-patch'))
APPLY = 'application/apply-patch+yaml'


class Kind:
    """A served resource with sample objects."""

    def __init__(self, key, resource, schemas, samples):
        group, self.version, self.plural = key.split('/')
        self.key, self.group = key, '' if group == 'core' else group
        self.namespaced, self.kind, self.verbs = resource['namespaced'], resource['kind'], resource['verbs']
        self.schemas, self.samples = schemas, samples
        self.schema = schemas.kinds.get((self.group, self.version, self.kind), {})
        root = '/apis/%s/%s' % (self.group, self.version) if self.group else '/api/' + self.version
        self.collection = root + ('/namespaces/{ns}/' if self.namespaced else '/') + self.plural
        self.everywhere = root + '/' + self.plural
        self.subresources = []

    def item(self, name):
        return '%s/%s' % (self.collection, name)

    def bodies(self):
        for sample in self.samples:
            body = copy.deepcopy(sample)
            body['apiVersion'] = (self.group + '/' if self.group else '') + self.version
            body['kind'] = self.kind
            yield body

    def setup(self):
        """Objects with the names that updates use. Returns (name, sample) and the steps."""
        out, steps = [], []
        for i, body in enumerate(self.bodies()):
            body.setdefault('metadata', {})
            if self.verbs == ['create'] or 'name' not in body['metadata']:
                continue
            if 'update' not in self.verbs:
                continue
            if i:
                if self.plural in ('apiservices', 'customresourcedefinitions', 'ipaddresses'):
                    continue
                body['metadata']['name'] += str(i)
            if self.plural == 'events' and self.group == '':
                body['involvedObject']['namespace'] = '{ns}'
            out.append((body['metadata']['name'], body))
            steps.append({'m': 'POST', 'path': self.collection, 'body': body})
        return out, steps


def case(kind, verb, label, *steps):
    return {'kind': kind.key, 'verb': verb, 'label': label, 'steps': list(steps)}


def creates(kind):
    """Every edit of every sample, as a create that is not kept."""
    for body in kind.bodies():
        yield case(kind, 'create', 'as is', {'m': 'POST', 'path': kind.collection + '?dryRun=All', 'body': dict(body, metadata=dict(body.get('metadata', {}), name='fresh' if kind.namespaced else '{run}-fresh'))}
                   if kind.plural not in ('ipaddresses', 'apiservices', 'customresourcedefinitions') and 'metadata' in body and 'generateName' not in body['metadata'] else
                   {'m': 'POST', 'path': kind.collection + '?dryRun=All', 'body': body})
        body = copy.deepcopy(body)
        meta = body.get('metadata', {})
        fixed = kind.plural in ('apiservices', 'customresourcedefinitions', 'ipaddresses')
        if 'name' in meta and not fixed:
            meta['name'] = meta['name'].replace('s', 'new')
        if kind.plural == 'ipaddresses':
            meta['name'] = '192.168.9.10'
        if kind.plural == 'apiservices':
            meta['name'], body['spec']['version'] = meta['name'].replace('v1.', 'v2.'), 'v2'
        if kind.plural == 'customresourcedefinitions':
            meta['name'] = meta['name'].replace('gadgets', 'widgets')
            body['spec']['names'] = {'plural': 'widgets', 'singular': 'widget', 'kind': 'Widget', 'listKind': 'WidgetList', 'shortNames': ['wd'], 'categories': ['all']}
        for label, path, value in edits(kind.schemas, kind.schema, body):
            yield case(kind, 'create', '%s %s=%s' % (label, shown(path), brief(value)),
                       {'m': 'POST', 'path': kind.collection + '?dryRun=All', 'body': edited(body, path, value)})


def updates(kind, names):
    """Every edit of every stored sample, as a replacement that is not kept."""
    for name, body in names:
        body = copy.deepcopy(body)
        for label, path, value in [('as is', (), body)] + list(edits(kind.schemas, kind.schema, body)):
            new = edited(body, path, value) if path else body
            if isinstance(new.get('metadata'), dict):
                new['metadata'] = dict(new['metadata'], resourceVersion='{rv_%s}' % name.replace('{run}-', ''))
            yield case(kind, 'update', '%s %s=%s' % (label, shown(path), brief(value)),
                       {'m': 'PUT', 'path': kind.item(name) + '?dryRun=All', 'body': new})


def status_updates(kind, names):
    """Edits of a generated status through the subresource."""
    schema = kind.schemas.resolve(kind.schema).get('properties', {}).get('status')
    if schema is None or 'status' not in kind.subresources:
        return
    for name, body in names[:2]:
        base = kind.schemas.minimal(schema)
        for label, path, value in [('as is', (), base)] + list(edits(kind.schemas, schema, base)):
            status = edited(base, path, value) if path else base
            new = dict(body, status=status)
            yield case(kind, 'status', '%s %s=%s' % (label, shown(path), brief(value)),
                       {'m': 'PUT', 'path': kind.item(name) + '/status?dryRun=All',
                        'body': dict(new, metadata=dict(body['metadata'], resourceVersion='{rv_%s}' % name.replace('{run}-', '')))})


def nested(path, value):
    """The smallest object with `value` at `path`; None if a list is on the way."""
    for key in reversed(path):
        if isinstance(key, int):
            return None
        value = {key: value}
    return value


def patches(kind, names):
    """Every edit as a merge patch, a JSON patch and, through lists, a strategic merge patch."""
    for name, body in names:
        url = kind.item(name) + '?dryRun=All'
        for label, path, value in edits(kind.schemas, kind.schema, body):
            text = '%s %s=%s' % (label, shown(path), brief(value))
            pointer = ''.join('/' + str(p).replace('~', '~0').replace('/', '~1') for p in path)
            op = {'op': 'remove', 'path': pointer} if value is DELETE else {'op': 'add' if label != 'text' else 'replace', 'path': pointer, 'value': value}
            yield case(kind, 'json-patch', text, patch(url, JSON_PATCH, [op]))
            merge = nested(path, None if value is DELETE else value)
            if merge is not None:
                yield case(kind, 'merge-patch', text, patch(url, MERGE, merge))
                if kind.group != 'apiextensions.k8s.io':
                    yield case(kind, 'strategic-patch', text, patch(url, STRATEGIC, merge))


def directives(kind, names):
    """Strategic merge patches with directives on every map and list."""
    for name, body in names:
        url = kind.item(name) + '?dryRun=All'
        for path, value in places(body):
            if path[:1] in (('apiVersion',), ('kind',)) or not path:
                continue
            made = []
            if isinstance(value, dict):
                made = [dict(value, **{'$patch': 'replace'}), {'$patch': 'delete'}, {'$retainKeys': sorted(value)[:1]}, {'$patch': 'wrong'}, {'$patch': 1}]
            elif isinstance(value, list) and value:
                made = [[{'$patch': 'replace'}], [value[0]], [value[0], value[0]], [{'$patch': 'delete'}], []]
                if isinstance(value[0], dict):
                    made += [[dict(value[0], **{'$patch': 'delete'})], [dict(value[0], **{'$patch': 'merge'})], [{}]]
            for new in made:
                if any(isinstance(p, int) for p in path):
                    continue
                yield case(kind, 'strategic-patch', 'directive %s=%s' % (shown(path), brief(new)), patch(url, STRATEGIC, nested(path, new)))
            if isinstance(value, list) and not any(isinstance(p, int) for p in path):
                for key in ('$setElementOrder/', '$deleteFromPrimitiveList/'):
                    at = path[:-1] + (key + path[-1],)
                    yield case(kind, 'strategic-patch', 'directive %s' % shown(at), patch(url, STRATEGIC, nested(at, value[::-1])))


def places(value, path=()):
    yield path, value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, v in inner:
        yield from places(v, path + (key,))


def patch(url, kind, body, **more):
    return dict({'m': 'PATCH', 'path': url, 'headers': {'Content-Type': kind}, 'body': body}, **more)


def applies(kind, rnd):
    """Histories of server-side apply by several managers; each ends with what is stored."""
    for i, body in enumerate(kind.bodies()):
        if 'name' not in body.get('metadata', {}) or 'patch' not in kind.verbs:
            continue
        if kind.plural in ('apiservices', 'customresourcedefinitions', 'ipaddresses'):
            continue
        all_edits = [e for e in edits(kind.schemas, kind.schema, body) if e[1][:1] != ('metadata',) or e[1][1:2] in (('labels',), ('annotations',), ('finalizers',))]
        for round_ in range(12):
            name = '%sa%d-%d' % ('' if kind.namespaced else '{run}-', i, round_)
            steps = []
            for step in range(rnd.randint(3, 5)):
                new = copy.deepcopy(body)
                for _, path, value in rnd.sample(all_edits, min(len(all_edits), rnd.randint(0, 2))):
                    try:
                        new = edited(new, path, value)
                    except (KeyError, IndexError, TypeError):
                        pass
                if not isinstance(new.get('metadata'), dict):
                    continue
                new['metadata']['name'] = name
                query = '?fieldManager=m%d%s' % (rnd.randint(1, 2), rnd.choice(('', '', '&force=true')))
                steps.append(patch(kind.item(name) + query, APPLY, new) if rnd.random() < .8 else
                             patch(kind.item(name) + '?fieldManager=other', MERGE, dict({k: v for k, v in new.items() if k in rnd.sample(sorted(new), 2)})))
            yield case(kind, 'apply', 'history %d' % round_, *steps, {'m': 'GET', 'path': kind.item(name)},
                       {'m': 'DELETE', 'path': kind.item(name) + '?gracePeriodSeconds=0'})


READS = ('', '?pretty=true', '?resourceVersion=0', '?resourceVersion=x', '?resourceVersion=99999999', '?fieldManager=x', '?limit=1', '?export=true', '?dryRun=All')
LISTS = READS + ('?limit=-1', '?limit=x', '?continue=x', '?labelSelector=a%3Db', '?labelSelector=a%20in%20(b,c)', '?labelSelector=!a', '?labelSelector=a%3D%3D%3Db', '?labelSelector=%20',
                 '?fieldSelector=metadata.name%3Ds', '?fieldSelector=metadata.name!%3Ds', '?fieldSelector=spec.x%3D1', '?fieldSelector=metadata.name', '?fieldSelector=metadata.namespace%3Dz',
                 '?fieldSelector=status.phase%3DActive', '?fieldSelector=spec.nodeName%3Dn1', '?fieldSelector=type%3DOpaque', '?resourceVersionMatch=Exact', '?resourceVersion=1&resourceVersionMatch=Exact',
                 '?resourceVersion=0&resourceVersionMatch=Exact', '?resourceVersion=0&resourceVersionMatch=NotOlderThan', '?resourceVersionMatch=x&resourceVersion=0', '?sendInitialEvents=true',
                 '?watch=true&sendInitialEvents=true&timeoutSeconds=1', '?watch=true&resourceVersionMatch=Exact&resourceVersion=1&timeoutSeconds=1', '?watch=x&timeoutSeconds=1', '?timeoutSeconds=x', '?allowWatchBookmarks=x', '?watch=true&timeoutSeconds=1&resourceVersion=abc')
ACCEPTS = ('application/json', 'application/yaml', '*/*', 'application/*', 'text/html', 'application/xml', 'application/json;as=Table;v=v1;g=meta.k8s.io', 'application/json;as=Table;v=v1beta1;g=meta.k8s.io',
           'application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io', 'application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io', 'application/json;as=X;v=v1;g=meta.k8s.io',
           'application/json;as=Table;v=v2;g=meta.k8s.io', 'application/yaml;as=Table;v=v1;g=meta.k8s.io', 'application/json;q=0.1, application/yaml', 'application/cbor', 'text/html, */*;q=0.1')


def reads(kind, names):
    """Gets, lists and their options and representations."""
    lists = 'list' in kind.verbs
    for name, _ in names + [('absent', None)]:
        for query in READS:
            yield case(kind, 'get', query, {'m': 'GET', 'path': kind.item(name) + query})
        for accept in ACCEPTS:
            yield case(kind, 'get', 'Accept ' + accept, {'m': 'GET', 'path': kind.item(name), 'headers': {'Accept': accept}})
    for query in LISTS if lists else ():
        step = {'m': 'GET', 'path': kind.collection + query}
        if not kind.namespaced:
            step['only_run'] = 'body.items'
        yield case(kind, 'list', query, step)
    if lists and kind.namespaced:
        for accept in ACCEPTS:
            yield case(kind, 'list', 'Accept ' + accept, {'m': 'GET', 'path': kind.collection, 'headers': {'Accept': accept}})


def options(kind, names):
    """Options of writes, wrong bodies, and deletions that are not kept."""
    name, body = names[0] if names else ('s', next(kind.bodies()))
    queries = ('dryRun=x', 'dryRun=All&dryRun=All', 'dryRun=', 'fieldManager=' + 'x' * 129, 'fieldManager=a%00b', 'fieldValidation=x', 'fieldValidation=Strict', 'fieldValidation=Ignore', 'fieldValidation=Warn',
               'force=true', 'fieldManager=f', 'pretty=1', 'timeout=1x', 'unknown=1')
    extra = dict(body, unknown=1)
    for query in queries:
        q = '?' + query if 'dryRun' in query else '?dryRun=All&' + query
        yield case(kind, 'create', 'option ' + query, {'m': 'POST', 'path': kind.collection + q, 'body': extra})
        if 'update' in kind.verbs:
            yield case(kind, 'update', 'option ' + query, {'m': 'PUT', 'path': kind.item(name) + q, 'body': extra})
        if 'patch' in kind.verbs:
            for media in (MERGE, APPLY):
                yield case(kind, 'patch', 'option %s %s' % (media, query), patch(kind.item(name) + q, media, {'apiVersion': body['apiVersion'], 'kind': body['kind'], 'metadata': {'name': name, 'labels': {'q': 'r'}}, 'unknown': 1}))
    for raw in ('', ' ', '{', '[]', 'null', '"x"', '{}', '{"kind":"X"}', '{"apiVersion":"x/y/z"}', '{"metadata":1}', '{"metadata":{"name":1}}', '{"metadata":null}', '{"a":1}{"b":2}', '{"kind":"Status","apiVersion":"v1"}', '\x00'):
        yield case(kind, 'create', 'body ' + raw, {'m': 'POST', 'path': kind.collection + '?dryRun=All', 'raw': raw, 'headers': {'Content-Type': 'application/json'}})
        if 'update' in kind.verbs:
            yield case(kind, 'update', 'body ' + raw, {'m': 'PUT', 'path': kind.item(name) + '?dryRun=All', 'raw': raw, 'headers': {'Content-Type': 'application/json'}})
        if 'patch' in kind.verbs:
            for media in (MERGE, JSON_PATCH, STRATEGIC, APPLY):
                yield case(kind, 'patch', 'body %s %s' % (media, raw), {'m': 'PATCH', 'path': kind.item(name) + '?dryRun=All&fieldManager=f', 'raw': raw, 'headers': {'Content-Type': media}})
    for media in ('text/plain', 'application/yaml', 'application/xml', 'application/json; charset=utf-8', 'application/json;x', 'json', '', 'application/vnd.kubernetes.protobuf', 'application/cbor', MERGE):
        yield case(kind, 'create', 'Content-Type ' + media, {'m': 'POST', 'path': kind.collection + '?dryRun=All', 'raw': json.dumps(body), 'headers': {'Content-Type': media}})
        if 'patch' in kind.verbs:
            yield case(kind, 'patch', 'Content-Type ' + media, {'m': 'PATCH', 'path': kind.item(name) + '?dryRun=All', 'raw': '{}', 'headers': {'Content-Type': media}})
    if 'delete' in kind.verbs:
        for options_ in ({}, {'propagationPolicy': 'Foreground'}, {'propagationPolicy': 'Orphan'}, {'propagationPolicy': 'X'}, {'propagationPolicy': ''}, {'orphanDependents': True}, {'orphanDependents': True, 'propagationPolicy': 'Orphan'},
                         {'preconditions': {'uid': 'x'}}, {'preconditions': {'resourceVersion': '1'}}, {'preconditions': {}}, {'gracePeriodSeconds': 0}, {'gracePeriodSeconds': -1}, {'gracePeriodSeconds': 'x'}, {'dryRun': ['x']}, {'unknown': 1},
                         {'kind': 'X', 'apiVersion': 'v1'}, {'kind': 'DeleteOptions', 'apiVersion': 'v1'}, {'kind': 'DeleteOptions', 'apiVersion': body['apiVersion']}, {'ignoreStoreReadErrorWithClusterBreakingPotential': True}):
            sent = dict({'dryRun': ['All']}, **options_)
            yield case(kind, 'delete', 'options %s' % options_, {'m': 'DELETE', 'path': kind.item(name), 'body': sent})
        for query in ('dryRun=All', 'dryRun=All&gracePeriodSeconds=x', 'dryRun=All&propagationPolicy=x', 'dryRun=All&propagationPolicy=Foreground&orphanDependents=true', 'dryRun=x', 'dryRun=All&resourceVersion=1'):
            yield case(kind, 'delete', query, {'m': 'DELETE', 'path': kind.item(name) + '?' + query})
        yield case(kind, 'delete', 'absent', {'m': 'DELETE', 'path': kind.item('absent')})
        if kind.namespaced and 'deletecollection' in kind.verbs:
            for query in ('dryRun=All', 'dryRun=All&labelSelector=a%3D', 'dryRun=All&fieldSelector=metadata.name%3Ds', 'dryRun=All&limit=1', 'dryRun=x'):
                yield case(kind, 'deletecollection', query, {'m': 'DELETE', 'path': kind.collection + '?' + query})
    for verb in ('PUT', 'PATCH', 'DELETE', 'OPTIONS', 'HEAD', 'TRACE', 'FOO'):
        if verb != 'DELETE' or 'deletecollection' not in kind.verbs:
            yield case(kind, 'method', verb, {'m': verb, 'path': kind.collection, 'body': {}})
    for verb in ('POST', 'HEAD', 'OPTIONS', 'FOO'):
        yield case(kind, 'method', 'item ' + verb, {'m': verb, 'path': kind.item(name), 'body': {}})
    for sub in ('status', 'scale', 'finalize', 'nothing', 'status/x', 'log', 'exec', 'token', 'binding', 'proxy', 'approval', 'eviction', 'resize', 'ephemeralcontainers'):
        for verb in ('GET', 'POST', 'PUT'):
            yield case(kind, 'subresource', '%s %s' % (verb, sub), {'m': verb, 'path': kind.item(name) + '/' + sub, 'body': {} if verb != 'GET' else None} if verb != 'GET' else {'m': verb, 'path': kind.item(name) + '/' + sub})


def deletions(kind):
    """Finalizers, propagation and grace, followed to the end."""
    for i, body in enumerate(kind.bodies()):
        if 'name' not in body.get('metadata', {}) or kind.plural in ('apiservices', 'customresourcedefinitions', 'ipaddresses', 'namespaces'):
            continue
        for j, options_ in enumerate(({}, {'propagationPolicy': 'Foreground'}, {'propagationPolicy': 'Orphan'}, {'gracePeriodSeconds': 0}, {'gracePeriodSeconds': 10})):
            for finalizers in ([], ['example.com/f']):
                name = '%sd%d-%d%s' % ('' if kind.namespaced else '{run}-', i, j, 'f' if finalizers else '')
                new = dict(body, metadata=dict(body['metadata'], name=name, finalizers=finalizers))
                url = kind.item(name)
                yield case(kind, 'delete', 'history %s %s' % (options_, finalizers),
                           {'m': 'POST', 'path': kind.collection, 'body': new}, {'m': 'DELETE', 'path': url, 'body': options_}, {'m': 'GET', 'path': url},
                           patch(url, MERGE, {'metadata': {'labels': {'q': 'r'}, 'finalizers': ['example.com/f', 'example.com/g']}}),
                           {'m': 'DELETE', 'path': url, 'body': options_}, patch(url, MERGE, {'metadata': {'finalizers': None}}), {'m': 'DELETE', 'path': url + '?gracePeriodSeconds=0'}, {'m': 'GET', 'path': url})


def brief(value):
    if value is DELETE:
        return '-'
    text = json.dumps(value, sort_keys=True)
    return text if len(text) < 60 else text[:57] + '...'
