"""Losses have no NaN on the way and broadcast what they say they do."""

import jax
import pytest


@pytest.fixture(autouse=True)
def _loud():
  with jax.debug_nans(True), jax.numpy_rank_promotion('raise'):
    yield
