"""Finds damage of JPEG files that their decoder passes over.

A disk or a copy that fails leaves blocks of zeros. The decoder reads zeros as
codes, and returns an image that is wrong from there on. In a Huffman code the
code of zeros belongs to the first symbol. If that is neither the end of a block
nor a run of such ends, zeros write the same coefficient everywhere, which no
image needs. Where it is one, zeros are a flat area, and cannot be told from it.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

START = b'\xff\xd8'
_EMPTY = bytes(32)  # longer than a block of which all coefficients are equal
# The end of the data of a scan: a marker, but for escaped bytes and restarts.
_MARKER = re.compile(rb'\xff[^\x00\xd0-\xd7\xff]')
_SOF = (0xC0, 0xC1, 0xC2)  # baseline, extended and progressive, with Huffman
_DHT, _SOS, _EOI, _DQT = 0xC4, 0xDA, 0xD9, 0xDB
_DC, _AC = 0, 1  # classes of tables


class _Segment(NamedTuple):
  marker: int
  start: int  # of its content
  end: int


def check(data: bytes) -> None:
  """Raises ValueError for a file with zeroed data or without its end."""
  first: dict[tuple[int, int], int] = {}  # symbol by class and table
  huffman = False
  for segment in _segments(data):
    content = data[segment.start : segment.end]
    if segment.marker in _SOF:
      huffman = True
    elif segment.marker == _DQT:
      _check_steps(content)
    elif segment.marker == _DHT:
      first |= _first_symbols(content)
    elif segment.marker == _SOS and huffman:
      stop = _MARKER.search(data, segment.end)
      if stop is None:
        raise ValueError('truncated: no end mark')
      place = data.find(_EMPTY, segment.end, stop.start())
      if place >= 0 and not _flat(content, first):
        raise ValueError(f'zeroed bytes from byte {place:,}')


def _segments(data: bytes) -> Iterator[_Segment]:
  """Yields the segments up to the end mark, or to what is no segment."""
  place = len(START)
  # Bytes between segments are passed over, as by the decoder.
  while found := _MARKER.search(data, place):
    marker, start = found[0][-1], found.end()
    if marker == _EOI:
      return
    end = start + int.from_bytes(data[start : start + 2])
    if end < start + 2 or end > len(data):
      return
    yield _Segment(marker, start + 2, end)
    place = end


def _check_steps(content: bytes) -> None:
  """Refuses quantisation by zero, which would make all images grey."""
  while content:
    size = 2 if content[0] >> 4 else 1
    steps = content[1 : 1 + 64 * size]
    if any(not any(steps[k : k + size]) for k in range(0, len(steps), size)):
      raise ValueError('zeroed table of quantisation')
    content = content[1 + 64 * size :]


def _first_symbols(content: bytes) -> dict[tuple[int, int], int]:
  """The symbol whose code has zeros only, by class and number of the table."""
  found: dict[tuple[int, int], int] = {}
  while len(content) > 17:
    kind, number = divmod(content[0], 16)
    found[kind, number] = content[17]
    content = content[17 + sum(content[1:17]) :]
  return found


def _flat(header: bytes, first: dict[tuple[int, int], int]) -> bool:
  """Whether zeros in a scan are blocks without coefficients."""
  num = header[0]
  tables = [divmod(byte, 16) for byte in header[2 : 2 + 2 * num : 2]]
  low, high = header[1 + 2 * num], header[2 + 2 * num]
  # Later scans of a progressive file refine the means bit by bit.
  refines = header[3 + 2 * num] >> 4
  symbols: list[int] = []
  for dc, ac in tables:
    if low == 0 and not refines:
      symbols.append(first.get((_DC, dc), 0))
    if high > 0:
      symbols.append(first.get((_AC, ac), 0))
  # The lower half of a symbol of coefficients is the number of their bits; the
  # symbol 0xf0 stands for sixteen zeros, after which others follow.
  return all(symbol & 15 == 0 and symbol != 0xF0 for symbol in symbols)
