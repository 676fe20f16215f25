"""Comparison of the structure of saved and expected states."""

from typing import Any

import jax
import numpy as np

from fedreid_jax import errors
from fedreid_jax.core import param_filter, types
from fedreid_jax.core.types import ClientState, ServerState, Tree


def by_path(tree: Tree) -> dict[str, Any]:
  """Returns the leaves of a tree, or their shapes, by their paths.

  The parts of a path are joined by dots.
  """
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {
    jax.tree_util.keystr(path, simple=True, separator='.').replace(
      '/', '.'
    ): leaf
    for path, leaf in leaves
  }


def named(tree: Tree) -> dict[str, np.ndarray]:
  """Returns the leaves of a tree as NumPy arrays, by their paths."""
  return {name: np.asarray(leaf) for name, leaf in by_path(tree).items()}


def items(server: ServerState, clients: Tree) -> dict[str, Tree]:
  """Returns the items of a checkpoint except the JSON part.

  Args:
    server: state of the server.
    clients: states of all clients, `[N, ...]`, or an index of their files.
  """
  kind = 'clients' if isinstance(clients, ClientState) else 'rows'
  return {
    'model': param_filter.unflatten(jax.device_get(server.shared)),
    'server': named({'groups': server.groups, 'states': server.states}),
    kind: named(clients),
  }


def rebuild(like: Tree, saved: dict[str, np.ndarray]) -> Tree:
  """Returns a tree of the structure of `like` with the leaves of `saved`."""
  # Saved leaves are found by path, whatever their order in the file.
  names = list(by_path(like))
  structure = jax.tree.structure(like)
  return jax.tree.unflatten(structure, [np.array(saved[n]) for n in names])


def check_fits(found: types.Flat, model: types.Flat) -> None:
  """Refuses leaves of another model; some leaves may be missing.

  Raises:
    IntegrityError: naming the leaves that differ.
  """
  different = [
    f'{n} is {list(x.shape)}, not {list(model[n].shape)}'
    if n in model
    else f'{n} is not in the model'
    for n, x in found.items()
    if n not in model or x.shape != model[n].shape
  ]
  if different:
    raise errors.IntegrityError(
      'checkpoint of another model: ' + '; '.join(different[:5]),
      'checkpoint',
      'use the configuration it was made with',
    )


def differences(wanted: dict[str, Tree], saved: dict[str, Any]) -> list[str]:
  """Returns the leaves whose shape or type differs, one line each."""

  def kinds(tree):
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
      jax.tree_util.keystr(p, simple=True, separator='/'): (
        f'{np.asarray(leaf).dtype}{list(np.shape(leaf))}'
      )
      for p, leaf in leaves
    }

  here = kinds({k: saved[k] for k in wanted if k in saved})
  there = kinds({k: v for k, v in wanted.items() if v})
  return [
    f'{name} is {here.get(name, "absent")}, not {there.get(name, "there")}'
    for name in sorted(here.keys() | there.keys())
    if here.get(name) != there.get(name)
  ]
