"""Walks objects along the OpenAPI schemas that the real server publishes, and makes edits of single fields.

An edit is (label, path, value): `path` is a tuple of keys and indices, `value` what is put there, or DELETE.
"""
import copy

DELETE = object()
STRINGS = ('', 'x', 'Not Valid_', '-bad-', 'a' * 64, 'a' * 254, 'a/b', 'a.b', 'é', '*', '1', '/abs/../x', '1.2.3.4', 'http://x')
NUMBERS = (-1, 0, 1, 70000, 2 ** 31, 2 ** 63, 1.5, 1e3)
AMOUNTS = ('-1', '0', '1.5', '1m', '1e3', '1Gi', 'x', '', 5, '0.0001', '1.5Gi')
COUNTS = ('10%', '150%', '-5%', 'x', '', -1, 0, 7, '3')
TIMES = ('yesterday', '', '2020-01-02T03:04:05Z', '2020-01-02T03:04:05.123456Z', '2020-01-02T03:04:05+02:00')


class Schemas:
    """The schemas of one OpenAPI v3 document."""

    def __init__(self, document):
        self.all = document.get('components', {}).get('schemas', {})
        self.kinds = {}
        for schema in self.all.values():
            for gvk in schema.get('x-kubernetes-group-version-kind', []):
                self.kinds.setdefault((gvk['group'], gvk['version'], gvk['kind']), schema)

    def resolve(self, schema):
        """The schema itself, without references; `{'format': ...}` marks survive."""
        name = None
        for _ in range(8):
            if '$ref' in schema:
                name = schema['$ref'].rsplit('/', 1)[1]
                schema = self.all.get(name, {})
            elif len(schema.get('allOf', ())) == 1:
                schema = schema['allOf'][0]
            else:
                break
        if name and name.endswith('.Quantity'):
            return {'type': 'quantity'}
        if name and name.endswith('.IntOrString'):
            return {'type': 'int-or-string'}
        if name and (name.endswith('.Time') or name.endswith('.MicroTime')):
            return {'type': 'string', 'format': 'date-time'}
        if schema.get('x-kubernetes-int-or-string'):
            return {'type': 'int-or-string'}
        return schema

    def minimal(self, schema, depth=0):
        """A small value of a schema: required fields only."""
        schema = self.resolve(schema)
        kind = schema.get('type')
        if kind == 'object' and 'properties' in schema:
            names = schema.get('required', []) if depth < 4 else []
            return {n: self.minimal(schema['properties'][n], depth + 1) for n in names if n in schema['properties']}
        if kind == 'array':
            return [self.minimal(schema.get('items', {}), depth + 1)] if depth < 4 else []
        if kind == 'string':
            return schema['enum'][0] if schema.get('enum') else '2020-01-02T03:04:05Z' if schema.get('format') == 'date-time' else 'x'
        return {'integer': 1, 'number': 1, 'boolean': True, 'quantity': '1', 'int-or-string': 1, 'object': {}}.get(kind, {})


def values(schema, present):
    """Values to try in place of `present` (None: the field is absent), labelled."""
    kind = schema.get('type')
    out = [('null', None), ('list', []), ('map', {})]
    if kind == 'string' and schema.get('format') == 'date-time':
        out += [('time', v) for v in TIMES]
    elif kind == 'string':
        out += [('text', v) for v in STRINGS] + [('number', 5)]
        out += [('enum', v) for v in schema.get('enum', [])]
    elif kind in ('integer', 'number'):
        out += [('number', v) for v in NUMBERS] + [('text', '1')]
    elif kind == 'boolean':
        out += [('flag', True), ('flag', False), ('text', 'true'), ('number', 1)]
    elif kind == 'quantity':
        out += [('amount', v) for v in AMOUNTS]
    elif kind == 'int-or-string':
        out += [('count', v) for v in COUNTS]
    elif kind == 'array':
        out += [('text', 'x')]
    elif kind == 'object':
        out += [('text', 'x'), ('number', 1)]
    return [(label, v) for label, v in out if v != present or type(v) is not type(present)]


def edits(schemas, schema, value, path=(), depth=0):
    """All edits of single places below `value`."""
    schema = schemas.resolve(schema)
    if isinstance(value, dict):
        properties = schema.get('properties', {})
        yield 'unknown field', path + ('unknownField',), 1
        for name in properties:
            if path == () and name in ('apiVersion', 'kind', 'status') or (path == ('metadata',) and name == 'managedFields'):
                continue
            here, sub = path + (name,), schemas.resolve(properties[name])
            if name in value:
                yield 'delete', here, DELETE
                yield from ((label, here, v) for label, v in values(sub, value[name]))
                yield from edits(schemas, sub, value[name], here, depth + 1)
            else:
                small = schemas.minimal(sub)
                yield 'add', here, small
                yield from ((label, here, v) for label, v in values(sub, None)[1:])
                if isinstance(small, (dict, list)) and small and depth < 7:
                    for label, place, v in edits(schemas, sub, small, (), depth + 3):
                        yield 'add ' + label, here, edited(small, place, v)
        if not properties and schema.get('additionalProperties'):
            sub = schemas.resolve(schema['additionalProperties'])
            for key in ('', 'a b', 'A' * 254, 'x.y/z', '/', '..', 'example.com/' + 'q' * 64):
                yield 'key', path + (key,), next(iter(value.values()), schemas.minimal(sub))
            for key in list(value)[:2]:
                yield 'delete', path + (key,), DELETE
                yield from ((label, path + (key,), v) for label, v in values(sub, value[key]))
                yield from edits(schemas, sub, value[key], path + (key,), depth + 1)
    elif isinstance(value, list):
        sub = schemas.resolve(schema.get('items', {}))
        if value:
            yield 'duplicate', path, value + [copy.deepcopy(value[0])]
            yield 'null item', path, value + [None]
            yield 'reverse', path, value[::-1]
        yield 'small item', path, value + [schemas.minimal(sub)]
        for i, item in enumerate(value):
            yield from ((label, path + (i,), v) for label, v in values(sub, item))
            yield from edits(schemas, sub, item, path + (i,), depth + 1)


def edited(value, path, new):
    """A copy of `value` with `new` at `path`."""
    if not path:
        return copy.deepcopy(new)
    out = copy.copy(value)
    head = path[0]
    if len(path) == 1 and new is DELETE:
        del out[head]
    else:
        inner = out[head] if isinstance(out, list) or head in out else {}
        out[head] = edited(inner, path[1:], new)
    return out


def shown(path):
    return ''.join('[%d]' % p if isinstance(p, int) else '.' + p[:40] for p in path).lstrip('.')
