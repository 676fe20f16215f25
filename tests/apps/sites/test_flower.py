"""A run over a SuperLink and three SuperNodes, with TLS and keys."""

import json
from pathlib import Path

import pytest
import toy

import fedreid_jax as fr
from fedreid_jax.training.files import run_files

pytest.importorskip(
  'flwr', reason="Flower is not installed: pip install -e '.[test,sites]'"
)
import loopback  # noqa: E402  It needs cryptography, which Flower brings.

RECIPE = 'fedpav:smoke,components=("fedpav","cdw"),rounds=3'
SITES = 'campus', 'plaza', 'station'


def server_model(folder: Path, step: int) -> dict:
  saved = run_files.checkpoints_of(folder)
  return saved.restore_models(step)[0]


def trained(folder: Path) -> list[dict]:
  """Returns the rounds that a run has recorded."""
  path = folder / 'metrics.jsonl'
  lines = path.read_text().splitlines() if path.exists() else []
  events = [json.loads(line) for line in lines]
  return [event for event in events if event['event'] == 'train']


class AfterOne(fr.Callback):
  """Keeps the server's model after the first round of a simulation."""

  def on_checkpoint(self, event):
    if event.round == 1:
      self.model = server_model(event.path.parents[1], 1)


class Federation(loopback.Loopback):
  """Sites of one domain each, and their SuperNodes."""

  def socket(self, name: str) -> Path:
    return self.folder / f'{name}.sock'

  def site(self, name: str, at: str = ''):
    """Starts a site; `at` names its socket and folder, by default its name."""
    at = at or name
    one = self.start(
      f'site-{at}',
      *('fedreid', 'site', RECIPE, f'--config.data.sources=("{name}",)'),
      *(f'--socket={self.socket(at)}', f'--workdir={self.folder / at}'),
    )
    log = self.folder / f'site-{at}.log'
    self.wait(lambda: 'listening' in log.read_text(), at, one)
    return one

  def begin(self, run: Path) -> str:
    """Starts a run and returns its number at the SuperLink."""
    words = 'flwr', 'run', run / 'flower', 'here', '--format=json'
    return json.loads(self.run(*words))['run-id']


@pytest.mark.slow
def test_strangers_are_refused_on_both_sides(tmp_path):
  """A key that is not registered, and a server of another authority."""
  other = tmp_path / 'other'
  other.mkdir()
  loopback.make_certificates(other)
  with Federation(tmp_path) as here:
    superlink = here.superlink()
    socket = here.socket('plaza')  # SuperNodes look for it when a run begins
    key, unknown = here.register('known'), loopback.make_key(tmp_path / 'key')
    for name, own, of in (('stranger', unknown, None), ('astray', key, other)):
      refused = here.supernode(name, own, socket, of)
      here.wait(lambda one=refused: one.poll() is not None, name, superlink)
      assert refused.returncode
    here.supernode('known', key, socket)
    log = tmp_path / 'superlink.log'
    here.wait(lambda: 'Activated' in log.read_text(), 'a node', superlink)
    told = log.read_text()
    assert told.count('Activated') == 1
    assert 'No SuperNode found with the given public key' in told
  told = (tmp_path / 'supernode-astray.log').read_text()
  assert 'CERTIFICATE_VERIFY_FAILED' in told


@pytest.mark.slow
def test_three_sites_train_leave_and_come_back(tmp_path):
  config = fr.load_config(RECIPE, {'data.sources': SITES})
  config.checkpoint_every = 1
  expected = AfterOne()
  fr.train(config, tmp_path / 'simulated', callbacks=[expected])
  run = tmp_path / 'run'
  with Federation(tmp_path) as here:
    superlink = here.superlink()
    sites = {name: here.site(name) for name in SITES}
    for name in SITES:
      here.supernode(name, here.register(name), here.socket(name))
    here.run(
      *('fedreid', 'coordinate', RECIPE, f'--workdir={run}', '--sites=3'),
      *('--min_sites=2', '--round_s=240', '--config.checkpoint_every=1'),
    )
    number = here.begin(run)
    here.wait(lambda: len(trained(run)) == 1, 'the first round', superlink)
    saved = run / 'checkpoints' / 'manifest-1.json'
    here.wait(saved.exists, 'a checkpoint', superlink)

    # The second round goes on without a site, the third does not without two.
    for count, name in enumerate(('station', 'campus'), start=2):
      sites[name].terminate()
      if name == 'station':
        here.wait(lambda n=count: len(trained(run)) == n, 'a round', superlink)
    log = tmp_path / 'superlink.log'
    here.wait(lambda: 'Finished task' in log.read_text(), 'the end', superlink)
    told = here.run('flwr', 'log', number, 'here', '--show')
    assert 'site station did not answer' in told
    assert 'error[6]: 1 of 2 sites answered' in told
    assert trained(run)[1]['clients'] == ['campus', 'plaza']
    model = server_model(run, 1)

    # Another registered key takes the name of a site that is absent.
    thief = here.site('station', at='thief')
    stolen = here.supernode(
      'thief', here.register('thief'), here.socket('thief')
    )
    here.wait(lambda: log.read_text().count('Activated') == 4, 'a node')
    number, ended = here.begin(run), log.read_text().count('Finished task')
    here.wait(lambda: log.read_text().count('Finished task') > ended, 'the end')
    told = here.run('flwr', 'log', number, 'here', '--show')
    assert 'belongs to another key' in told and 'site station' in told
    for one in (stolen, thief):
      one.terminate()
      one.wait()

    for name in ('station', 'campus'):
      sites[name] = here.site(name)
    here.begin(run)
    here.wait(lambda: len(trained(run)) == 3, 'the third round', superlink)
    first, _, third = trained(run)
    assert first['clients'] == third['clients'] == [*SITES]
    assert third['excluded'] == []
    results = run / 'results.json'
    here.wait(lambda: json.loads(results.read_text())['rounds'] == 3, 'results')
  toy.assert_close_trees(model, expected.model, 1e-5)
  before = trained(tmp_path / 'simulated')[0]
  for name in ('loss', 'weights', 'images', 'bytes_up', 'bytes_down'):
    assert first[name] == pytest.approx(before[name], rel=1e-5), name
