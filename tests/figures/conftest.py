import pytest
import toy_run


@pytest.fixture(scope='module')
def run():
  return toy_run.toy_run()
