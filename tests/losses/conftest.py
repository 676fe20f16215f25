"""Checks that losses produce no NaN and broadcast explicitly only."""

import jax
import pytest


def pytest_configure(config):
  config.addinivalue_line('markers', 'gives_nan: the test itself gives a NaN')


@pytest.fixture(autouse=True)
def _loud(request):
  own = request.node.get_closest_marker('gives_nan')
  with jax.debug_nans(not own), jax.numpy_rank_promotion('raise'):
    yield
