"""Scripts for clusters: a local stand-in of SLURM, and the files of GKE."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fedreid_jax.config import recipes
from fedreid_jax.training.processes import peers

EXAMPLES = Path(__file__).parents[1] / 'examples'
# Starts two tasks on this host with the variables that SLURM sets for them.
SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
export SLURM_JOB_ID=$$ SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2
export SLURM_STEP_NUM_NODES=2 SLURM_LOCALID=0
SLURM_PROCID=1 "$@" & other=$!
SLURM_PROCID=0 "$@"; first=$?
wait "$other" && exit "$first"
"""
FEDREID = '#!/usr/bin/env bash\nexec python -m fedreid_jax.cli.program "$@"\n'


@pytest.mark.slow
def test_the_slurm_script_trains_with_two_processes(tmp_path):
  for name, text in (('srun', SRUN), ('fedreid', FEDREID)):
    (tmp_path / name).write_text(text)
    (tmp_path / name).chmod(0o755)
  script, workdir = EXAMPLES / 'slurm' / 'train.sbatch', tmp_path / 'run'
  places = tmp_path, Path(sys.executable).parent, os.environ['PATH']
  small = 'model.features=(4,8),data.identities=4,data.target_identities=4'
  found = subprocess.run(
    ['bash', script, f'fedpav:smoke,{small}', f'--workdir={workdir}'],
    env=os.environ
    | {'PATH': ':'.join(map(str, places)), 'JAX_NUM_CPU_DEVICES': '1'},
    capture_output=True,
    text=True,
    timeout=400,
    check=False,
  )
  assert found.returncode == 0, found.stdout + found.stderr
  assert json.loads((workdir / 'run.json').read_text())['processes'] == 2
  assert json.loads((workdir / 'results.json').read_text())['summary']


@pytest.mark.parametrize(
  'code, restarts, again',
  [
    *((6, '', True), (134, '', True), (137, '19', True), (6, '20', False)),
    *((0, '', False), (2, '', False), (143, '', False)),
  ],
)
def test_a_job_that_lost_a_process_is_put_into_the_queue_again(
  tmp_path, code, restarts, again
):
  asked = tmp_path / 'asked'
  for name, text in (
    ('srun', f'exit {code}'),
    ('scontrol', f'echo "$@" >> {asked}'),
  ):
    (tmp_path / name).write_text(f'#!/usr/bin/env bash\n{text}\n')
    (tmp_path / name).chmod(0o755)
  script = EXAMPLES / 'slurm' / 'train.sbatch'
  found = subprocess.run(
    ['bash', script, 'dfh:smoke'],
    env={
      'PATH': f'{tmp_path}:{os.environ["PATH"]}',
      **{'SLURM_JOB_ID': '17', 'SLURM_RESTART_COUNT': restarts},
    },
    check=False,
  )
  assert found.returncode == code
  assert (asked.read_text() if asked.exists() else '') == (
    'requeue 17\n' if again else ''
  )
  # SLURM refuses to requeue other jobs, and clears their output.
  lines = script.read_text().splitlines()
  assert {'#SBATCH --requeue', '#SBATCH --open-mode=append'} <= {*lines}


def test_the_slurm_script_needs_a_recipe():
  found = subprocess.run(
    ['bash', EXAMPLES / 'slurm' / 'train.sbatch'],
    capture_output=True,
    text=True,
    check=False,
  )
  assert found.returncode == 2
  assert found.stderr.startswith('usage: ')


def _container(pod):
  (container,) = pod['spec']['containers']
  mounted = {mount['mountPath'] for mount in container['volumeMounts']}
  words = ' '.join([*container['command'], *container['args']]).split()
  workdir = next(w for w in words if w.startswith('--workdir='))
  assert any(workdir.startswith(f'--workdir={place}/') for place in mounted)
  recipes.recipe(words[words.index('train') + 1])
  distributed = next(w for w in words if w.startswith('--distributed='))
  return distributed.partition('=')[2]


def test_the_job_with_gpus_starts_as_many_processes_as_it_names(monkeypatch):
  text = (EXAMPLES / 'gke' / 'gpu-job.yaml').read_text()
  service, job = yaml.safe_load_all(text)
  spec = job['spec']
  flag = _container(spec['template'])
  address, _, number = flag.rpartition(',')
  assert number == '$JOB_COMPLETION_INDEX'
  monkeypatch.setattr(peers.socket, 'getaddrinfo', lambda *_: [])
  place = peers.parse(f'{address},{spec["completions"] - 1}')
  assert place.processes == spec['completions'] == spec['parallelism']
  # The first pod of an indexed Job has the host name JOB-0 in its subdomain.
  host = place.address.partition(':')[0]
  name = service['metadata']['name']
  assert host == f'{job["metadata"]["name"]}-0.{name}'
  assert spec['template']['spec']['subdomain'] == name
  assert service['spec']['selector'] == {'job-name': job['metadata']['name']}


def test_the_slice_of_tpus_has_a_pod_for_each_host():
  found = yaml.safe_load((EXAMPLES / 'gke' / 'tpu-jobset.yaml').read_text())
  (jobs,) = found['spec']['replicatedJobs']
  spec = jobs['template']['spec']
  pod = spec['template']
  assert _container(pod) == 'auto'
  (container,) = pod['spec']['containers']
  chips = container['resources']['limits']['google.com/tpu']
  topology = pod['spec']['nodeSelector']['cloud.google.com/gke-tpu-topology']
  rows, columns = map(int, topology.split('x'))
  assert spec['completions'] * chips == rows * columns
