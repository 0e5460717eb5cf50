"""A seeded asyncio event loop on virtual time, for simulations that replay exactly.

Owns three things: the time, the order in which ready callbacks run, and the life of simulated processes
(`Node`). All of them follow from the `Random` it is given.

The invariant: a run depends on its seed and its code, on nothing else. So in here and in simulated code: no
real clock, no thread, no `id`, no `hash(str)`, no set of what hashes by address. (Tasks and futures made here
hash by number, for asyncio keeps them in sets. Garbage is collected at fixed points, for it runs finalizers.)

Time is whole microseconds and moves only when nothing is ready: it jumps to the next timer.

Order: the next *node* is drawn at random; within a node, first in, first out, except that now and then two
neighbouring task steps change places. asyncio promises the order of `call_soon`, and its own `wait`, `gather`
and `timeout` are built on it, so plain callbacks keep theirs. It never promised which of two ready tasks goes
on first, and programs that think so should fail here. Between processes there is no order at all.

Death: `Node.crash` is a SIGKILL, not a cancellation. Callbacks, timers and tasks of the node stay where they
are, held alive, until `VirtualLoop.close`. Python cannot drop a suspended coroutine without throwing
GeneratorExit into it, so `finally` blocks do run then: after the end, outside any task, with a loop that
refuses every call, errors dropped. Judge a simulation before you close its loop; only `failures` may grow.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import sys
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from random import Random
from typing import Any, NoReturn, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Callback = Callable[..., object]
ExceptionHandler = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]

WALL_EPOCH_US = 1_767_225_600_000_000  # virtual time 0 is 2026-01-01 UTC
SWAP_CHANCE = 0.1
COLLECT_EVERY = 100_000  # callbacks between garbage collections
MASK = (1 << 64) - 1
OVER = "the simulation is over: its loop is closed."

log = logging.getLogger(__name__)


class Deadlock(RuntimeError):
    """Nothing is ready and no timer is armed, so nothing can ever happen again."""


class Livelock(RuntimeError):
    """Callbacks run without end while time stands still: something polls instead of waiting."""


class OutsideWorld(RuntimeError):
    """Simulated code reached for a thread, a socket, a process or a signal."""


class NodeDown(RuntimeError):
    """A crashed node starts nothing any more. A restarted process is a new node."""


@dataclass(frozen=True, slots=True)
class UnhandledFailure:
    """An exception that nobody handled. `node` is empty for the simulation's own code."""

    at: float
    node: str
    message: str
    error: BaseException | None


