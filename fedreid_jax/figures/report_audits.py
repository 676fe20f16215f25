"""Audits and guarantees of runs in words, for the report on runs."""

import base64
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedreid_jax import errors
from fedreid_jax.core import secret
from fedreid_jax.figures import html_page
from fedreid_jax.method import accounting
from fedreid_jax.training.files import recorder, run_files

Entries = Mapping[str, Any]
NONE = (
  'No audit was made: `fedreid audit` measures what the messages of a run give '
  'away.'
)


def content(runs: Sequence[tuple[str, run_files.Recorded]]) -> str:
  """Returns the HTML of the section on privacy of (label, run)."""
  return ''.join(_run(label, run) for label, run in runs)


def sentences(folder: Path) -> dict[str, str]:
  """The results of the audits in a work directory in words, by attack.

  Raises:
    IntegrityError: if a file is damaged.
  """
  found: dict[str, str] = {}
  for attack, (name, words) in _WORDS.items():
    file = folder / name
    if not file.exists():
      continue
    try:
      entries = recorder.read_object(file)
      # An inversion by version 0.1 had no controls.
      if 'rank1' in entries and 'valid' not in entries:
        continue
      if not entries['valid']:
        failed = '; '.join(entries['failed'])
        found[attack] = f'The audit is invalid, it has no figures: {failed}.'
        continue
      found[attack] = words(entries)
    except (errors.IntegrityError, KeyError) as error:
      what = 'is no result of an audit'
      if isinstance(error, errors.IntegrityError):
        what = f'{what}: {error.what}'
      raise errors.IntegrityError(
        what, str(file), 'delete it and audit the run'
      ) from error
  return found


def _run(label: str, run: run_files.Recorded) -> str:
  guarantee = run.results.get('privacy', 'no differential privacy')
  words = sentences(run.folder)
  pairs = [('run', label), ('guarantee', guarantee), *words.items()]
  shown = html_page.facts(pairs)
  if not words:
    shown += f'<p>{html_page.prose(NONE)}</p>\n'
  picture = run.folder / 'audit-gradient.png'
  if 'gradient' in words and picture.exists():
    code = base64.b64encode(picture.read_bytes()).decode()
    shown += (
      f'<img src="data:image/png;base64,{code}" alt="Images, and what was '
      'reconstructed from their gradients.">\n'
    )
  return shown


def _gradient(entries: Entries) -> str:
  low, high = entries['interval']
  persons = {n: 100 * entries['persons'][n] for n in ('rank1', 'chance')}
  sent = entries.get('sent', {'images': 1, 'noise': 0.0})  # of earlier audits
  images = (
    f'{sent["images"]} images' if sent['images'] > 1 else 'a single image'
  )
  noise = f', with noise of {sent["noise"]:g} times the clip,'
  return (
    f'An attacker who has the gradient of {images} of {entries["source"]}'
    f'{noise if sent["noise"] else ""} reconstructs an image that is '
    f'{entries["gain"]:.1f} dB ({low:.1f} to {high:.1f}) nearer to it than a '
    f'grey one. From a network that is easy to attack it is '
    f'{entries["positive"]:.1f} dB, from a random gradient '
    f'{entries["negative"]:.1f} dB. A model finds the right person with '
    f'{persons["rank1"]:.0f} % of these images; by chance it would be '
    f'{persons["chance"]:.0f} %.'
  )


def _beside_guessing(low: float, high: float) -> str:
  if low <= 50 <= high:
    return 'which may be guessing'
  return 'better than guessing' if low > 50 else 'worse than guessing'


def _trace(entries: Entries) -> str:
  case = entries['found']['sent']
  low, high = (100 * bound for bound in case['auc_interval'])
  most = 100 * entries['found']['same images']['auc']
  guess = _beside_guessing(low, high)
  return (
    'From the mean that a client sent to DFH, an attacker tells a person of '
    f'the client from another one in {100 * case["auc"]:.0f} % of all pairs '
    f'({low:.0f} to {high:.0f} %), {guess}; with the same model and the same '
    f'images as the client in {most:.0f} %.'
  )


