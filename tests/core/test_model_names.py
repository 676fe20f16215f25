"""Names of models."""

import pytest

from fedreid_jax.core import model_names


@pytest.mark.parametrize('client', ['plaza', 'plaza.part3', 'cluster:1'])
def test_the_owner_of_a_client_model(client):
  model = model_names.of_client(client)
  assert model == f'client:{client}'
  assert model_names.client_of(model) == client
  assert model_names.group_of(model) is None


def test_the_group_of_a_model_of_the_server():
  model = model_names.of_cluster(12)
  assert model == 'cluster:12'
  assert model_names.group_of(model) == 12
  assert model_names.client_of(model) == ''


def test_one_model_of_the_server_has_neither():
  assert model_names.client_of(model_names.GLOBAL) == ''
  assert model_names.group_of(model_names.GLOBAL) is None
