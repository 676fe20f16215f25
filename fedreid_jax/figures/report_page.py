"""A report on runs as one HTML file that contains its pictures."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedreid_jax.evaluation import means
from fedreid_jax.figures import curves, html_page, report_audits, retrieval
from fedreid_jax.training.files import run_files
from fedreid_jax.training.loaded_run import LoadedRun

HASHES = re.compile('[0-9a-f:]+')
DIGITS = 67  # characters that are shown: four hashes
SHOWN = 4  # best and worst queries of a target
ALTS = 'The numbers are in the table of results.'
STYLE = """
table { border-collapse: collapse; font-size: .85rem; margin: 0 0 1rem; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .6rem;
  text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.wide { overflow-x: auto; margin: 0 0 1rem; }
img { max-width: 100%; height: auto; background: white; }
pre { overflow-x: auto; background: var(--back); padding: .75rem;
  font-size: .8rem; }
summary { cursor: pointer; font-weight: 600; }
p { margin: 0 0 .75rem; max-width: 60rem; overflow-wrap: anywhere; }
@media (max-width: 40rem) {
  th, td { white-space: normal; padding: .25rem; } }
"""


class Labelled(NamedTuple):
  """Runs of one configuration that differ in their seeds."""

  label: str
  runs: Sequence[run_files.Recorded]
  changed: Mapping[str, Any]  # fields that differ from the defaults
  load: Callable[[], LoadedRun]  # model and images of the first run


def page(found: Sequence[Labelled]) -> str:
  """The HTML of a report.

  Raises:
    ConfigError: without Matplotlib.
  """
  loaded = [(one.label, one.load()) for one in found]
  every = [(one.label, run) for one in found for run in one.runs]
  sections = [
    ('run', 'What was run', _summary(found)),
    ('results', 'Results', _results(found)),
    ('learning', 'Learning curves', _learning(found)),
    ('ranks', 'Match curves and distances', _ranks(loaded)),
    ('lists', 'Best and worst queries', _lists(found, loaded)),
    ('sent', 'Bytes sent', _sent(found)),
    ('privacy', 'Privacy', report_audits.content(every)),
    ('clients', 'Clients', _clients(found)),
    ('configuration', 'Configuration', _configuration(found)),
  ]
  links = ''.join(
    f'<li><a href="#{anchor}">{title}</a></li>' for anchor, title, _ in sections
  )
  body = f'<nav aria-label="Sections"><ol>{links}</ol></nav>\n' + '\n'.join(
    html_page.section(*one) for one in sections
  )
  title = 'Report: ' + ', '.join(one.label for one in found)
  return html_page.document(title, body, STYLE)


def _summary(found: Sequence[Labelled]) -> str:
  return '\n'.join(html_page.facts(_facts(one)) for one in found)


def _facts(one: Labelled) -> list[tuple[str, Any]]:
  first = one.runs[0]
  about, results = first.described, first.results
  versions = about.get('versions', {})
  return [
    ('label', one.label),
    ('method', results['method']),
    ('seeds', ', '.join(str(run.config.seed) for run in one.runs)),
    ('rounds', f'{results["rounds"]} of {first.config.rounds}'),
    ('command', ' '.join(about.get('command', []))),
    ('commit', about.get('commit') or 'unknown'),
    ('data digest', _digest(about.get('data_digest', ''))),
    ('devices', ', '.join(about.get('devices', []))),
    ('versions', ', '.join(f'{k} {v}' for k, v in versions.items())),
    ('seconds', _mean([run.results['seconds']['total'] for run in one.runs])),
    ('work directories', ', '.join(str(run.folder) for run in one.runs)),
  ]


def _digest(inputs: str) -> str:
  """The start of `data_digest` in run.json, or a hash of its words."""
  # Hashes of files, separated by colons, or fields of synthetic images.
  if HASHES.fullmatch(inputs):
    return inputs if len(inputs) <= DIGITS else f'{inputs[:DIGITS]}…'
  found = hashlib.sha256(inputs.encode()).hexdigest()[:16]
  return f'{found} (SHA-256 of data_digest in run.json)' if inputs else ''


def _mean(values: Sequence[float], digits: int = 1) -> str:
  """A mean, with the sample standard deviation of several values."""
  if not values:
    return ''
  mean = f'{np.mean(values):.{digits}f}'
  if len(values) == 1:
    return mean
  return f'{mean} ± {np.std(values, ddof=1):.{digits}f}'


def _results(found: Sequence[Labelled]) -> str:
  names = {
    name: None
    for one in found
    for entry in one.runs[0].results['summary']
    for name in entry['metrics']
  }
  metrics = sorted(filter(lambda n: not n.endswith('_std'), names), key=_order)
  rows = []
  for one in found:
    for entry in one.runs[0].results['summary']:
      key = entry['target'], entry['model'], entry['kind']
      same = [
        other['metrics']
        for run in one.runs
        for other in run.results['summary']
        if (other['target'], other['model'], other['kind']) == key
      ]
      kind = entry['kind'].replace('_', ' ')
      if entry.get('chosen_on'):
        kind += f', on {entry["chosen_on"]}'
      rows.append(
        [one.label, entry['target'], entry['model'], kind, len(same)]
        + [_mean([m[name] for m in same if name in m]) for name in metrics]
        + [_interval(one, entry)]
      )
  note = (
    '<p>Percent; ± is the sample standard deviation over seeds. The last '
    'column is the 95 % interval of the mAP of the last round over queries '
    '(bootstrap). Rounds that were chosen on targets favour these targets.'
    '</p>\n'
  )
  header = ['run', 'target', 'model', 'round', 'seeds', *metrics, 'interval']
  return note + html_page.table(header, rows)


def _order(metric: str) -> tuple[str, int]:
  # Sorts rank-5 before rank-10.
  word = metric.rstrip('0123456789')
  return word, int(metric[len(word) :] or 0)


def _interval(one: Labelled, entry: dict[str, Any]) -> str:
  name = f'{entry["model"]}/{entry["target"]}/0'
  values = [run.precision[name] for run in one.runs if name in run.precision]
  # Queries of several runs are averaged, so that their numbers must be equal.
  alike = len({len(value) for value in values}) == 1
  if entry['kind'] != 'last' or not alike or np.isnan(values).all():
    return ''
  low, high = (100 * x for x in means.bootstrap_interval(values))
  return f'{low:.1f} to {high:.1f}'


def _learning(found: Sequence[Labelled]) -> str:
  tests = [(one.label, run.results) for one in found for run in one.runs]
  parts = []
  if any(curves.has_lines(results['evaluation']) for _, results in tests):
    drawn = curves.draw(tests)
    parts.append(html_page.figure(drawn, f'Metrics by round. {ALTS}'))
  trained = [(one.label, [run.rounds for run in one.runs]) for one in found]
  if all(runs[0] for _, runs in trained):
    drawn = curves.draw_losses(trained)
    words = 'Training loss by round: the mean and every client.'
    parts.append(html_page.figure(drawn, words))
  return ''.join(parts)


def _ranks(loaded: Sequence[tuple[str, LoadedRun]]) -> str:
  first = retrieval.draw_match_curves(loaded)
  second = retrieval.draw_distances(loaded)
  ranks = 'Share of queries with a match among the first 20.'
  pairs = 'Distances of images of the same person and of others.'
  return html_page.figure(first, ranks) + html_page.figure(second, pairs)


def _lists(
  found: Sequence[Labelled], loaded: Sequence[tuple[str, LoadedRun]]
) -> str:
  parts = []
  for one, (label, run) in zip(found, loaded, strict=True):
    for target in run.federation.targets:
      values = one.runs[0].precision.get(f'{run.name}/{target.name}/0')
      if values is None or np.isnan(values).all():
        continue
      order = [int(k) for k in np.argsort(values) if not np.isnan(values[k])]
      extremes = {'best': order[::-1][:SHOWN], 'worst': order[:SHOWN]}
      for words, places in extremes.items():
        drawn = retrieval.draw_ranked(
          run, f'{label}, {words} queries', target.name, places=places
        )
        shown = ', '.join(f'{100 * values[k]:.0f}' for k in places)
        alt = f'{words} queries of {target.name}, average precision {shown}'
        parts.append(html_page.figure(drawn, alt))
  return ''.join(parts) or '<p>No query has a match.</p>\n'


def _sent(found: Sequence[Labelled]) -> str:
  rows = []
  for one in found:
    sent = one.runs[0].results['communication']
    for way in ('up', 'down'):
      for name in sorted(sent[way]):
        all_sent = [run.results['communication'][way] for run in one.runs]
        values = [of.get(name, 0) / 1e6 for of in all_sent]
        rows.append([one.label, way, name, _mean(values, 3)])
  return html_page.table(['run', 'direction', 'content', 'MB'], rows)


def _clients(found: Sequence[Labelled]) -> str:
  rows, header = [], ['run']
  for one in found:
    for client in one.runs[0].described.get('clients', []):
      others = [name for name in client if name != 'client']
      header = ['run', 'client', *others]
      rows.append([one.label, client['client'], *(client[n] for n in others)])
  return html_page.table(header, rows)


def _configuration(found: Sequence[Labelled]) -> str:
  parts = []
  for one in found:
    config = one.runs[0].config
    lines = [f'{name} = {value!r}' for name, value in one.changed.items()]
    own = html_page.text_block('\n'.join(lines))
    full = dataclasses.asdict(config)
    full |= full.pop('options')
    every = html_page.text_block(json.dumps(full, indent=2, sort_keys=True))
    parts.append(
      f'<p>{html_page.text(one.label)}: fields that differ from their '
      f'defaults.</p>\n{own}<details><summary>all fields</summary>{every}'
      '</details>\n'
    )
  return ''.join(parts)
