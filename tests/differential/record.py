"""Writes traces in the form of the recordings, with the answers of the real server."""
import json
import random
import re


LARGEST = 12000


def write(path, pair, differing, wanted):
    """Records one scenario for each cause that matches `wanted`; see `Pair.differences` for the causes."""
    seen, scenarios = set(), []
    for case, causes, setup in differing:
        keys = {'%s %s %s' % (case['kind'], case['verb'], c) for c in causes}
        if not any(re.search(wanted, k) for k in keys) or keys <= seen:
            continue
        seen |= keys
        name = re.sub('[^a-zA-Z0-9.-]+', '-', '%s %s %s' % (case['kind'].split('/')[-1], case['verb'], case['label']))[:90].strip('-')
        wanted_setup = [stored(s) for s in setup[1:]] if '{rv_' in json.dumps(case['steps']) or case['verb'] != 'create' else [stored(setup[1])]
        scenario = recorded(pair.replay, pair.targets[0], {'name': name, 'steps': wanted_setup + case['steps']})
        if len(json.dumps(scenario)) < LARGEST:
            scenarios.append(scenario)
    with open(path, 'w') as f:
        f.write('{"area": %s, "scenarios": [\n' % json.dumps(re.sub(r'.*/|\.json$', '', path)))
        f.write(',\n'.join(json.dumps(s, ensure_ascii=False, sort_keys=True) for s in scenarios))
        f.write('\n]}\n')


def stored(step):
    """A step that makes an object for the scenario, and remembers its version under the name that cases use."""
    name = step['body']['metadata'].get('name', '').replace('{run}-', '')
    return dict(step, record=False, capture={'rv_' + name: 'metadata.resourceVersion'})


def recorded(replay, target, scenario):
    """The scenario with the answers of `target`."""
    for step in scenario['steps']:
        step.pop('answer', None)
    answers, order = replay.run_scenario(target, scenario, random.random())
    for step, answer in zip(scenario['steps'], answers):
        if answer is not None:
            step['answer'] = answer
    return dict(scenario, rvOrder=order)
