"""Programs for the sandbox: ordinary, greedy and hostile ones."""

import os

from rewardsmith.sandbox import ProgramLimits, RunOutcome, Sandbox

SHORT = ProgramLimits(seconds=0.4)
"""For programs that do not end by themselves."""


def outcome(program: str, given: str = "", allowed: ProgramLimits | None = None) -> RunOutcome:
    with Sandbox([program], allowed or ProgramLimits()) as sandbox:
        return sandbox.run(given)


def attempt(action: str) -> str:
    """Return a program that tries something and prints what came of it."""
    return f"try:\n  exec({action!r})\n  print('done')\nexcept BaseException as e:\n  print(type(e).__name__, e)"


# What needs a system call that is not on the list.
REFUSED = {
    "internet socket": "import socket; socket.socket()",
    "unix socket": "import socket; socket.socket(socket.AF_UNIX)",
    "socket pair": "import socket; socket.socketpair()",
    "netlink socket": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "fork": "import os; os.fork()",
    "fork with a terminal": "import os; os.forkpty()",
    "subprocess": "import subprocess; subprocess.run(['/bin/true'])",
    "spawn": "import os; os.posix_spawn('/bin/true', ['true'], {})",
    "exec": "import os; os.execv('/bin/true', ['true'])",
    "new file": "open('x', 'w')",
    "append": "open('x', 'a')",
    "change a file": "import os; open(os.__file__, 'r+')",
    "write-only": "import os; os.open('/dev/null', os.O_WRONLY)",
    "nameless file": "import os; os.open('.', os.O_TMPFILE | os.O_RDWR)",
    "memory file": "import os; os.memfd_create('x')",
    "unlink": "import os; os.unlink(os.__file__)",
    "rename": "import os; os.rename(os.__file__, 'x')",
    "mkdir": "import os; os.mkdir('x')",
    "rmdir": "import os; os.rmdir(os.getcwd())",
    "chmod": "import os; os.chmod('.', 0o777)",
    "chown": "import os; os.chown('.', 0, 0)",
    "symlink": "import os; os.symlink('a', 'b')",
    "hard link": "import os; os.link(os.__file__, 'b')",
    "fifo": "import os; os.mkfifo('f')",
    "times": "import os; os.utime('.')",
    "truncate": "import os; os.truncate(os.__file__, 0)",
    "kill the parent": "import os; os.kill(os.getppid(), 9)",
    "kill everyone": "import os; os.kill(-1, 9)",
    "kill the group": "import os; os.killpg(os.getpgrp(), 9)",
    "kill through a pipe": "import os, fcntl; fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, os.getppid())",
    "larger pipe": "import os, fcntl; fcntl.fcntl(os.pipe()[0], 1031, 1 << 20)",
    "new group": "import os; os.setpgid(0, 0)",
    "new session": "import os; os.setsid()",
    "other user": "import os; os.setuid(65534)",
    "priority": "import os; os.nice(1)",
    "limits of the parent": "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    "processors of the parent": "import os; os.sched_setaffinity(os.getppid(), {0})",
    "handle of the parent": "import os; os.pidfd_open(os.getppid())",
    "chroot": "import os; os.chroot('.')",
}


# Calls of the C library, past Python: call and its arguments, and the error number.
RAW = {
    "fork": ("fork()", 1), "vfork": ("vfork()", 1), "unshare": ("unshare(0x10000000)", 1),
    "ptrace": ("ptrace(16, 1, 0, 0)", 1), "live on without the parent": ("prctl(1, 0, 0, 0, 0)", 1),
    "another filter": ("prctl(22, 1, 0, 0, 0)", 1), "read other memory": ("process_vm_readv(1, 0, 0, 0, 0, 0)", 1),
    "clone3": ("syscall(435, 0, 0)", 38), "openat2": ("syscall(437, 0, 0, 0, 0)", 38),
    "io_uring": ("syscall(425, 1, 0)", 1), "bpf": ("syscall(321, 0, 0, 0)", 1), "mount": ("mount(0, 0, 0, 0, 0)", 1),
}  # fmt: skip
if os.uname().machine == "x86_64":
    RAW |= {
        "a process by clone": ("syscall(56, 17, 0, 0, 0, 0)", 1),
        "a thread with a user namespace": ("syscall(56, 0x3D0F00 | 0x10000000, 0, 0, 0, 0)", 1),
        "x32": ("syscall(0x40000000 + 39)", 1),
    }


