"""Names of the models of a run, in files, in reports and on the command line.

The server has one model, `GLOBAL`, or several, 'cluster:GROUP'. A client's own
model is 'client:NAME'.
"""

GLOBAL = 'global'
_CLUSTER, _CLIENT = 'cluster:', 'client:'


def of_cluster(group: int) -> str:
  """The name of one of several models of the server."""
  return f'{_CLUSTER}{group}'


def of_client(client: str) -> str:
  """The name of a client's own model."""
  return f'{_CLIENT}{client}'


def group_of(model: str) -> int | None:
  """The group of one of several models of the server, None for other models.

  `GLOBAL` and own models have none. Text behind the number is an error.
  """
  number = model.removeprefix(_CLUSTER)
  return None if number == model else int(number)


def client_of(model: str) -> str:
  """The client of an own model, '' for a model of the server.

  Text behind the name stays: reports have models such as 'client:NAME, best'.
  """
  own = model.removeprefix(_CLIENT)
  return '' if own == model else own
