"""Work split over the processors: chunks go to forked processes, results come back as marshalled frames.

Always holds: every chunk's result arrives exactly once, in any order; a child that died, or whose work raised, loses
nothing, for what it did not send is done here. Children never outlive the call, however it ends, nor
what `begin` gave. While other threads live nothing is forked (their locks would stay locked in the child): threads do
the work then, which is right and slower.
Never: pickles, imports multiprocessing, or runs a parent's clean-up in a child.
"""

from __future__ import annotations

import gc
import marshal
import os
import select
import signal
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_FRAME = 8  # bytes of a frame's length
_PIPE = 1 << 14  # chunk numbers of 4 bytes that a pipe's default 64 KiB takes without anybody reading


class _Child(NamedTuple):
    pid: int
    results: int  # descriptor


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0))


def scatter(chunks: int, work: Callable[[int], Any], workers: int = 0) -> Iterator[tuple[int, Any]]:
    """(chunk, work(chunk)) for each of `chunks` numbers, as they come. Results are plain values that marshal takes."""
    workers = min(workers or processors(), chunks)
    if workers < 2:
        yield from ((chunk, work(chunk)) for chunk in range(chunks))
    elif chunks > _PIPE or not _alone():
        yield from _threaded(chunks, work, workers)
    else:
        yield from _forked(chunks, work, workers)


class Begun:
    """Chunks that children work on while this process does something else. Has to be ended."""

    def __init__(self, children: list[_Child]) -> None:
        self._children = children

    def done(self) -> Iterator[int]:
        """The chunks that are done, as they come; one whose child died does not."""
        yield from (chunk for chunk, _ in _gathered(self._children))

    def end(self) -> None:
        """No child is left after this."""
        _end(self._children)
        self._children = []


def begin(chunks: int, work: Callable[[int], None]) -> Begun | None:
    """Begin work(chunk) for each of `chunks` numbers, which leaves what it finds in memory that is shared.

    None: it can't be begun here (one processor, other threads, no process to be had), and nothing was.
    """
    workers = min(processors(), chunks)
    if workers < 2 or chunks > _PIPE or not _alone():
        return None
    children: list[_Child] = []
    numbers = _numbers(chunks)
    try:
        for _ in range(workers):
            children.append(_fork(numbers, work, children))
    except OSError:
        _end(children)
        return None
    finally:
        os.close(numbers)
    return Begun(children)


def _alone() -> bool:
    """Is this the only thread of the process, those of C libraries counted?"""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def _forked(chunks: int, work: Callable[[int], Any], workers: int) -> Iterator[tuple[int, Any]]:
    numbers = _numbers(chunks)
    children: list[_Child] = []
    waiting = set(range(chunks))
    try:
        for _ in range(workers):
            children.append(_fork(numbers, work, children))
        for chunk, result in _gathered(children):
            waiting.discard(chunk)
            yield chunk, result
    except OSError as error:  # no more processes, no memory for one: do what is left here
        if not waiting or error.errno is None:
            raise
    finally:
        os.close(numbers)
        _end(children)
    yield from ((chunk, work(chunk)) for chunk in sorted(waiting))


def _numbers(chunks: int) -> int:
    """A pipe with the number of every chunk in it: whoever is free reads the next."""
    numbers, feed = os.pipe()
    os.write(feed, b"".join(chunk.to_bytes(4, "little") for chunk in range(chunks)))
    os.close(feed)
    return numbers


def _fork(numbers: int, work: Callable[[int], Any], others: list[_Child]) -> _Child:
    results, out = os.pipe()
    pid = os.fork()
    if pid:
        os.close(out)
        return _Child(pid, results)
    code = 1
    try:
        gc.disable()  # a collection would copy every page of the parent's objects
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        os.close(results)
        for other in others:
            os.close(other.results)
        while number := os.read(numbers, 4):
            chunk = int.from_bytes(number, "little")
            frame = marshal.dumps((chunk, work(chunk)))
            _write(out, len(frame).to_bytes(_FRAME, "little") + frame)
        code = 0
    finally:
        os._exit(
            code
        )  # whatever was raised: the parent sees what is missing and does it itself, with the error in its own hands


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _gathered(children: list[_Child]) -> Iterator[tuple[int, Any]]:
    """Frames from all children until each has closed its end; a frame cut short by a death is dropped."""
    poll = select.poll()
    buffers = {child.results: bytearray() for child in children}
    for descriptor in buffers:
        poll.register(descriptor, select.POLLIN)
    while buffers:
        for descriptor, _ in poll.poll():
            data = os.read(descriptor, 1 << 20)
            if not data:
                poll.unregister(descriptor)
                del buffers[descriptor]
                continue
            buffers[descriptor] += data
            yield from _frames(buffers[descriptor])


def _frames(buffer: bytearray) -> Iterator[tuple[int, Any]]:
    while len(buffer) >= _FRAME:
        end = _FRAME + int.from_bytes(buffer[:_FRAME], "little")
        if len(buffer) < end:
            return
        frame = bytes(buffer[_FRAME:end])
        del buffer[:end]
        yield marshal.loads(frame)  # noqa: S302  our own child wrote it


def _end(children: list[_Child]) -> None:
    for child in children:
        os.close(child.results)
        try:
            os.kill(child.pid, signal.SIGKILL)  # one that is done is a zombie and does not mind
        except OSError:
            pass
    for child in children:
        try:
            os.waitpid(child.pid, 0)
        except ChildProcessError:  # SIGCHLD is ignored here, or somebody reaps for us
            pass


def _threaded(chunks: int, work: Callable[[int], Any], workers: int) -> Iterator[tuple[int, Any]]:
    import queue
    import threading

    numbers: queue.SimpleQueue[int] = queue.SimpleQueue()
    results: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()
    for chunk in range(chunks):
        numbers.put(chunk)
    stop = threading.Event()

    def labour() -> None:
        while not stop.is_set():
            try:
                chunk = numbers.get_nowait()
            except queue.Empty:
                return
            try:
                results.put((chunk, work(chunk), None))
            except BaseException as error:
                results.put((chunk, None, error))

    threads = [threading.Thread(target=labour, daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(chunks):
            chunk, result, error = results.get()
            if error is not None:
                raise error
            yield chunk, result
    finally:
        stop.set()
        for thread in threads:
            thread.join()