# What takes too much, and the end that it meets.
GREEDY = {
    "endless loop": ("while True: pass", "time than allowed"),
    "endless sleep": ("import time\ntime.sleep(10**6)", "time than allowed"),
    "deaf to signals": (
        "import signal, time\nfor s in {*range(1, 32)} - {9, 19}: signal.signal(s, 1)\nwhile 1: time.sleep(9)",
        "time than allowed",
    ),
    "stops itself": ("import os\nos.kill(os.getpid(), 19)", "time than allowed"),
    "closes everything": ("import os, time\nos.closerange(0, 99)\ntime.sleep(10**6)", "time than allowed"),
    "one large object": ("x = bytearray(1 << 30)", "status 1"),
    "endless output": ("while True: print('x' * 10**6)", "more output"),
    "endless output by number": ("import os\nwhile True: os.write(1, b'x' * 10**6)", "more output"),
    "endless complaints": ("import os\nwhile True: os.write(2, b'x' * 10**6)", "time than allowed"),
    "recursion": ("def f(): f()\nf()", "status 1"),
    "recursion without a limit": (
        "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n    def __repr__(self): return repr(self)\nrepr(A())",
        "signal 11",
    ),
    "small threads": (
        "from threading import *\nstack_size(32768)\nwait = Event().wait\nwhile True: Thread(target=wait).start()",
        "threads",
    ),
    "fault": ("import ctypes\nctypes.string_at(0)", "signal 11"),
    "abort": ("import os\nos.abort()", "signal 6"),
    "error": ("print(1)\n1 / 0", "status 1"),
    "exit status": ("import sys\nsys.exit(3)", "status 3"),
    "exit with text": ("import sys\nsys.exit('wrong')", "status 1"),
    "no Python": ("def f(:", "not valid Python"),
    "zero byte": ("print(1)\0", "not valid Python"),
    "deeply nested": ("(" * 100_000, "not valid Python"),
    "no Unicode": ("print('\ud800')", "not valid Python"),
}


# What ordinary programs do; each reads "3\n1 2 3\n".
ORDINARY = {
    "input": ("n = int(input())\nprint(n + sum(map(int, input().split())))", "9\n"),
    "sys.stdin.read": ("import sys\nprint(len(sys.stdin.read().split()))", "4\n"),
    "sys.stdin lines": ("import sys\nprint([line.strip() for line in sys.stdin])", "['3', '1 2 3']\n"),
    "binary": ("import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())", "3\n1 2 3\n"),
    "open(0)": ("print(open(0).read().split()[-1])", "3\n"),
    "/dev/stdin": ("print(open('/dev/stdin').read().split()[-1])", "3\n"),
    "os.read": ("import os\nprint(os.read(0, os.fstat(0).st_size))", "b'3\\n1 2 3\\n'\n"),
    "closed output": ("import sys\nprint(1)\nsys.stdout.close()", "1\n"),
    "an output of its own": (
        "import sys\nclass O:\n    def write(self, text, to=sys.stdout): to.write(text)\nsys.stdout = O()\nprint(1)",
        "1\n",
    ),
    "end of input": ("input(); input()\ntry: input()\nexcept EOFError: print('end')", "end\n"),
    "exit": ("print(1)\nexit()\nprint(2)", "1\n"),
    "os._exit": ("import os\nos.write(1, b'1')\nos._exit(0)", "1"),
    "main": ("if __name__ == '__main__': print('main')", "main\n"),
    "atexit": ("import atexit\natexit.register(print, 'bye')\nprint('hi')", "hi\nbye\n"),
    "a thread that nobody joins": (
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), print('late'))).start()",
        "late\n",
    ),
    "a file that nobody closes": ("f = open(1, 'w')\nf.write('late')", "late"),
    "deep recursion": (
        "import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return n and 1 + f(n - 1)\nprint(f(50_000))",
        "50000\n",
    ),
    "deep recursion in a thread": (
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(2**27)\n"
        "def f(n): return n and 1 + f(n - 1)\n"
        "t = threading.Thread(target=lambda: print(f(50_000)))\nt.start()\nt.join()",
        "50000\n",
    ),
    "thread pool": (
        "from concurrent.futures import ThreadPoolExecutor\nprint(sum(ThreadPoolExecutor(4).map(abs, range(-4, 0))))",
        "10\n",
    ),
    "the standard library": (
        "import collections, dataclasses, datetime, decimal, fractions, hashlib, heapq, itertools, math, pickle, re\n"
        "@dataclasses.dataclass\nclass A:\n    x: int = 1\n"
        "print(collections.Counter('aab').most_common(1), heapq.nsmallest(1, [3, 1]), math.isqrt(17), A(),\n"
        "decimal.Decimal(1) / 4, fractions.Fraction(1, 3), re.findall(r'\\d', input()), hashlib.md5().digest()[:1],\n"
        "len(list(itertools.permutations('abcd'))), pickle.loads(pickle.dumps(A())).x, datetime.date(2024, 3, 1))",
        "[('a', 2)] [1] 4 A(x=1) 0.25 1/3 ['3'] b'\\xd4' 24 1 2024-03-01\n",
    ),
    "local time": ("import time, datetime\nprint(time.localtime().tm_year == datetime.datetime.now().year)", "True\n"),
    "random": ("import random\nprint(0 <= random.random() < 1, len(random.sample(range(9), 3)))", "True 3\n"),
    "signal to itself": (
        "import os, signal\nsignal.signal(10, lambda *_: print('got'))\nos.kill(os.getpid(), 10)",
        "got\n",
    ),
    "larger stack": ("import resource\nresource.setrlimit(resource.RLIMIT_STACK, (-1, -1))\nprint(1)", "1\n"),
    "Unicode": ("print('é', '字')", "é 字\n"),
}