class NodeClock:
    """A node's own `Clock`: `offset + rate * virtual time`, see `Node.set_skew`."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._shown, self._since_us, self.rate = 0.0, 0, 1.0

    def monotonic(self) -> float:
        return self._shown + self.rate * ((self._loop.now_us - self._since_us) / 1e6)

    def wall_us(self) -> int:
        return WALL_EPOCH_US + round(self.monotonic() * 1e6)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _show(self, seconds: float, rate: float) -> None:
        self._shown, self._since_us, self.rate = seconds, self._loop.now_us, rate


class Node:
    """A simulated process: what was spawned in it, and every callback and task that came of that."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.name = name
        self.clock = NodeClock(loop)
        self.paused = False
        self.crashed = False
        self._loop = loop
        self._key = _digest(name)
        self._ready: deque[_Handle] = deque()
        self._tasks: list[_Task] = []
        self._tidy_at = 64

    def spawn(
        self, work: Callable[[], Coroutine[Any, Any, T]] | Coroutine[Any, Any, T], *, name: str | None = None
    ) -> asyncio.Task[T]:
        """Run `work` in this node, in a context that holds nothing but the node: a process inherits nothing.

        Raises `NodeDown` after a crash; restart by creating another node.
        """
        context = self._context()
        coro = context.run(work) if callable(work) else work
        if self.crashed:
            coro.close()
            raise NodeDown(f"node {self.name!r} has crashed; create a new node to restart it.")
        return self._loop.create_task(coro, name=name, context=context)

    def crash(self) -> None:
        """Run nothing of this node ever again: no `finally`, no done-callback, no timer.

        What it leaves half done elsewhere (a transaction, a connection) is for the caller to drop. Code that
        crashes its own node continues to its next suspension: let it `await loop.create_future()` at once.
        """
        self.pause()
        self.crashed = True
        for task in self._tasks:
            task.forget()

    def pause(self) -> None:
        """Hold every callback, and every timer as it falls due: a SIGSTOP."""
        if not self.paused and self._ready:
            self._loop._runnable.remove(self)
        self.paused = True

    def resume(self) -> None:
        """Release what was held, in order. The dead stay dead."""
        if self.paused and not self.crashed:
            self.paused = False
            if self._ready:
                self._loop._runnable.append(self)

    def set_skew(self, offset_s: float | None = None, rate: float = 1.0) -> None:
        """Let the node's clock show `offset_s + rate * virtual time`; timers armed from now on follow it.

        Without an offset only the speed changes, and the clock continues from where it is. Raises ValueError
        rather than stop a monotonic clock or set it back.
        """
        shown = self.clock.monotonic()
        shows = shown if offset_s is None else offset_s + rate * (self._loop.now_us / 1e6)
        if rate <= 0 or shows < shown:
            raise ValueError(
                f"({offset_s}, {rate}) would stop the clock of node {self.name!r} or set it back from "
                f"{shown} s; to change only its rate, leave offset_s out."
            )
        self.clock._show(shows, rate)

    def __repr__(self) -> str:
        state = "crashed" if self.crashed else "paused" if self.paused else "alive"
        return f"<Node {self.name!r} {state}>"

    def _context(self) -> Context:
        context = Context()
        if self is not self._loop._main:
            context.run(_NODE.set, self)
        return context

    def _adopt(self, task: _Task) -> None:
        # Finished tasks leave in bulk: a done-callback on each would cost one more turn of the loop per task.
        # Those whose exception nobody has read stay, to be reported by close().
        if len(self._tasks) >= self._tidy_at:
            self._tasks = [kept for kept in self._tasks if not kept.done() or kept._log_traceback]
            self._tidy_at = 2 * len(self._tasks) + 64
        self._tasks.append(task)

    def _dispose(self) -> None:
        context = self._context()
        for task in self._tasks:
            task.forget()
            coro: Any = task.get_coro()
            for _ in range(100):  # a `finally` that awaits survives a close; most do not survive many
                with suppress(BaseException):
                    context.run(coro.close)
                    break
        self._tasks.clear()
        self._ready.clear()


_NODE: ContextVar[Node] = ContextVar("holdfast_node")


def current_node() -> Node | None:
    """The node whose code is running; None in the simulation's own code (main, nemesis)."""
    return _NODE.get(None)


class _Future(asyncio.Future[Any]):
    """A future whose place in a set does not depend on its address, but on when that was first asked for."""

    _loop: VirtualLoop
    number = 0

    def __hash__(self) -> int:
        if not self.number:
            self._loop._futures_hashed += 1
            self.number = self._loop._futures_hashed
        return self.number


