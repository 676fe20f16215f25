import os
import stat

import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.apps.sites import private
from fedreid_jax.core.types import ClientState


def state(value):
  return ClientState(
    personal={'params/classifier/kernel': np.full((2, 3), value, np.float32)},
    states={'moon': np.int32(value)},
    opt_state=(),
  )


def test_states_are_kept_as_long_as_they_may_be_asked_for(tmp_path):
  kept = private.PrivateStates(tmp_path / 'run')
  assert stat.S_IMODE(os.stat(tmp_path / 'run').st_mode) == 0o700
  for number in (1, 2, 4):
    kept.save(number, state(number), private.INITIAL)
  kept.save(5, state(5), 2)
  assert kept.numbers() == [2, 4, 5]
  kept.save(4, state(40), 2)  # a round that the coordinator repeats
  again = private.PrivateStates(tmp_path / 'run')
  toy.assert_equal_trees(again.load(4, state(0)), state(40))
  toy.assert_equal_trees(again.load(2, state(0)), state(2))


def test_a_state_that_is_missing_damaged_or_of_another_model_is_an_error(
  tmp_path,
):
  kept = private.PrivateStates(tmp_path)
  kept.save(1, state(1), private.INITIAL)
  with pytest.raises(errors.IntegrityError, match='after 2 rounds cannot'):
    kept.load(2, state(0))
  other = state(0).replace(states={})
  with pytest.raises(errors.IntegrityError, match='states.moon is int32'):
    kept.load(1, other)
  path = tmp_path / '1.safetensors'
  data = bytearray(path.read_bytes())
  data[-1] ^= 1
  path.write_bytes(data)
  with pytest.raises(errors.IntegrityError, match='was changed'):
    kept.load(1, state(0))
