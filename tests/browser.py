"""A headless Chromium, driven by its DevTools protocol over two pipes."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time

# The protocol is on descriptors 3 and 4, one of which a pipe may already be.
_START = """
import fcntl, os, sys
free = [fcntl.fcntl(int(n), fcntl.F_DUPFD, 10) for n in sys.argv[1:3]]
for number, descriptor in zip((3, 4), free):
  os.dup2(descriptor, number)
os.execv(sys.argv[3], sys.argv[3:])
"""
FLAGS = (
  *('--headless=new', '--no-sandbox', '--disable-gpu', '--no-first-run'),
  *('--disable-dev-shm-usage', '--remote-debugging-pipe'),
)
NAMES = 'chromium', 'chromium-browser', 'google-chrome', 'chrome'


def program():
  """Returns the path of the browser, None where there is none."""
  return next(filter(None, map(shutil.which, NAMES)), None)


@contextlib.contextmanager
def opened(url, profile):
  """Yields a `Page` of a URL; the browser ends with the block.

  Args:
    url: of the page.
    profile: an empty folder for files of the browser.
  """
  theirs, ours = os.pipe(), os.pipe()
  process = subprocess.Popen(
    [
      *(sys.executable, '-c', _START, str(theirs[0]), str(ours[1])),
      *(program(), *FLAGS, f'--user-data-dir={profile}', 'about:blank'),
    ],
    pass_fds=(theirs[0], ours[1]),
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )
  os.close(theirs[0])
  os.close(ours[1])
  with open(theirs[1], 'wb') as write, open(ours[0], 'rb') as read:
    try:
      yield Page(write, read, url)
    finally:
      process.terminate()
      process.wait(20)


class Page:
  """A page of the browser.

  Attributes:
    console: warnings and errors of the page and of the browser about it.
  """

  def __init__(self, write, read, url):
    self._write, self._read, self._left = write, read, b''
    self._number, self._session = 0, None
    self.console = []
    target = self.call('Target.createTarget', url='about:blank')
    opened_ = {'targetId': target['targetId'], 'flatten': True}
    attached = self.call('Target.attachToTarget', **opened_)
    self._session = attached['sessionId']
    for domain in ('Page', 'Runtime', 'Log', 'DOM'):
      self.call(f'{domain}.enable')
    self.call('Page.navigate', url=url)
    self.wait('document.readyState === "complete"')

  def call(self, method, **params):
    """Returns the result of a command of the protocol."""
    self._number += 1
    message = {'id': self._number, 'method': method, 'params': params}
    if self._session:
      message['sessionId'] = self._session
    self._write.write(json.dumps(message).encode() + b'\0')
    self._write.flush()
    while True:
      answer = self._next()
      if answer.get('id') == self._number:
        assert 'error' not in answer, answer
        return answer['result']
      self._note(answer)

  def _next(self):
    while b'\0' not in self._left:
      more = self._read.read1()
      assert more, 'the browser has ended'
      self._left += more
    line, _, self._left = self._left.partition(b'\0')
    return json.loads(line)

  def _note(self, event):
    params = event.get('params', {})
    if event['method'] == 'Log.entryAdded':
      entry = params['entry']
      if entry['level'] in ('warning', 'error'):
        self.console.append(f'{entry["text"]} {entry.get("url", "")}')
    elif event['method'] == 'Runtime.exceptionThrown':
      self.console.append(str(params['exceptionDetails']))
    elif event['method'] == 'Runtime.consoleAPICalled':
      self.console.append(str(params['args']))

  def value(self, expression):
    """Returns the value of a JavaScript expression."""
    found = self.call(
      'Runtime.evaluate', expression=expression, returnByValue=True
    )
    assert 'exceptionDetails' not in found, found
    return found['result'].get('value')

  def wait(self, expression, seconds=30.0):
    """Waits until a JavaScript expression is true."""
    end = time.monotonic() + seconds
    while not self.value(expression):
      assert time.monotonic() < end, expression
      time.sleep(0.05)

  def text(self, selector):
    """Returns the visible text of an element."""
    return self.value(f'document.querySelector({selector!r}).innerText')

  def pick(self, selector, path):
    """Chooses a file in an input element."""
    root = self.call('DOM.getDocument')['root']['nodeId']
    node = self.call('DOM.querySelector', nodeId=root, selector=selector)
    self.call('DOM.setFileInputFiles', files=[str(path)], **node)

  def drop(self, path, x=200, y=150):
    """Drops a file on a point of the page."""
    data = {'items': [], 'files': [str(path)], 'dragOperationsMask': 1}
    for kind in ('dragEnter', 'dragOver', 'drop'):
      self.call('Input.dispatchDragEvent', type=kind, x=x, y=y, data=data)

  def press(self, key, code):
    """Presses a key."""
    for kind in ('keyDown', 'keyUp'):
      self.call(
        'Input.dispatchKeyEvent',
        type=kind,
        key=key,
        code=key,
        windowsVirtualKeyCode=code,
      )

  def resize(self, width, height):
    """Sets the size of the page in CSS pixels."""
    self.call(
      'Emulation.setDeviceMetricsOverride',
      width=width,
      height=height,
      deviceScaleFactor=1,
      mobile=False,
    )

  def picture(self):
    """Returns a screenshot, PNG."""
    found = self.call('Page.captureScreenshot', format='png')
    return base64.b64decode(found['data'])
