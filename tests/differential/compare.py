"""Sends the steps of a case to both servers, and names the causes of differences.

A case is a dict: `kind`, `verb`, `label`, and `steps` in the form of the recordings (see the README beside them).
"""
import re


class Pair:
    """Both servers. `replay` is the module that replays recordings; its normalisation is used."""

    def __init__(self, replay, real, ours):
        self.replay = replay
        self.targets = [replay.Target(s.url, s.tokens[0], s.tokens[1], False) for s in (real, ours)]
        self.requests = 0

    def variables(self, **more):
        return [dict(more, server=t.server) for t in self.targets]

    def run(self, steps, variables, which):
        """The normalised answers of one server; `variables` gains what the steps capture."""
        replay, target = self.replay, self.targets[which]
        raw = [replay.do(target, step, variables) for step in steps]
        static = {k: v for k, v in variables.items() if k in ('run', 'ns')}
        norm = replay.Norm({'run': variables['run'], 'server': target.server}, literals(replay.subst(steps, static)))
        norm._lt = ''.join(sorted(norm.literal))
        return [norm.answer(s, a) if s.get('record', True) else None for s, a in zip(steps, raw)]

    def differences(self, case, variables):
        """Runs the case on both servers; returns the causes, and the real server's answers."""
        answers = []
        for which in (0, 1):
            try:
                answers.append(self.run(case['steps'], variables[which], which))
            except Exception as error:      # an answer that cannot be read is a difference, too
                answers.append([{'status': type(error).__name__, 'headers': {}, 'body': str(error)[:200]}])
        self.requests += len(case['steps'])
        found = []
        for want, got in zip(*answers):
            if want is not None and got is not None:
                found += causes(self.replay, want, got)
                if found:
                    break                   # later steps differ because of this one
        return found, answers


def literals(value, out=None):
    out = set() if out is None else out
    if isinstance(value, str):
        out.add(value)
    elif isinstance(value, dict):
        for key, inner in value.items():
            out.add(key)
            literals(inner, out)
    elif isinstance(value, list):
        for inner in value:
            literals(inner, out)
    return out


def shape(text):
    """A message without its values."""
    text = re.sub(r'"(?:[^"\\]|\\.)*"', '""', str(text))
    text = re.sub(r'\[\d+\]', '[]', text)
    text = re.sub(r'<[a-z]+-(\d+|any)>', '<>', text)
    return re.sub(r'(?<![\w<])-?\d[\w.]*', '#', text)[:300]


def detail(answer):
    """The causes of a Status, as {(field, reason, message)}, or its message."""
    body = answer.get('body')
    if not isinstance(body, dict) or body.get('kind') != 'Status':
        return None
    listed = (body.get('details') or {}).get('causes')
    if listed:
        return {(shape(c.get('field', '')), c.get('reason', ''), c.get('message', '')) for c in listed}
    return {('', body.get('reason', ''), body.get('message', ''))}


def settled(answer):
    """An answer without the versions in its texts, which are each server's own."""
    body = answer.get('body')
    if isinstance(body, str):
        body = re.sub(r'resourceVersion: "\d+"', 'resourceVersion: "<rv>"', body)
    elif isinstance(body, dict) and isinstance(body.get('message'), str):
        body = dict(body, message=re.sub(r'(Too large resource version: \d+, current: )\d+', r'\1<rv>', body['message']))
    return dict(answer, body=body)


def causes(replay, want, got):
    """Texts that name what differs, the same for the same defect."""
    lines = []
    want, got = settled(want), settled(got)
    replay.diff(want, got, '', lines)
    if not lines:
        return []
    ours, real = detail(got), detail(want)
    if real and ours:
        # What the replay compares loosely is not told apart here either.
        loose = {(field, reason) for field, reason, text in real
                 if any(mark in text for mark in replay.LOOSE) or replay.GOSTRUCT.search(text)}
        real = {(f, r, '' if (f, r) in loose else t) for f, r, t in real}
        ours = {(f, r, '' if (f, r) in loose else t) for f, r, t in ours}
    if want.get('status') != got.get('status') or (real and ours and real != ours):
        head = '' if want.get('status') == got.get('status') else 'status %s, ours %s; ' % (want.get('status'), got.get('status'))
        out = []
        real, ours = real or set(), ours or set()
        out += ['%slacks %s: %s' % (head, field, shape(message)) for field, _, message in sorted(real - ours)]
        out += ['%sadds %s: %s' % (head, field, shape(message)) for field, _, message in sorted(ours - real)]
        if out:
            return sorted(set(out))
    return sorted({shape(line) for line in lines})[:6]
