"""Writes traces in the form of the recordings, with the answers of the real server."""
import json
import random
import re


def write(path, pair, differing, wanted):
    """Records one scenario for each cause that matches `wanted`; see `Pair.differences` for the causes."""
    seen, scenarios = set(), []
    for case, causes, setup in differing:
        keys = {'%s %s %s' % (case['kind'], case['verb'], c) for c in causes}
        if not any(re.search(wanted, k) for k in keys) or keys <= seen:
            continue
        seen |= keys
        name = re.sub('[^a-zA-Z0-9.-]+', '-', '%s %s %s' % (case['kind'].split('/')[-1], case['verb'], case['label']))[:90].strip('-')
        scenarios.append(recorded(pair.replay, pair.targets[0], {'name': name, 'steps': [dict(s, record=False) for s in setup[1:]] + case['steps']}))
    with open(path, 'w') as f:
        json.dump({'area': re.sub(r'.*/|\.json$', '', path), 'scenarios': scenarios}, f, indent=1, ensure_ascii=False)


def recorded(replay, target, scenario):
    """The scenario with the answers of `target`."""
    for step in scenario['steps']:
        step.pop('answer', None)
    answers, order = replay.run_scenario(target, scenario, random.random())
    for step, answer in zip(scenario['steps'], answers):
        if answer is not None:
            step['answer'] = answer
    return dict(scenario, rvOrder=order)
