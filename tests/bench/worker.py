"""A helper process that is given one JSON line for each job and answers it with one; what it does is its module's."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Worker:
    """`python -m module` as a context manager; it has one job at a time."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._command = [sys.executable, "-m", module, *arguments]

    def __enter__(self) -> "Worker":
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, bufsize=1)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def begin(self, job: Any) -> None:
        """Start a job; anything that JSON can carry."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")

    def result(self) -> Any:
        """Wait for the end of the job. Raises RuntimeError when the process has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(self._command[1:])} ended; its error stands above")
        return json.loads(line)


def work(do: Callable[[Any], Awaitable[Any]]) -> None:
    """What such a process runs: it does the jobs of its standard input until that is closed."""
    for line in sys.stdin:
        print(json.dumps(asyncio.run(_done(do, json.loads(line)))), flush=True)


async def _done(do: Callable[[Any], Awaitable[Any]], job: Any) -> Any:
    return await do(job)
