import json
from pathlib import Path

import pytest
from PIL import Image

from fedreid_jax import errors
from fedreid_jax.figures import report_audits
from fedreid_jax.training.files import run_files

GRADIENT = {
  'valid': True,
  'source': 'plaza',
  'gain': 2.14,
  'interval': [-0.1, 4.4],
  'positive': 17.8,
  'negative': -6.1,
  'persons': {'rank1': 0.625, 'chance': 0.02},
}
TRACE = {
  'valid': True,
  'found': {
    'sent': {'auc': 0.533, 'auc_interval': [0.479, 0.587]},
    'same images': {'auc': 0.576},
  },
}
CANARY = {
  'valid': True,
  'claimed': 7.999,
  'bound': {'epsilon': 1.5584},
  'refuted': '',
}


def write(folder, attack, entries):
  (folder / f'audit-{attack}.json').write_text(json.dumps(entries))


def test_figures_become_sentences(tmp_path):
  write(tmp_path, 'gradient', GRADIENT)
  write(tmp_path, 'trace', TRACE)
  write(tmp_path, 'canary', CANARY)
  found = report_audits.sentences(tmp_path)
  assert list(found) == ['gradient', 'trace', 'canary']
  assert 'image of plaza' in found['gradient']
  assert '2.1 dB (-0.1 to 4.4) nearer' in found['gradient']
  assert 'person with 62 % of these images' in found['gradient']
  assert '53 % of all pairs (48 to 59 %), which may be' in found['trace']
  assert 'as the client in 58 %' in found['trace']
  assert 'epsilon = 7.999' in found['canary']
  assert 'not below 1.558' in found['canary']


def test_images_and_noise_of_a_gradient_are_said(tmp_path):
  sent = {'images': 4, 'noise': 0.5}
  write(tmp_path, 'gradient', {**GRADIENT, 'sent': sent})
  (text,) = report_audits.sentences(tmp_path).values()
  assert 'gradient of 4 images of plaza, with noise of 0.5 times the' in text
  write(tmp_path, 'gradient', {**GRADIENT, 'sent': {'images': 1, 'noise': 0.0}})
  (text,) = report_audits.sentences(tmp_path).values()
  assert 'a single image of plaza reconstructs' in text


def test_attacks_that_succeed_and_claims_that_are_wrong(tmp_path):
  sent = {'auc': 0.71, 'auc_interval': [0.62, 0.8]}
  write(tmp_path, 'trace', {**TRACE, 'found': {**TRACE['found'], 'sent': sent}})
  write(tmp_path, 'canary', {**CANARY, 'claimed': 1.0, 'refuted': 'too low'})
  found = report_audits.sentences(tmp_path)
  assert (
    '71 % of all pairs (62 to 80 %), better than guessing' in found['trace']
  )
  wrong = 'epsilon = 1, which is wrong: epsilon is at least 1.558'
  assert wrong in found['canary']


def test_an_invalid_audit_has_no_figures(tmp_path):
  entries = {**TRACE, 'valid': False, 'failed': ['one reason', 'another']}
  write(tmp_path, 'trace', entries)
  (words,) = report_audits.sentences(tmp_path).values()
  assert words.endswith('no figures: one reason; another.')
  assert '%' not in words


@pytest.mark.parametrize('text', ['{"valid": tr', '{}', '{"valid": true}'])
def test_a_damaged_file_is_an_error(tmp_path, text):
  (tmp_path / 'audit-trace.json').write_text(text)
  with pytest.raises(errors.IntegrityError, match='is no result of an audit'):
    report_audits.sentences(tmp_path)


def test_the_section_has_the_guarantee_and_the_picture(tmp_path):
  def shown(folder: Path, results):
    run = run_files.Recorded(folder, None, results, {}, [], {})
    return report_audits.content([('<dfh>', run)])

  html = shown(tmp_path, {'privacy': 'epsilon = 8 at delta = 1e-05'})
  assert '<dd>epsilon = 8 at delta' in html and 'No audit was made' in html
  assert '<img' not in html and '<dfh>' not in html
  write(tmp_path, 'gradient', GRADIENT)
  Image.new('RGB', (4, 4)).save(tmp_path / 'audit-gradient.png')
  html = shown(tmp_path, {})
  assert '<dd>no differential privacy</dd>' in html
  assert 'No audit' not in html and 'src="data:image/png;base64,' in html