def _member(entries: Entries) -> str:
  cases = entries['found']
  other, same = (cases[case] for case in ('other images', 'same images'))
  changes = ', '.join(entries['changes'])
  but = f' (but with {changes})' if changes else ''
  low, high = (100 * bound for bound in other['auc_interval'])
  guess = _beside_guessing(low, high)
  return (
    f'From {entries["shadows"]} models that were trained as this one{but}, '
    f'each on half of {entries["persons"]} persons, an attacker with other '
    'images of a person tells one of the training from another one in '
    f'{100 * other["auc"]:.0f} % of all pairs ({low:.0f} to {high:.0f} %), '
    f'{guess}; with the images of the training in {100 * same["auc"]:.0f} %.'
  )


def _canary(entries: Entries) -> str:
  claim = f'The run claims epsilon = {accounting.above(entries["claimed"])}'
  if entries.get('study'):
    claim += f' ({secret.STUDY})'
  bound = accounting.below(entries['bound']['epsilon'])
  if entries['refuted']:
    return f'{claim}, which is wrong: epsilon is at least {bound}.'
  return (
    f'{claim}. An attack on its component shows, with 95 % '
    f'confidence, that epsilon is not below {bound}, which agrees with the '
    'claim.'
  )


def _noise(entries: Entries) -> str:
  number = entries['guesses']
  if entries['recovered']:
    return (
      f'The noise of the guarantee follows from the seed {entries["best"]}, '
      f'which {number} guesses find: whoever guesses it subtracts the noise.'
    )
  return (
    f'The noise of the guarantee follows from none of '
    f'{errors.counted(number, "seed")}; that of its secret of 256 bits is in '
    'the model.'
  )


def _inversion(entries: Entries) -> str:
  kinds = {
    'identities': ('person', 'identity means', 'the mean features of persons'),
    'dfs': ('domain', 'DFS', 'the statistics that a client sent to DFH'),
  }
  question, name, source = kinds[entries['attack']]
  # A run with one client has no other domain.
  if question not in entries['rank1']:
    return 'The run has one client, so that its statistics were not judged.'
  rank1, judge = entries['rank1'][question], entries['judge']
  low, high = entries['intervals'][question][name]
  who = 'Another model' if judge['other_model'] else 'The attacked model'
  if judge['other_model'] and judge['same_initial_weights']:
    who += ' with the same initial weights'
  return (
    f'{who} finds the right {question} with {rank1[name]:.0f} % ({low:.0f} '
    f'to {high:.0f} %) of the images that were reconstructed from {source}; by '
    f'chance it would be {rank1["chance"]:.0f} %.'
  )


def _forget(entries: Entries) -> str:
  names = ', '.join(entries['without'])
  if entries['same_bits']:
    return f'The model has the bits of a run that never had {names}.'
  parts = []
  for attack, one in entries['found'].items():
    if one['failed']:
      continue
    areas = {name: 100 * each['auc'] for name, each in one['found'].items()}
    parts.append(
      f'by {attack} those who left are told from others in '
      f'{areas["judged"]:.0f} % of all pairs, in the model that knew them in '
      f'{areas["the run"]:.0f} %, in one that never had them in '
      f'{areas["never had them"]:.0f} %'
    )
  return f'{names} left this run: {"; ".join(parts)}.'


_WORDS: dict[str, tuple[str, Callable[[Entries], str]]] = {
  'gradient': ('audit-gradient.json', _gradient),
  'trace': ('audit-trace.json', _trace),
  'member': ('audit-member.json', _member),
  'canary': ('audit-canary.json', _canary),
  'noise': ('audit-noise.json', _noise),
  'forget': ('audit-forget.json', _forget),
  'mean features': ('inversion.json', _inversion),
  'statistics of DFH': ('inversion-dfs.json', _inversion),
}
