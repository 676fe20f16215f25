"""Training metrics over the rounds: the mean, and every client."""

from collections.abc import Sequence
from typing import Any

from fedreid_jax.figures import canvas
from fedreid_jax.figures.curves import Curve, mean_and_spread

MOST = 16  # clients with a line of their own


def of_rounds(rounds: Sequence[dict[str, Any]], metric: str) -> Curve:
  """Returns a metric of the cohort by round."""
  return {line['round']: line[metric] for line in rounds if metric in line}


def of_clients(
  rounds: Sequence[dict[str, Any]], metric: str
) -> dict[str, Curve]:
  """Returns a metric of every client that took part, by round.

  Args:
    rounds: lines of metrics.jsonl.
    metric: name of the metric.
  """
  found: dict[str, Curve] = {}
  for line in rounds:
    # Lines of earlier versions have no clients.
    for client, values in line.get('by_client', {}).items():
      if metric in values:
        found.setdefault(client, {})[line['round']] = values[metric]
  return dict(sorted(found.items()))


def draw(
  labelled: Sequence[tuple[str, Sequence[Sequence[dict[str, Any]]]]],
  metric: str = 'loss',
) -> Any:
  """Draws a panel per label: the mean with a band over seeds, and the clients.

  The lines of the clients are those of the first run.

  Args:
    labelled: (label, lines of metrics.jsonl of each of its runs).
    metric: name of the metric.
  """
  figure, places = canvas.row(len(labelled), 5.2, 3.4)
  for axes, (label, runs) in zip(places, labelled, strict=True):
    clients = of_clients(runs[0], metric)
    for k, (client, curve) in enumerate([*clients.items()][:MOST]):
      axes.plot(
        list(curve),
        list(curve.values()),
        color=canvas.COLOURS[(k + 1) % len(canvas.COLOURS)],
        linestyle=('--', ':', '-.')[k % 3],
        linewidth=1,
        label=client,
      )
    mean, spread = mean_and_spread([of_rounds(run, metric) for run in runs])
    axes.plot(
      list(mean), list(mean.values()), color='black', linewidth=2, label='mean'
    )
    axes.fill_between(
      list(mean),
      [mean[r] - spread[r] for r in mean],
      [mean[r] + spread[r] for r in mean],
      color='black',
      alpha=0.15,
      linewidth=0,
    )
    canvas.plain(axes)
    axes.set_title(label, fontsize=10)
    axes.set_xlabel('round')
    axes.set_ylabel(metric)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(fontsize=7, ncols=2)
  return figure
