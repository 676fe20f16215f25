"""Runs in a local file store of MLflow, read back with its client."""

import functools

import measured
import numpy as np
import pytest
from measured import PICTURE
from PIL import Image

from fedreid_jax.training import callbacks, trackers
from fedreid_jax.training.trackers import Measured

mlflow = pytest.importorskip('mlflow', reason="pip install '.[mlflow]'")
pytestmark = pytest.mark.filterwarnings('default')  # of MLflow's packages
CONFIG = {'name': 'toy', 'seed': 3, 'optim': {'lr': 0.5}, 'track': 'x' * 900}
write = functools.partial(measured.write, client='ä sh')


@pytest.fixture
def client(tmp_path, monkeypatch):
  uri = (tmp_path / 'store').as_uri()
  monkeypatch.setenv('MLFLOW_ALLOW_FILE_STORE', 'true')
  monkeypatch.setenv('MLFLOW_TRACKING_URI', uri)
  return mlflow.MlflowClient(tracking_uri=uri)


def start(workdir, round_=0, resumed=False):
  workdir.mkdir(exist_ok=True)
  return callbacks.Start(workdir, CONFIG, round_, resumed)


def runs(client, name='fedreid_jax'):
  experiment = client.get_experiment_by_name(name)
  return client.search_runs([experiment.experiment_id])


def history(client, run, name):
  found = client.get_metric_history(run.info.run_id, name)
  return [(m.step, m.value) for m in found]


def test_numbers_images_and_parameters(client, tmp_path):
  writer = trackers.MlflowWriter(start(tmp_path / 'w'))
  shown = {'ranked/mall/global': PICTURE}
  writer.write(Measured('evaluation', 0, {'evaluation/mall/mAP': 5.0}, shown))
  write(writer, 1, 2)
  writer.close(None)
  (run,) = runs(client)
  assert (run.info.run_name, run.info.status) == ('toy-seed3', 'FINISHED')
  assert run.data.params['optim.lr'] == '0.5'
  assert run.data.tags['workdir'] == str(tmp_path / 'w')
  assert history(client, run, 'train/loss') == [(1, 1.0), (2, 0.5)]
  assert history(client, run, 'client/_ sh/loss') == [(1, 2.0), (2, 4.0)]
  names = [f.path for f in client.list_artifacts(run.info.run_id, 'images')]
  (name,) = [name for name in names if name.endswith('.png')]
  assert name.startswith('images/ranked~mall~global+step+0+')
  path = mlflow.artifacts.download_artifacts(
    run_id=run.info.run_id, artifact_path=name, dst_path=str(tmp_path)
  )
  with Image.open(path) as image:
    np.testing.assert_array_equal(np.asarray(image), PICTURE)


def test_a_resumed_run_continues_the_same_one_and_repeats_nothing(
  client, tmp_path
):
  write(trackers.MlflowWriter(start(tmp_path / 'w')), 1, 2, 3)  # killed
  writer = trackers.MlflowWriter(start(tmp_path / 'w', 2, resumed=True))
  (run,) = runs(client)
  assert run.info.status == 'RUNNING'
  write(writer, 3, 4)
  writer.close(KeyboardInterrupt())
  (run,) = runs(client)
  assert run.info.status == 'KILLED'
  assert [step for step, _ in history(client, run, 'train/loss')] == [
    *(1, 2, 3, 4)
  ]


def test_another_store_has_a_run_of_its_own(client, tmp_path, monkeypatch):
  trackers.MlflowWriter(start(tmp_path / 'w')).close(ValueError())
  (run,) = runs(client)
  assert run.info.status == 'FAILED'
  # Without the variable, the store of the earlier start is used.
  monkeypatch.delenv('MLFLOW_TRACKING_URI')
  trackers.MlflowWriter(start(tmp_path / 'w', 1, resumed=True)).close(None)
  (again,) = runs(client)
  assert (again.info.run_id, again.info.status) == (run.info.run_id, 'FINISHED')
  other = (tmp_path / 'other').as_uri()
  monkeypatch.setenv('MLFLOW_TRACKING_URI', other)
  monkeypatch.setenv('MLFLOW_EXPERIMENT_NAME', 'named')
  writer = trackers.MlflowWriter(start(tmp_path / 'w', 1, resumed=True))
  write(writer, 2)
  (new,) = runs(mlflow.MlflowClient(tracking_uri=other), 'named')
  assert new.info.run_id != run.info.run_id