def test_membership_becomes_a_sentence(tmp_path):
  other = {'auc': 0.58, 'auc_interval': [0.53, 0.63]}
  cases = {'other images': other, 'same images': {'auc': 0.91}}
  entries = {'valid': True, 'found': cases, 'persons': 144, 'shadows': 16}
  entries |= {'changes': ['rounds=5']}
  write(tmp_path, 'member', entries)
  words = report_audits.sentences(tmp_path)['member']
  assert 'From 16 models' in words and '(but with rounds=5)' in words
  assert 'half of 144 persons' in words
  assert '58 % of all pairs (53 to 63 %), better than guessing' in words
  assert words.endswith('images of the training in 91 %.')


def test_those_who_left_become_a_sentence(tmp_path):
  areas = {'the run': 0.93, 'judged': 0.88, 'never had them': 0.39}
  one = {'found': {name: {'auc': area} for name, area in areas.items()}}
  one['failed'] = []
  entries = {'valid': True, 'without': ['mall/3'], 'same_bits': False}
  write(tmp_path, 'forget', entries | {'found': {'membership': one}})
  words = report_audits.sentences(tmp_path)['forget']
  assert words.startswith('mall/3 left this run: by membership those who left')
  assert 'in 88 % of all pairs, in the model that knew them in 93 %' in words
  write(tmp_path, 'forget', entries | {'same_bits': True})
  words = report_audits.sentences(tmp_path)['forget']
  assert words == 'The model has the bits of a run that never had mall/3.'


def inversion(**changes):
  return {
    'valid': True,
    'attack': 'identities',
    'judge': {'other_model': True, 'same_initial_weights': False},
    'rank1': {'person': {'identity means': 12.5, 'chance': 2.1}},
    'intervals': {'person': {'identity means': [4.7, 25.2]}},
  } | changes


def test_reconstructions_become_a_sentence(tmp_path):
  (tmp_path / 'inversion.json').write_text(json.dumps(inversion()))
  words = report_audits.sentences(tmp_path)['mean features']
  assert words.startswith('Another model finds')
  assert 'the right person with 12 % (5 to 25 %) of the images' in words
  assert words.endswith('by chance it would be 2 %.')
  domain = inversion(
    attack='dfs',
    judge={'other_model': True, 'same_initial_weights': True},
    rank1={'domain': {'DFS': 36.7, 'chance': 33.3}},
    intervals={'domain': {'DFS': [28.0, 45.9]}},
  )
  (tmp_path / 'inversion-dfs.json').write_text(json.dumps(domain))
  words = report_audits.sentences(tmp_path)['statistics of DFH']
  assert 'Another model with the same initial weights finds' in words
  assert 'the right domain with 37 % (28 to 46 %)' in words
  itself = {'other_model': False, 'same_initial_weights': True}
  own = json.dumps(inversion(judge=itself))
  (tmp_path / 'inversion.json').write_text(own)
  words = report_audits.sentences(tmp_path)['mean features']
  assert words.startswith('The attacked model finds')
  one = inversion(attack='dfs', rank1={'person': {}})
  (tmp_path / 'inversion-dfs.json').write_text(json.dumps(one))
  words = report_audits.sentences(tmp_path)['statistics of DFH']
  assert words.endswith('were not judged.')


def test_reconstructions_without_judged_controls_are_left_out(tmp_path):
  earlier = inversion()
  del earlier['valid']
  (tmp_path / 'inversion.json').write_text(json.dumps(earlier))
  assert not report_audits.sentences(tmp_path)
  (tmp_path / 'inversion-dfs.json').write_text('{}')
  with pytest.raises(errors.IntegrityError, match='is no result of an audit'):
    report_audits.sentences(tmp_path)