class _Task(asyncio.Task[Any]):
    """A task whose place in a set (TaskGroup, `asyncio.wait`) does not depend on its address."""

    def __init__(self, coro: Any, loop: VirtualLoop, name: str, context: Context, number: int) -> None:
        self.number = number
        self.node = context.get(_NODE, loop._main)
        super().__init__(coro, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self.number

    def forget(self) -> None:
        """Be silent about how this task ends or that it never does, and leave `asyncio.all_tasks`."""
        self._log_destroy_pending = False
        self._log_traceback = False
        asyncio.tasks._unregister_task(self)


class _Handle(asyncio.TimerHandle):
    """Serves `call_soon` and timers alike; `mark` is its number in the trace."""

    __slots__ = ("mark", "node")
    _callback: Callback | None
    _context: Context
    _scheduled: bool
    _when: float

    def __init__(self, callback: Callback, args: Any, context: Context, node: Node, mark: int) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False
        self._scheduled = False
        self.node = node
        self.mark = mark

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._callback = None
            self._args = ()
            if self._scheduled:
                self.node._loop._timer_cancelled()

    def is_task_step(self) -> bool:
        callback = self._callback
        return type(callback).__name__ == "TaskStepMethWrapper" or (
            getattr(callback, "__name__", "") == "task_wakeup"
            and isinstance(getattr(callback, "__self__", None), asyncio.Task)
        )

    def __repr__(self) -> str:
        return f"<callback {self.mark} in {self.node!r}: {self._callback}>"

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return self.mark


def _outside(*_args: object, **_kwargs: object) -> NoReturn:
    raise OutsideWorld(
        "simulated code must not use threads, sockets, pipes, subprocesses or signals, nor replace the task "
        "factory: a seed could not replay it. Put the outside world behind a port and simulate the port."
    )


_refused: Any = _outside


class VirtualLoop(asyncio.AbstractEventLoop):
    """The event loop of one simulation: `VirtualLoop(Random(seed)).run_until_complete(main())`, then `close`.

    `failures` has every exception nobody handled in a living node; it is complete once the loop is closed.
    `executed` counts the callbacks run.
    """

    def __init__(self, random: Random, *, spin_limit: int = 1_000_000) -> None:
        self.now_us = 0
        self.executed = 0
        self.failures: list[UnhandledFailure] = []
        self.nodes: list[Node] = []
        self._random = random
        self._spin_limit = spin_limit
        self._main = Node(self, "")
        self._runnable: list[Node] = []  # exactly the nodes that are not paused and have something ready
        self._timers: list[tuple[int, int, _Handle]] = []
        self._timers_cancelled = 0
        self._marks = self._tasks_made = self._futures_hashed = 0
        self._trace = 0
        self._agens: dict[int, Node] = {}  # by id: looked up, never iterated
        self._running = self._stopping = self._closed = self._debug = False
        self._entered_once = self._froze = False
        self._exception_handler: ExceptionHandler | None = None

    def create_node(self, name: str) -> Node:
        """A new process. It may have the name of a crashed node, whose next incarnation it then is."""
        if not name or any(node.name == name and not node.crashed for node in self.nodes):
            raise ValueError(f"a node needs a name that no living node has, not {name!r}.")
        node = Node(self, name)
        self.nodes.append(node)
        return node

    def trace(self, event: str) -> None:
        """Make `event` part of what `trace_hash` proves, with its time and node."""
        self._mix(_digest(f"{self.now_us}\0{_NODE.get(self._main).name}\0{event}"))

    def trace_hash(self) -> str:
        """Digest of all so far: each event traced, each jump of time, each callback's node and number."""
        return f"{self._trace:016x}"

    def _mix(self, value: int) -> None:
        self._trace = (self._trace * 1000003 ^ value) & MASK

    def time(self) -> float:
        """Virtual seconds; in a node, what its own clock shows."""
        return _NODE.get(self._main).clock.monotonic()

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        # _handle and _enqueue written out: every step of every task comes through here.
        if self._closed:
            raise RuntimeError(OVER)
        if context is None:
            context = copy_context()
        node = context.get(_NODE, self._main)
        self._marks = mark = self._marks + 1
        handle = _Handle(callback, args, context, node, mark)
        ready = node._ready
        if not ready and not node.paused:
            self._runnable.append(node)
        ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = self._handle(callback, args, context)
        handle._when = handle.node.clock.monotonic() + delay
        return self._arm(handle, delay)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = self._handle(callback, args, context)
        handle._when = when
        return self._arm(handle, when - handle.node.clock.monotonic())

    def _handle(self, callback: Callback, args: tuple[Any, ...], context: Context | None) -> _Handle:
        if self._closed:
            raise RuntimeError(OVER)
        if context is None:
            context = copy_context()
        self._marks += 1
        return _Handle(callback, args, context, context.get(_NODE, self._main), self._marks)

    def _enqueue(self, handle: _Handle) -> None:
        node = handle.node
        if not node._ready and not node.paused:
            self._runnable.append(node)
        node._ready.append(handle)

    def _arm(self, handle: _Handle, delay: float) -> _Handle:
        if delay <= 0:
            self._enqueue(handle)
        elif delay != math.inf:
            # Rounded up, so that no timer is early and a sleeper for a remainder makes progress; less a
            # nanosecond, so that float noise does not cost a microsecond.
            ticks = max(1, math.ceil(delay / handle.node.clock.rate * 1e6 - 1e-3))
            handle._scheduled = True
            heappush(self._timers, (self.now_us + ticks, handle.mark, handle))
        return handle

    def _timer_cancelled(self) -> None:
        # Most timeouts never fire; without this the heap would be made of them.
        self._timers_cancelled += 1
        if self._timers_cancelled > 100 and self._timers_cancelled * 2 > len(self._timers):
            self._timers = [timer for timer in self._timers if not timer[2]._cancelled]
            heapify(self._timers)
            self._timers_cancelled = 0

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        if self._closed:
            coro.close()
            raise RuntimeError(OVER)
        self._tasks_made += 1
        # asyncio counts unnamed tasks per process: their names would differ from run to run.
        named = f"Task-{self._tasks_made}" if name is None else str(name)
        task = _Task(coro, self, named, copy_context() if context is None else context, self._tasks_made)
        task.node._adopt(task)
        return task

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        """Run until `future` is done. Raises `Deadlock` if it cannot be, `Livelock` if time stands still."""
        awaited: asyncio.Future[T] = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]
        awaited.add_done_callback(self._stop_at)
        try:
            self.run_forever()
        except BaseException:
            if awaited.done() and not awaited.cancelled():
                awaited.exception()  # the same, on its way out: no failure
            raise
        finally:
            awaited.remove_done_callback(self._stop_at)
        if not awaited.done():
            raise RuntimeError("the loop was stopped before the future was done.")
        return awaited.result()

    def _stop_at(self, _future: object) -> None:
        self.stop()

    def run_forever(self) -> None:
        with self._entered():
            self._run()

    def stop(self) -> None:
        """Return from the run after the current callback; what is ready waits for the next run."""
        self._stopping = True

    def _run(self) -> None:
        runnable, random = self._runnable, self._random.random
        spin_end = self.executed + self._spin_limit
        collect_at = self.executed + COLLECT_EVERY
        while not self._stopping:
            count = len(runnable)
            if not count:
                if self.executed >= collect_at:
                    gc.collect()
                    collect_at = self.executed + COLLECT_EVERY
                else:
                    self._advance()
                    spin_end = self.executed + self._spin_limit
                continue
            index = int(random() * count) if count > 1 else 0
            node = runnable[index]
            ready = node._ready
            if len(ready) == 1:
                runnable[index] = runnable[-1]
                runnable.pop()
            elif random() < SWAP_CHANCE and ready[0].is_task_step() and ready[1].is_task_step():
                ready[0], ready[1] = ready[1], ready[0]
            handle = ready.popleft()
            if handle._cancelled:
                continue
            self._trace = (self._trace * 1000003 ^ node._key ^ handle.mark) & MASK
            self.executed += 1
            if self.executed > spin_end:
                raise Livelock(self._report(f"{self._spin_limit} callbacks in one instant"))
            try:
                handle._context.run(handle._callback, *handle._args)  # type: ignore[arg-type]
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - the edge of the loop, as in asyncio
                problem = {"message": f"{handle} failed", "exception": error, "handle": handle}
                self.call_exception_handler(problem)

    def _advance(self) -> None:
        """Jump to the next timer that can fire, and make ready all that are due then."""
        due = -1
        while self._timers and due in (-1, self._timers[0][0]):
            when, _, handle = heappop(self._timers)
            handle._scheduled = False
            if handle._cancelled:
                self._timers_cancelled -= 1
                continue
            self._enqueue(handle)
            if not handle.node.crashed:
                due = when
        if due < 0:
            raise Deadlock(self._report("nothing is ready and no timer is armed"))
        self.now_us = due
        self._mix(due)

    @contextmanager
    def _entered(self) -> Iterator[None]:
        if self._closed or asyncio._get_running_loop() is not None:
            raise RuntimeError("this loop is closed, or a loop is running in this thread already.")
        hooks, collecting = sys.get_asyncgen_hooks(), gc.isenabled()
        # Finalizers are part of the run, so when garbage is collected must be too: after so many callbacks
        # and at the end, not after so many allocations of the process; and nothing older than the loop. A process
        # that froze what it has, such as a large suite, keeps it so: to look through all of it is slow.
        gc.disable()
        if not self._entered_once:
            self._entered_once = True
            self._froze = not gc.get_freeze_count()
            if not self._froze:
                gc.collect()  # what is frozen now stays
            gc.freeze()
        sys.set_asyncgen_hooks(firstiter=self._agen_started, finalizer=self._agen_dropped)
        asyncio._set_running_loop(self)
        self._running = True
        try:
            yield
        finally:
            gc.collect()
            self._running = self._stopping = False
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
            if collecting:
                gc.enable()

    def _agen_started(self, agen: AsyncGenerator[Any, Any]) -> None:
        self._agens[id(agen)] = _NODE.get(self._main)

    def _agen_dropped(self, agen: AsyncGenerator[Any, Any]) -> None:
        """Close an abandoned generator in the node that began it, as asyncio does. A dead one holds it."""
        node = self._agens.pop(id(agen))
        if not self._closed:
            self.create_task(agen.aclose(), context=node._context())

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """End the simulation: complete `failures`, then dispose of every task, done or not."""
        if self._running:
            raise RuntimeError("cannot close a running loop.")
        if self._closed:
            return
        everyone = (self._main, *self.nodes)
        for task in [task for node in everyone if not node.crashed for task in node._tasks]:
            if task.done() and task._log_traceback:
                message = f"{task.get_name()} failed and nobody awaited it"
                self.call_exception_handler({"message": message, "exception": task.exception(), "task": task})
        self._closed = True
        complain, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            for node in everyone:
                node._dispose()
            self._timers.clear()
            gc.collect()
        finally:
            sys.unraisablehook = complain
            if self._froze:
                gc.unfreeze()

    async def shutdown_asyncgens(self) -> None:
        """Nothing to do: abandoned generators are closed when dropped, the others end with their task."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Nothing to do: there are no threads."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        source = context.get("task") or context.get("handle")
        node: Node = getattr(source, "node", self._main)
        if self._closed or node.crashed:
            return
        message, error = context.get("message", "unhandled exception"), context.get("exception")
        self.failures.append(UnhandledFailure(self.now_us / 1e6, node.name, message, error))
        (self._exception_handler or VirtualLoop.default_exception_handler)(self, context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        log.error("%s", context.get("message"), exc_info=context.get("exception"))

    def get_exception_handler(self) -> ExceptionHandler | None:
        return self._exception_handler

    def set_exception_handler(self, handler: ExceptionHandler | None) -> None:
        """Call `handler` with what goes into `failures`, in place of logging it."""
        self._exception_handler = handler

    def get_debug(self) -> bool:
        return self._debug

    def set_debug(self, enabled: bool) -> None:
        self._debug = enabled

    def _report(self, what: str) -> str:
        lines = [f"{what}, at {self.now_us / 1e6} s after {self.executed} callbacks. Pending tasks:"]
        for node in (self._main, *self.nodes):
            where = f"node {node.name!r}{' (paused)' if node.paused else ''}" if node.name else "main"
            pending = [] if node.crashed else [task for task in node._tasks if not task.done()]
            lines += [f"  {where}: {task.get_name()!r} in {_place(task)}" for task in pending]
        return "\n".join(lines)

    set_task_factory = get_task_factory = call_soon_threadsafe = run_in_executor = _refused
    set_default_executor = getaddrinfo = getnameinfo = create_connection = create_server = _refused
    start_tls = create_datagram_endpoint = create_unix_connection = create_unix_server = _refused
    connect_accepted_socket = connect_read_pipe = connect_write_pipe = sendfile = sock_sendfile = _refused
    sock_recv = sock_recv_into = sock_recvfrom = sock_recvfrom_into = sock_sendall = sock_sendto = _refused
    sock_connect = sock_accept = subprocess_shell = subprocess_exec = add_signal_handler = _refused
    remove_signal_handler = add_reader = remove_reader = add_writer = remove_writer = _refused


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def _place(task: asyncio.Task[Any]) -> str:
    """Where a task waits. `Task.get_stack` shows the outermost frame alone; this continues to the innermost."""
    places = []
    coro: Any = task.get_coro()
    while frame := getattr(coro, "cr_frame", None):
        places.append(f"{frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})")
        coro = coro.cr_await
    return " > ".join(places) or repr(coro)
